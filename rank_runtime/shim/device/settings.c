/* What the launcher asked for: MAYA_* environment variables -> maya_settings, read once at first use.
 * The variables, their meaning and their defaults are listed in rank_runtime/environment.py, which also sets them. */

#include "attributes.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static maya_settings settings;
const maya_settings *maya_known_settings;
static pthread_mutex_t settings_lock = PTHREAD_MUTEX_INITIALIZER;

/* The values of an H100 SXM, so that a program started with the preload alone sees a consistent device. */
static const maya_device_properties default_device = {
    .name = "NVIDIA H100 80GB HBM3",
    .compute_major = 9,
    .compute_minor = 0,
    .sm_count = 132,
    .clock_khz = 1980000,
    .memory_clock_khz = 2619000,
    .memory_bus_bits = 5120,
    .max_threads_per_sm = 2048,
    .max_blocks_per_sm = 32,
    .registers_per_sm = 65536,
    .shared_per_block = 49152,
    .shared_per_block_optin = 232448,
    .shared_per_sm = 233472,
    .reserved_shared_per_block = 1024,
    .l2_bytes = 52428800,
    .memory_bytes = 84942979072,
    .context_bytes = 545259520,
    .power_watts = 700,
};

static void __attribute__((noreturn)) refuse(const char *variable, const char *value, const char *expected) {
    fprintf(stderr, "maya: %s=%s: expected %s; start the program with maya-torchrun, which sets it\n", variable, value,
            expected);
    _exit(2);
}

static int64_t number_of(const char *variable, int64_t otherwise) {
    const char *text = getenv(variable);
    if (text == NULL || *text == '\0') return otherwise;
    char *end;
    long long value = strtoll(text, &end, 10);
    if (*end != '\0' || value < 0) refuse(variable, text, "a whole number");
    return value;
}

static void read_text(const char *variable, char *text, size_t size) {
    const char *value = getenv(variable);
    if (value && strlen(value) >= size) refuse(variable, value, "a shorter text");
    snprintf(text, size, "%s", value ? value : "");
}

static bool set_property(maya_device_properties *device, const char *key, const char *text) {
    if (strcmp(key, "name") == 0) {
        snprintf(device->name, sizeof device->name, "%s", text);
        return true;
    }
    const struct {
        const char *key;
        int *small;
        int64_t *large;
    } fields[] = {
        {"compute_major", &device->compute_major, NULL},
        {"compute_minor", &device->compute_minor, NULL},
        {"sm_count", &device->sm_count, NULL},
        {"clock_khz", &device->clock_khz, NULL},
        {"memory_clock_khz", &device->memory_clock_khz, NULL},
        {"memory_bus_bits", &device->memory_bus_bits, NULL},
        {"max_threads_per_sm", &device->max_threads_per_sm, NULL},
        {"max_blocks_per_sm", &device->max_blocks_per_sm, NULL},
        {"registers_per_sm", &device->registers_per_sm, NULL},
        {"power_watts", &device->power_watts, NULL},
        {"shared_per_block", NULL, &device->shared_per_block},
        {"shared_per_block_optin", NULL, &device->shared_per_block_optin},
        {"shared_per_sm", NULL, &device->shared_per_sm},
        {"reserved_shared_per_block", NULL, &device->reserved_shared_per_block},
        {"l2_bytes", NULL, &device->l2_bytes},
        {"memory_bytes", NULL, &device->memory_bytes},
        {"context_bytes", NULL, &device->context_bytes},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (strcmp(key, fields[i].key) != 0) continue;
        char *end;
        long long value = strtoll(text, &end, 10);
        if (*end != '\0' || value < 0) return false;
        if (fields[i].small) *fields[i].small = (int)value;
        if (fields[i].large) *fields[i].large = value;
        return true;
    }
    return false;
}

static void read_device(maya_device_properties *device) {
    *device = default_device;
    const char *text = getenv("MAYA_GPU_PROPERTIES");
    if (text == NULL || *text == '\0') return;
    char *copy = strdup(text), *rest = copy;
    for (char *item = strsep(&rest, ";"); item != NULL; item = strsep(&rest, ";")) {
        if (*item == '\0') continue;
        char *equals = strchr(item, '=');
        if (equals) *equals = '\0';
        if (!equals || !set_property(device, item, equals + 1)) refuse("MAYA_GPU_PROPERTIES", text, "key=value;key=value");
    }
    free(copy);
}

/* Costs of the host, "op=4000;kernel=5200;...": those that maya_clock_costs has, and kinds of records in lower case. */
static bool set_cost(maya_clock_costs *costs, const char *key, const char *text) {
    static const char *const kinds[] = {
        [MAYA_RECORD_KERNEL] = "kernel",
        [MAYA_RECORD_LIBRARY] = "library",
        [MAYA_RECORD_MEMCPY] = "memcpy",
        [MAYA_RECORD_MEMSET] = "memset",
        [MAYA_RECORD_MALLOC] = "malloc",
        [MAYA_RECORD_FREE] = "free",
        [MAYA_RECORD_EVENT_RECORD] = "event_record",
        [MAYA_RECORD_STREAM_WAIT] = "stream_wait",
        [MAYA_RECORD_SYNCHRONIZE] = "synchronize",
        [MAYA_RECORD_HOST_FUNCTION] = "host_function",
        [MAYA_RECORD_COLLECTIVE] = "collective",
        [MAYA_RECORD_GRAPH_LAUNCH] = "graph_launch",
        [MAYA_RECORD_STREAM_CREATE] = "stream_create",
    };
    const struct {
        const char *key;
        uint64_t *cost;
    } others[] = {
        {"op", &costs->op},           {"latency", &costs->latency}, {"wake", &costs->wake}, {"clock_read", &costs->clock_read},
        {"overlap", &costs->overlap},
    };
    uint64_t *cost = NULL;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (strcmp(key, others[i].key) == 0) cost = others[i].cost;
    }
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        if (kinds[kind] && strcmp(key, kinds[kind]) == 0) cost = &costs->calls[kind];
    }
    char *end;
    long long value = strtoll(text, &end, 10);
    if (cost == NULL || *text == '\0' || *end != '\0' || value < 0) return false;
    *cost = (uint64_t)value;
    return true;
}

static void read_costs(maya_clock_costs *costs) {
    const char *text = getenv("MAYA_CLOCK_COSTS");
    if (text == NULL) return;
    char *copy = strdup(text), *rest = copy;
    for (char *item = strsep(&rest, ";"); item != NULL; item = strsep(&rest, ";")) {
        if (*item == '\0') continue;
        char *equals = strchr(item, '=');
        if (equals) *equals = '\0';
        if (!equals || !set_cost(costs, item, equals + 1))
            refuse("MAYA_CLOCK_COSTS", text, "op=4000;latency=3000;kernel=5000;...");
    }
    free(copy);
}

/* Times come from the coordinator, which is not there yet while modules are tried and shared, and go into a trace. */
static void read_clock(void) {
    const char *clock = getenv("MAYA_CLOCK");
    if (clock == NULL || *clock == '\0' || strcmp(clock, "wall") == 0) return;
    if (strcmp(clock, "virtual") != 0) refuse("MAYA_CLOCK", clock, "virtual or wall");
    settings.virtual_clock = settings.coordinator[0] != '\0' && settings.trace_path[0] != '\0' && !settings.bare;
    read_costs(&settings.costs);
}

/* "%r" in a trace path is the rank, "%p" the process id. */
static void expand_path(char *path, size_t size, const char *pattern, int rank) {
    size_t used = 0;
    for (; *pattern != '\0' && used + 16 < size; pattern++) {
        if (pattern[0] == '%' && (pattern[1] == 'r' || pattern[1] == 'p')) {
            used += (size_t)snprintf(path + used, size - used, "%d", pattern[1] == 'r' ? rank : (int)getpid());
            pattern++;
        } else {
            path[used++] = *pattern;
        }
    }
    path[used] = '\0';
}

static void read_settings(void) {
    enum { LEAST_SMALL_BYTES = 64 << 10 };
    settings = (maya_settings){0};
    settings.rank = (int)number_of("RANK", 0);
    int64_t count = number_of("MAYA_GPUS", 8);
    if (count > MAYA_MAX_DEVICES) refuse("MAYA_GPUS", getenv("MAYA_GPUS"), "at most 64 devices");
    settings.node_devices = (int)count;
    settings.world_size = (int)number_of("WORLD_SIZE", 0);
    settings.ranks_per_node = (int)number_of("LOCAL_WORLD_SIZE", count);
    if (settings.ranks_per_node == 0) settings.ranks_per_node = 1;
    read_device(&settings.device);

    const char *compute = getenv("MAYA_COMPUTE");
    if (compute == NULL || *compute == '\0' || strcmp(compute, "small") == 0) settings.compute = MAYA_COMPUTE_SMALL;
    else if (strcmp(compute, "none") == 0) settings.compute = MAYA_COMPUTE_NONE;
    else if (strcmp(compute, "all") == 0) settings.compute = MAYA_COMPUTE_ALL;
    else refuse("MAYA_COMPUTE", compute, "none, small or all");
    settings.compute_bytes = number_of("MAYA_COMPUTE_BYTES", 64 << 10);
    settings.small_bytes = settings.compute_bytes > LEAST_SMALL_BYTES ? settings.compute_bytes : LEAST_SMALL_BYTES;
    settings.copy_bytes = number_of("MAYA_COPY_BYTES", 16 << 20);
    settings.kept_bytes = number_of("MAYA_KEPT_BYTES", 256 << 20);
    settings.collective_bytes = number_of("MAYA_COLLECTIVE_BYTES", 1 << 20);
    settings.object_bytes = number_of("MAYA_OBJECT_BYTES", 1 << 30);
    if (settings.compute == MAYA_COMPUTE_ALL) {
        settings.compute_bytes = settings.small_bytes = INT64_MAX;
        settings.copy_bytes = settings.kept_bytes = settings.collective_bytes = INT64_MAX;
    }
    const char *observe = getenv("MAYA_OBSERVE");
    settings.observe_all = observe && strcmp(observe, "all") == 0;
    settings.strict_values = number_of("MAYA_STRICT_VALUES", 0) != 0;
    settings.bare = number_of("MAYA_BARE", 0) != 0;
    settings.measure_host = number_of("MAYA_MEASURE_HOST", 0) != 0;
    settings.debug = (int)number_of("MAYA_DEBUG", 0);
    settings.schedule_seed = number_of("MAYA_SCHEDULE_SEED", -1);
    const char *trace = getenv("MAYA_TRACE");
    if (trace) expand_path(settings.trace_path, sizeof settings.trace_path, trace, settings.rank);
    read_text("MAYA_OBSERVER", settings.observer_path, sizeof settings.observer_path);
    read_text("MAYA_COORDINATOR", settings.coordinator, sizeof settings.coordinator);
    read_text("MAYA_COORDINATOR_SECRET", settings.coordinator_secret, sizeof settings.coordinator_secret);
    read_text("MAYA_ZMQ", settings.zmq_path, sizeof settings.zmq_path);
    read_clock();
}

const maya_settings *maya_read_settings(void) {
    pthread_mutex_lock(&settings_lock);
    if (!maya_known_settings) read_settings();
    __atomic_store_n(&maya_known_settings, &settings, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&settings_lock);
    return &settings;
}

void maya_settings_begin_rank(void) { __atomic_store_n(&maya_known_settings, NULL, __ATOMIC_RELEASE); }
