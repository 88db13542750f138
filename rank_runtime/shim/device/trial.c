/* Trials: work that a compiler launches to choose between candidates (rank_runtime/zygote/compile_trials.py).
 *
 * In: begin and end, on the thread that tries. Out: the time of the thread's work on the device. A trial depends on what a
 * cache already holds, and the prediction must not, so a trial leaves no record and takes no time on the virtual clock. If all
 * of its memory is freed with it, that is not recorded either. Collectives are recorded in any case, because other ranks take
 * part in them. */

#define _GNU_SOURCE
#include "clock_internal.h"
#include "trial.h"

#include <stdlib.h>

/* ---- memory ---- */

/* Memory allocated in a trial and not freed yet, a handful. As in records: an address, or the number of physical memory. Under
 * the recorder's lock. */
static MAYA_VECTOR(uint64_t) hidden;

static bool was_hidden(uint64_t handle) {
    for (size_t i = 0; i < hidden.count; i++) {
        if (hidden.items[i] != handle) continue;
        hidden.items[i] = hidden.items[--hidden.count];
        return true;
    }
    return false;
}

/* Memory is freed for the trace if the trace has its allocation, whoever frees it. */
static bool hides_memory(const maya_thread *thread, maya_record_kind kind, uint64_t handle) {
    bool is_hidden = false;
    pthread_mutex_lock(&maya_recorder_lock);
    if (kind == MAYA_RECORD_FREE) is_hidden = was_hidden(handle);
    else if (thread->memory_trials > 0) *maya_vector_add(&hidden) = handle;
    pthread_mutex_unlock(&maya_recorder_lock);
    return is_hidden || (kind == MAYA_RECORD_MALLOC && thread->memory_trials > 0);
}

/* ---- time ---- */

typedef MAYA_VECTOR(const clock_duration *) durations;

static bool is_device_work(maya_record_kind kind) {
    return kind == MAYA_RECORD_KERNEL || kind == MAYA_RECORD_LIBRARY || kind == MAYA_RECORD_MEMCPY ||
           kind == MAYA_RECORD_MEMSET;
}

/* The recorder's lock is held. */
static void add_work(maya_thread *thread, maya_record_kind kind, uint32_t signature, uint64_t value) {
    if (thread->trial_durations == NULL) thread->trial_durations = must_alloc(calloc(1, sizeof(durations)));
    durations *found = thread->trial_durations;
    maya_trace_record record = {.kind = (uint8_t)kind, .signature = signature, .value = value};
    *maya_vector_add(found) = clock_duration_of(thread, &record);
}

bool maya_trial_hides(maya_thread *thread, maya_record_kind kind, uint32_t signature, uint64_t value) {
    if (kind == MAYA_RECORD_MALLOC || kind == MAYA_RECORD_FREE) return hides_memory(thread, kind, value);
    if (thread->trials == 0 || kind == MAYA_RECORD_COLLECTIVE || kind == MAYA_RECORD_STREAM_CREATE) return false;
    if (is_device_work(kind) && maya_clock_runs()) {
        pthread_mutex_lock(&maya_recorder_lock);
        add_work(thread, kind, signature, value);
        pthread_mutex_unlock(&maya_recorder_lock);
    }
    return true;
}

/* ---- for Python ---- */

MAYA_API void maya_trial_begin(int hides_memory) {
    maya_this_thread()->trials++;
    maya_this_thread()->memory_trials += hides_memory != 0;
}

MAYA_API void maya_trial_end(int hides_memory) {
    maya_thread *thread = maya_this_thread();
    thread->memory_trials -= hides_memory != 0;
    if (--thread->trials > 0 || thread->trial_durations == NULL) return;
    free(((durations *)thread->trial_durations)->items);
    free(thread->trial_durations);
    thread->trial_durations = NULL;
}

/* Nanoseconds of the device work that this thread has launched in the trial since the last call; -1 without a virtual
 * clock. */
MAYA_API int64_t maya_trial_ns(void) {
    durations *found = maya_this_thread()->trial_durations;
    if (!maya_clock_runs()) return -1;
    if (found == NULL) return 0;
    uint64_t ns = clock_sum(found->items, found->count);
    found->count = 0;
    return (int64_t)ns;
}
