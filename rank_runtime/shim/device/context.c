/* The calling thread's device, and the memory that a process pays for the context of a device. */

#include "internal.h"
#include "late_rank.h"
#include "process.h"

#include <dlfcn.h>
#include <pthread.h>

static __thread int current_device __attribute__((tls_model("initial-exec"))); /* read by every other call */
pthread_mutex_t maya_context_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool in_use[MAYA_MAX_DEVICES];
static _Atomic bool observer_considered;

int maya_current_device(void) { return current_device; }

int maya_set_device(int device) {
    if (device < 0 || device >= maya_visible_devices()->count) return CUDA_INVALID_DEVICE;
    current_device = device;
    return CUDA_OK;
}

bool maya_device_in_use(int device) { return in_use[device]; }

/* The op observer links against torch, so it is loaded only into processes that have torch's CUDA library. */
static bool observer_is_wanted(void) {
    const maya_settings *settings = maya_get_settings();
    return !observer_considered && !settings->bare && settings->observer_path[0] != '\0' &&
           dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD) != NULL;
}

static void call_observer(const char *function) {
    void *observer = dlopen(maya_get_settings()->observer_path, RTLD_NOW);
    void (*called)(void) = observer ? (void (*)(void))dlsym(observer, function) : NULL;
    if (called) called();
    else maya_message("ops are not observed: %s", dlerror());
}

void maya_load_observer(void) {
    if (!observer_is_wanted() || observer_considered) return;
    observer_considered = true;
    call_observer("maya_observer_start");
}

/* Called by the zygote before it forks ranks, so that they share the observer's tables about torch. */
MAYA_API void maya_prepare_observer(void) {
    if (observer_is_wanted()) call_observer("maya_observer_prepare");
}

/* Called when a rank has imported torch, which may build its model on the host before it uses a device. */
MAYA_API void maya_watch_host_tensors(void) {
    if (observer_is_wanted()) call_observer("maya_observer_watch_host_tensors");
}

int maya_use_device(int device) {
    if (device < 0 || device >= maya_visible_devices()->count) return CUDA_INVALID_DEVICE;
    if (in_use[device]) return CUDA_OK;
    maya_appear();
    maya_load_observer();
    pthread_mutex_lock(&maya_context_lock);
    int status = CUDA_OK;
    if (!in_use[device]) {
        status = maya_reserve_device_memory(device);
        if (status == CUDA_OK) status = maya_device_charge(device, maya_get_settings()->device.context_bytes);
        in_use[device] = status == CUDA_OK;
        maya_watch_forks();
    }
    pthread_mutex_unlock(&maya_context_lock);
    return status;
}

void maya_contexts_begin_rank(void) {
    for (int device = 0; device < MAYA_MAX_DEVICES; device++) {
        if (in_use[device]) maya_device_charge(device, -maya_get_settings()->device.context_bytes);
        in_use[device] = false;
    }
    current_device = 0;
}
