/* Streams and events, and the order in which work happens.
 *
 * Kernels take no real time, so work runs in the submitting thread if its stream is idle. A stream is blocked while it waits
 * for an event of another blocked stream, for a value in memory, for the user's host function, for another thread that is
 * running this stream's work, or for asynchronous work: a collective that is complete once the other ranks have arrived. Then
 * work queues, and two threads (each started when first needed) carry it out: one for all work, one for the user's host
 * functions, which may block. Work without an effect on memory (a kernel launch) is only recorded; waiting for it means waiting
 * for the work submitted before it.
 *
 * maya_engine_lock is held for bookkeeping only, never while work runs or starts, and no other lock is taken under it. */

#include "engine.h"
#include "recorder.h"
#include "schedule.h"
#include "vector.h"
#include "virtual_clock.h"
#include "watchdogs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

pthread_mutex_t maya_engine_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER;          /* for host threads in wait_until */
static pthread_cond_t command_available = PTHREAD_COND_INITIALIZER; /* for the two worker threads */
static maya_stream *all_streams;
static uint32_t stream_count;
static uint32_t queued_streams; /* streams with queued or asynchronous work */
static bool any_blocking;       /* some stream synchronizes with the default stream */
static bool workers_started[2]; /* for all work, for host functions */
static maya_stream *legacy_streams[MAYA_MAX_DEVICES];
static uint32_t homes[MAYA_MAX_DEVICES]; /* of devices in use: 1 + the number of the default stream */
static bool any_home;
static __thread maya_stream *thread_streams[MAYA_MAX_DEVICES];
static __thread bool is_worker;

/* ---- streams ---- */

/* The record names the default stream of the stream's device, unless that is the first one, and tells whether the two
 * synchronize with each other. */
static void record_creation(uint32_t number, bool blocking, int priority, uint32_t home) {
    char text[64] = "";
    if (blocking && home) snprintf(text, sizeof text, "{\"blocking\":true,\"home\":%u}", home);
    else if (blocking) snprintf(text, sizeof text, "{\"blocking\":true}");
    else if (home) snprintf(text, sizeof text, "{\"home\":%u}", home);
    maya_record(MAYA_RECORD_STREAM_CREATE, number, *text ? maya_intern(text, strlen(text)) : 0, (uint64_t)(int64_t)priority, 0);
    maya_clock_stream_created(number, blocking, home);
}

/* The number of a device's default stream, which identifies the device in records and for the clock: 0 for the first device
 * that the process uses, the only one in most programs. */
static uint32_t home_of(int device) {
    pthread_mutex_lock(&maya_engine_lock);
    bool is_new = homes[device] == 0;
    if (is_new) homes[device] = 1 + (any_home ? ++stream_count : 0);
    any_home = true;
    uint32_t home = homes[device] - 1;
    pthread_mutex_unlock(&maya_engine_lock);
    if (is_new && home) record_creation(home, false, 0, home);
    return home;
}

static maya_stream *new_stream(int device, unsigned flags, int priority, bool is_legacy) {
    uint32_t home = home_of(device);
    maya_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) return NULL;
    *stream = (maya_stream){
        .device = device,
        .flags = flags,
        .priority = priority,
        .is_legacy = is_legacy,
        .host_waits_for = UINT64_MAX,
    };
    pthread_mutex_lock(&maya_engine_lock);
    stream->number = is_legacy ? home : ++stream_count;
    stream->next = all_streams;
    all_streams = stream;
    any_blocking = any_blocking || !(is_legacy || flags & MAYA_STREAM_NON_BLOCKING);
    pthread_mutex_unlock(&maya_engine_lock);
    return stream;
}

static void record_stream(const maya_stream *stream) {
    record_creation(stream->number, !(stream->flags & MAYA_STREAM_NON_BLOCKING), stream->priority, home_of(stream->device));
}

static maya_stream *thread_stream(int device) {
    if (thread_streams[device] == NULL) {
        thread_streams[device] = new_stream(device, 0, 0, false);
        record_stream(thread_streams[device]);
    }
    return thread_streams[device];
}

/* All threads share the legacy stream, and any of them may be the first to use it. */
static maya_stream *legacy_stream(int device) {
    static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&making);
    if (legacy_streams[device] == NULL) legacy_streams[device] = new_stream(device, 0, 0, true);
    pthread_mutex_unlock(&making);
    return legacy_streams[device];
}

maya_stream *maya_stream_resolve(void *handle) {
    uintptr_t value = (uintptr_t)handle;
    if (value > 2) return handle;
    int device = maya_current_device();
    if (value == 2) return thread_stream(device);
    return legacy_streams[device] ? legacy_streams[device] : legacy_stream(device);
}

int maya_stream_create(unsigned flags, int priority, void **stream) {
    int status = maya_use_device(maya_current_device());
    if (status != CUDA_OK) return status;
    maya_stream *made = new_stream(maya_current_device(), flags, priority, false);
    if (made == NULL) return CUDA_OUT_OF_MEMORY;
    record_stream(made);
    *stream = made;
    return CUDA_OK;
}

int maya_stream_destroy(void *handle) {
    if ((uintptr_t)handle <= 2) return CUDA_INVALID_HANDLE;
    maya_stream *stream = handle;
    pthread_mutex_lock(&maya_engine_lock);
    stream->destroyed = true; /* pending work still completes */
    pthread_mutex_unlock(&maya_engine_lock);
    return CUDA_OK;
}

uint32_t maya_stream_number(void *handle) { return maya_stream_resolve(handle)->number; }

bool maya_stream_is_capturing(void *handle) { return maya_stream_resolve(handle)->capture != NULL; }

int maya_stream_info(void *handle, unsigned *flags, int *priority, int *device, uint64_t *id) {
    maya_stream *stream = maya_stream_resolve(handle);
    *flags = stream->flags;
    *priority = stream->priority;
    *device = stream->device;
    *id = stream->is_legacy ? 1 : stream->number + 16u;
    return CUDA_OK;
}

/* ---- the queue of a blocked stream ---- */

static bool compares(const queued_command *item) {
    uint64_t seen = item->watched_wide ? __atomic_load_n((const uint64_t *)item->watched, __ATOMIC_ACQUIRE)
                                       : __atomic_load_n((const uint32_t *)item->watched, __ATOMIC_ACQUIRE);
    switch (item->comparison & 3u) {
        case 0:
            return item->watched_wide ? (int64_t)(seen - item->watched_value) >= 0
                                      : (int32_t)((uint32_t)seen - (uint32_t)item->watched_value) >= 0;
        case 1: return seen == item->watched_value;
        case 2: return (seen & item->watched_value) != 0;
        default: return ~(seen | item->watched_value | (item->watched_wide ? 0 : ~(uint64_t)UINT32_MAX)) != 0;
    }
}

static bool is_ready(const queued_command *item) {
    if (item->awaited && item->awaited->completed < item->awaited_position) return false;
    return item->watched == NULL || compares(item);
}

/* The stream has completed `position`: wake the host threads that wait for it, and the workers only if there may be work for
 * them, because waking them costs more than most work. */
static void complete(maya_stream *stream, uint64_t position) {
    stream->executing = false;
    stream->completed = position;
    if (position >= stream->host_waits_for) {
        stream->host_waits_for = UINT64_MAX; /* a thread that waits for more sets it again */
        pthread_cond_broadcast(&progress);
    }
    if (stream->head || stream->awaiting) pthread_cond_broadcast(&command_available);
}

static queued_command *take_head(maya_stream *stream) {
    queued_command *item = stream->head;
    stream->head = item->next;
    if (stream->head == NULL) {
        stream->tail = NULL;
        __atomic_sub_fetch(&queued_streams, 1, __ATOMIC_RELEASE);
    }
    if (item->awaited) item->awaited->awaiting--;
    return item;
}

/* Run or start the head of `stream`. Called and returns with the lock held. */
static void run_head(maya_stream *stream) {
    queued_command *item = stream->head;
    stream->executing = true;
    uint64_t which = maya_schedule_mix(stream->number, stream->host_functions += item->command.on_host_thread);
    pthread_mutex_unlock(&maya_engine_lock);
    if (item->command.on_host_thread) maya_sleep_ns(maya_schedule_ns(MAYA_HOST_FUNCTION_BEGINS, which));
    if (item->command.start) {
        item->command.start(item->command.argument, stream); /* may be complete, and `item` gone, before it returns */
        pthread_mutex_lock(&maya_engine_lock);
        return;
    }
    if (item->command.run) item->command.run(item->command.argument);
    pthread_mutex_lock(&maya_engine_lock);
    take_head(stream);
    complete(stream, item->position);
    if (item->command.release) {
        pthread_mutex_unlock(&maya_engine_lock);
        item->command.release(item->command.argument);
        pthread_mutex_lock(&maya_engine_lock);
    }
    free(item);
}

void maya_command_done(maya_stream *stream) {
    pthread_mutex_lock(&maya_engine_lock);
    queued_command *item = take_head(stream);
    complete(stream, item->position);
    pthread_mutex_unlock(&maya_engine_lock);
    if (item->command.release) item->command.release(item->command.argument);
    free(item);
}

typedef struct {
    maya_stream *stream;
    uint64_t ns;
} late_end;

static void *end_late(void *argument) {
    late_end end = *(late_end *)argument;
    free(argument);
    maya_sleep_ns(end.ns);
    maya_command_done(end.stream);
    return NULL;
}

void maya_command_done_after(maya_stream *stream, uint64_t ns) {
    enum { STACK = 64 << 10 };
    late_end *end = ns > 0 ? malloc(sizeof *end) : NULL;
    if (end) *end = (late_end){stream, ns};
    if (end && maya_start_thread(end_late, end, STACK)) return;
    free(end);
    maya_command_done(stream);
}

static void *work_forever(void *host_functions) {
    bool mine_are_host_functions = host_functions != NULL;
    is_worker = true;
    pthread_mutex_lock(&maya_engine_lock);
    for (;;) {
        bool ran = false, watching = false;
        for (maya_stream *stream = all_streams; stream; stream = stream->next) {
            while (stream->head && !stream->executing && stream->head->command.on_host_thread == mine_are_host_functions &&
                   is_ready(stream->head)) {
                run_head(stream);
                ran = true;
            }
            if (stream->head && stream->head->watched) watching = true;
        }
        if (ran) continue;
        if (watching) { /* a change of memory notifies no thread */
            struct timespec soon;
            clock_gettime(CLOCK_REALTIME, &soon);
            soon.tv_nsec += 200000;
            if (soon.tv_nsec >= 1000000000) {
                soon.tv_sec++;
                soon.tv_nsec -= 1000000000;
            }
            pthread_cond_timedwait(&command_available, &maya_engine_lock, &soon);
        } else {
            pthread_cond_wait(&command_available, &maya_engine_lock);
        }
    }
    return NULL;
}

/* The thread for all work runs torch's CPU kernels; the user's host functions may need any amount of stack. */
static void start_worker(bool host_functions) {
    enum { COMPUTING_STACK = 1 << 20 };
    if (workers_started[host_functions]) return;
    workers_started[host_functions] = true;
    void *argument = host_functions ? "host functions" : NULL;
    if (!maya_start_thread(work_forever, argument, host_functions ? 0 : COMPUTING_STACK)) {
        maya_message("cannot start a thread for asynchronous work: raise the process limit (ulimit -u)");
        abort();
    }
}

static queued_command *append(maya_stream *stream, queued_command fields) {
    queued_command *item = must_alloc(malloc(sizeof *item));
    *item = fields;
    item->position = ++stream->submitted;
    if (item->command.start) stream->last_collective = item->position;
    item->next = NULL;
    if (stream->tail) stream->tail->next = item;
    else {
        stream->head = item;
        __atomic_add_fetch(&queued_streams, 1, __ATOMIC_RELEASE);
    }
    stream->tail = item;
    if (item->awaited) item->awaited->awaiting++;
    return item;
}

static void enqueue(maya_stream *stream, queued_command fields) {
    queued_command *item = append(stream, fields);
    start_worker(fields.command.on_host_thread);
    bool is_next = item == stream->head && !stream->executing; /* otherwise `complete` wakes the workers in its turn */
    if (is_next && (item->watched || is_ready(item))) pthread_cond_broadcast(&command_available);
}

bool maya_commands_are_queued(void) { return __atomic_load_n(&queued_streams, __ATOMIC_ACQUIRE) != 0; }

static bool is_idle(const maya_stream *stream) { return stream->completed == stream->submitted; }

/* Later work of `stream` waits for all work that `other` has so far. */
static void wait_for_stream(maya_stream *stream, maya_stream *other) {
    if (is_idle(other)) return;
    const queued_command *last = stream->tail;
    if (last && last->awaited == other && last->awaited_position == other->submitted) return;
    enqueue(stream, (queued_command){.awaited = other, .awaited_position = other->submitted});
}

/* The legacy default stream waits for all blocking streams of its device, and they for it. */
static void wait_for_default_stream(maya_stream *stream) {
    if (queued_streams == 0 || stream->flags & MAYA_STREAM_NON_BLOCKING) return;
    if (!stream->is_legacy) {
        if (legacy_streams[stream->device]) wait_for_stream(stream, legacy_streams[stream->device]);
        return;
    }
    for (maya_stream *other = any_blocking ? all_streams : NULL; other; other = other->next) {
        bool is_blocking = !(other->flags & MAYA_STREAM_NON_BLOCKING);
        if (other != stream && other->device == stream->device && is_blocking) wait_for_stream(stream, other);
    }
}

static void record_collective(maya_thread *thread, const maya_command *command, uint32_t record_as) {
    thread->collective = command->ticket ? MAYA_COLLECTIVE_POSTED : MAYA_COLLECTIVE_LOCAL;
    thread->ticket = NULL;
    maya_record(command->kind, record_as, command->signature, command->value, command->flags);
    if (command->ticket) *command->ticket = thread->ticket;
    thread->collective = MAYA_COLLECTIVE_NONE;
}

static bool is_device_work(maya_record_kind kind) {
    return kind == MAYA_RECORD_KERNEL || kind == MAYA_RECORD_LIBRARY || kind == MAYA_RECORD_MEMCPY ||
           kind == MAYA_RECORD_MEMSET;
}

int maya_submit_to(maya_stream *stream, const maya_command *command, uint32_t record_as) {
    MAYA_OWN_TIME;
    if (maya_get_settings()->bare) {
        if (command->release) command->release(command->argument);
        return CUDA_OK;
    }
    maya_command routed;
    if (!command->unrecorded && maya_this_thread()->routed && is_device_work(command->kind)) {
        routed = *command;
        routed.flags |= MAYA_FLAG_ROUTED;
        command = &routed;
    }
    if (!command->unrecorded) {
        maya_thread *thread = maya_this_thread();
        thread->work_stream = stream;
        if (stream->capture == NULL && command->kind == MAYA_RECORD_COLLECTIVE) record_collective(thread, command, record_as);
        else if (stream->capture == NULL)
            maya_record(command->kind, record_as, command->signature, command->value, command->flags);
        else if (command->kind == MAYA_RECORD_KERNEL || command->kind == MAYA_RECORD_LIBRARY) thread->device_work++;
    }
    maya_command captured;
    if (stream->capture && command->kind == MAYA_RECORD_KERNEL && !(command->flags & MAYA_FLAG_FROM_GRAPH)) {
        captured = *command;
        captured.signature = maya_signature_with_op(command->signature); /* no op is running when the graph is launched */
        command = &captured;
    }
    bool only_recorded = command->run == NULL && command->start == NULL && command->release == NULL;
    if (only_recorded && stream->capture == NULL && !maya_commands_are_queued()) return CUDA_OK;
    pthread_mutex_lock(&maya_engine_lock);
    if (stream->capture) {
        maya_capture_append(stream, command, record_as);
        pthread_mutex_unlock(&maya_engine_lock);
        return CUDA_OK;
    }
    wait_for_default_stream(stream);
    bool held_up = stream->executing || stream->head || command->on_host_thread;
    if (only_recorded || held_up) {
        if (!only_recorded) enqueue(stream, (queued_command){.command = *command});
        pthread_mutex_unlock(&maya_engine_lock);
        return CUDA_OK;
    }
    if (command->start) {
        append(stream, (queued_command){.command = *command});
        run_head(stream);
        pthread_mutex_unlock(&maya_engine_lock);
        return CUDA_OK;
    }
    uint64_t position = ++stream->submitted;
    if (command->run) {
        stream->executing = true;
        pthread_mutex_unlock(&maya_engine_lock);
        command->run(command->argument);
        pthread_mutex_lock(&maya_engine_lock);
    }
    complete(stream, position);
    pthread_mutex_unlock(&maya_engine_lock);
    if (command->release) command->release(command->argument);
    return CUDA_OK;
}

int maya_submit(void *handle, const maya_command *command) {
    maya_stream *stream = maya_stream_resolve(handle);
    return maya_submit_to(stream, command, stream->number);
}

int maya_stream_wait_value(void *handle, const void *address, uint64_t value, bool wide, unsigned comparison) {
    maya_stream *stream = maya_stream_resolve(handle);
    queued_command item = {.watched = address, .watched_value = value, .watched_wide = wide, .comparison = comparison};
    pthread_mutex_lock(&maya_engine_lock);
    if (stream->capture) {
        pthread_mutex_unlock(&maya_engine_lock);
        maya_unsupported_detail("cuStreamWaitValue", "inside a graph");
        return CUDA_NOT_SUPPORTED;
    }
    if (!is_idle(stream) || !compares(&item)) enqueue(stream, item);
    pthread_mutex_unlock(&maya_engine_lock);
    return CUDA_OK;
}

void maya_streams_leave_capture(const maya_capture *capture) {
    for (maya_stream *stream = all_streams; stream; stream = stream->next) {
        if (stream->capture == capture) stream->capture = NULL;
    }
}

/* ---- synchronization ---- */

/* Records that the host waits. On the virtual clock the wait ends with maya_clock_end_wait. */
static maya_clock_wait *record_wait(maya_wait_kind kind, uint32_t stream_number, uint64_t value) {
    static const char *const names[] = {
        [MAYA_WAIT_STREAM] = "stream",
        [MAYA_WAIT_EVENT] = "event",
        [MAYA_WAIT_DEVICE] = "device",
    };
    const maya_thread *thread = maya_this_thread();
    if (thread->waits_unrecorded || thread->trials > 0 || thread->debugs || !maya_is_recording()) return NULL;
    char text[32];
    int length = snprintf(text, sizeof text, "{\"wait\":\"%s\"}", names[kind]);
    uint32_t signature = maya_intern(text, (size_t)length);
    pthread_mutex_lock(&maya_recorder_lock);
    maya_record_locked(MAYA_RECORD_SYNCHRONIZE, stream_number, signature, value, 0);
    maya_clock_wait *wait = maya_clock_begin_wait(kind, kind == MAYA_WAIT_EVENT ? (uint32_t)value : stream_number);
    pthread_mutex_unlock(&maya_recorder_lock);
    return wait;
}

/* Polls for a short time. */
static bool comes_true(bool (*is_done)(void *of), void *of) {
    enum { POLLS = 250, EVERY_NS = 200000 };
    for (int i = 0; i < POLLS && !is_done(of); i++) nanosleep(&(struct timespec){.tv_nsec = EVERY_NS}, NULL);
    return is_done(of);
}

/* In a debugger on a hanging rank, waiting for work that can never complete is an error instead of another hang. */
static bool must_not_wait(bool (*is_done)(void *of), void *of) {
    return maya_this_thread()->debugs && !comes_true(is_done, of);
}

static void wait_until(maya_stream *stream, uint64_t position) {
    while (stream->completed < position) {
        if (position < stream->host_waits_for) stream->host_waits_for = position;
        pthread_cond_wait(&progress, &maya_engine_lock);
    }
}

void maya_stream_drain(void *handle) {
    maya_stream *stream = maya_stream_resolve(handle);
    pthread_mutex_lock(&maya_engine_lock);
    wait_until(stream, stream->submitted);
    if (stream->is_legacy) {
        for (maya_stream *other = all_streams; other; other = other->next) {
            if (other->device == stream->device && !(other->flags & MAYA_STREAM_NON_BLOCKING)) {
                wait_until(other, other->submitted);
            }
        }
    }
    pthread_mutex_unlock(&maya_engine_lock);
}

int maya_stream_synchronize(void *handle) {
    MAYA_OWN_TIME;
    maya_stream *stream = maya_stream_resolve(handle);
    if (stream->capture) return CUDA_CAPTURE_UNSUPPORTED;
    if (must_not_wait(maya_stream_is_idle, handle)) return CUDA_NOT_READY;
    maya_clock_wait *wait = record_wait(MAYA_WAIT_STREAM, stream->number, 0);
    maya_stream_drain(handle);
    maya_clock_end_wait(wait);
    return CUDA_OK;
}

bool maya_stream_is_idle(void *handle) {
    maya_stream *stream = maya_stream_resolve(handle);
    pthread_mutex_lock(&maya_engine_lock);
    bool idle = is_idle(stream);
    pthread_mutex_unlock(&maya_engine_lock);
    return idle;
}

/* Work that is done in real time may be in the virtual future, and work in the virtual past will be done shortly. A thread that
 * does nothing but poll waits for it. */
int maya_stream_query(void *handle) {
    MAYA_OWN_TIME;
    maya_stream *stream = maya_stream_resolve(handle);
    if (stream->capture) return CUDA_CAPTURE_UNSUPPORTED;
    if (!maya_clock_is_seen()) return maya_stream_is_idle(handle) ? CUDA_OK : CUDA_NOT_READY;
    if (maya_clock_stream_is_past(stream->number) && comes_true(maya_stream_is_idle, handle)) return CUDA_OK;
    if (!maya_clock_is_polling(stream) || !comes_true(maya_stream_is_idle, handle)) return CUDA_NOT_READY;
    return maya_stream_synchronize(handle);
}

void maya_device_drain(int device) {
    pthread_mutex_lock(&maya_engine_lock);
    if (queued_streams) {
        for (maya_stream *stream = all_streams; stream; stream = stream->next) {
            if (device < 0 || stream->device == device) wait_until(stream, stream->submitted);
        }
    }
    pthread_mutex_unlock(&maya_engine_lock);
}

void maya_device_wait(int device) {
    MAYA_OWN_TIME;
    maya_clock_wait *wait = record_wait(MAYA_WAIT_DEVICE, home_of(device), (uint64_t)device);
    maya_device_drain(device);
    maya_clock_end_wait(wait);
}

static bool is_device_idle(void *unused) {
    (void)unused;
    return !maya_commands_are_queued();
}

int maya_device_synchronize(void) {
    if (must_not_wait(is_device_idle, NULL)) return CUDA_NOT_READY;
    maya_device_wait(maya_current_device());
    return CUDA_OK;
}

/* ---- collectives queued at the end of the program ---- */

bool maya_is_stream_worker(void) { return is_worker; }

bool maya_streams_hold_collectives(void) {
    bool found = false;
    pthread_mutex_lock(&maya_engine_lock);
    for (maya_stream *stream = all_streams; stream && !found; stream = stream->next) {
        found = stream->completed < stream->last_collective;
    }
    pthread_mutex_unlock(&maya_engine_lock);
    return found;
}

void maya_streams_complete_collectives(void) {
    pthread_mutex_lock(&maya_engine_lock);
    for (maya_stream *stream = all_streams; stream; stream = stream->next) wait_until(stream, stream->last_collective);
    pthread_mutex_unlock(&maya_engine_lock);
}

/* ---- events ---- */

static uint32_t event_count;

uint32_t maya_new_event_number(void) { return __atomic_add_fetch(&event_count, 1, __ATOMIC_RELAXED); }

int maya_event_create(unsigned flags, maya_event **event) {
    maya_event *made = calloc(1, sizeof *made);
    if (made == NULL) return CUDA_OUT_OF_MEMORY;
    made->number = maya_new_event_number();
    made->flags = flags;
    *event = made;
    return CUDA_OK;
}

int maya_event_destroy(maya_event *event) {
    if (event->shared) maya_shared_event_close(event->shared);
    maya_clock_forget_event(event->number);
    free(event);
    return CUDA_OK;
}

int maya_event_record(maya_event *event, void *handle) {
    MAYA_OWN_TIME;
    maya_stream *stream = maya_stream_resolve(handle);
    maya_command command = {.kind = MAYA_RECORD_EVENT_RECORD, .value = event->number};
    int status = maya_submit_to(stream, &command, stream->number);
    if (event->shared && stream->capture == NULL) maya_shared_event_record(event->shared, stream);
    pthread_mutex_lock(&maya_engine_lock);
    event->capture = stream->capture;
    if (stream->capture) {
        event->capture_id = maya_capture_id(stream->capture);
    } else {
        event->recorded = true;
        event->stream = stream;
        event->position = stream->submitted;
        event->host_ns = maya_now_ns();
    }
    pthread_mutex_unlock(&maya_engine_lock);
    return status;
}

static bool is_complete(maya_event *event) {
    if (event->stream) return event->stream->completed >= event->position;
    return event->shared == NULL || event->shared->completed >= event->shared->recorded;
}

static bool is_done(void *event) {
    pthread_mutex_lock(&maya_engine_lock);
    bool done = is_complete(event);
    pthread_mutex_unlock(&maya_engine_lock);
    return done;
}

int maya_event_query(maya_event *event) {
    MAYA_OWN_TIME;
    if (event->capture) return CUDA_CAPTURED_EVENT;
    bool is_ours = event->stream != NULL; /* otherwise it belongs to another process or was never recorded */
    if (!maya_clock_is_seen() || !is_ours) {
        return is_done(event) && (!is_ours || maya_watchdog_sees(event, event->number)) ? CUDA_OK : CUDA_NOT_READY;
    }
    if (maya_clock_event_is_past(event->number) && comes_true(is_done, event)) return CUDA_OK;
    if (!maya_clock_is_polling(event) || !comes_true(is_done, event)) return CUDA_NOT_READY;
    return maya_event_synchronize(event);
}

int maya_event_synchronize(maya_event *event) {
    MAYA_OWN_TIME;
    if (event->capture) return CUDA_CAPTURED_EVENT;
    if (must_not_wait(is_done, event)) return CUDA_NOT_READY;
    maya_clock_wait *wait = record_wait(MAYA_WAIT_EVENT, event->stream ? event->stream->number : 0, event->number);
    pthread_mutex_lock(&maya_engine_lock);
    if (event->stream) wait_until(event->stream, event->position);
    pthread_mutex_unlock(&maya_engine_lock);
    while (!is_complete(event)) nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    maya_clock_end_wait(wait);
    return CUDA_OK;
}

int maya_event_elapsed(maya_event *start, maya_event *end, float *milliseconds) {
    if (!start->recorded || !end->recorded || ((start->flags | end->flags) & MAYA_EVENT_DISABLE_TIMING)) {
        return CUDA_INVALID_HANDLE;
    }
    if (start->capture || end->capture || !is_done(start) || !is_done(end)) return CUDA_NOT_READY;
    int64_t ns = (int64_t)(end->host_ns - start->host_ns);
    maya_clock_elapsed(start->number, end->number, &ns); /* in virtual time if the program has the virtual clock */
    *milliseconds = (float)((double)ns / 1e6);
    return CUDA_OK;
}

int maya_stream_wait_event(void *handle, maya_event *event) {
    MAYA_OWN_TIME;
    maya_stream *stream = maya_stream_resolve(handle);
    pthread_mutex_lock(&maya_engine_lock);
    if (event->capture && maya_capture_is_alive(event->capture, event->capture_id)) {
        maya_capture_join(stream, event->capture);
    }
    pthread_mutex_unlock(&maya_engine_lock);
    maya_command command = {.kind = MAYA_RECORD_STREAM_WAIT, .value = event->number};
    if (stream->capture) return maya_submit_to(stream, &command, stream->number);
    maya_record(MAYA_RECORD_STREAM_WAIT, stream->number, 0, event->number, 0);
    pthread_mutex_lock(&maya_engine_lock);
    if (event->stream && event->stream != stream && !is_complete(event)) {
        enqueue(stream, (queued_command){.awaited = event->stream, .awaited_position = event->position});
    } else if (event->stream == NULL && !is_complete(event)) {
        enqueue(stream, (queued_command){.watched = (const void *)&event->shared->completed,
                                         .watched_wide = true,
                                         .watched_value = event->shared->recorded});
    }
    pthread_mutex_unlock(&maya_engine_lock);
    return CUDA_OK;
}

/* ---- streams that the host waits for ---- */

uint32_t maya_streams_awaited(uint32_t *numbers, uint32_t most) {
    uint32_t count = 0;
    pthread_mutex_lock(&maya_engine_lock);
    for (maya_stream *stream = all_streams; stream && count < most; stream = stream->next) {
        bool is_awaited = stream->host_waits_for != UINT64_MAX && stream->completed < stream->host_waits_for;
        if (is_awaited) numbers[count++] = stream->number;
    }
    pthread_mutex_unlock(&maya_engine_lock);
    return count;
}

const pthread_cond_t *maya_streams_condition(void) { return &progress; }

/* ---- forks ---- */

/* The threads that would continue the queued work exist only in the parent. */
void maya_streams_after_fork(void) {
    for (maya_stream *stream = all_streams; stream; stream = stream->next) {
        stream->head = stream->tail = NULL;
        stream->awaiting = 0;
        stream->executing = false;
        stream->completed = stream->submitted;
        stream->host_waits_for = UINT64_MAX;
    }
    queued_streams = 0;
    workers_started[0] = workers_started[1] = false;
    pthread_cond_init(&progress, NULL);
    pthread_cond_init(&command_available, NULL);
}
