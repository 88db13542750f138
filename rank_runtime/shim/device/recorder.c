/* The recorder: turns the program's calls into the trace of this rank.
 *
 * In: records, from any thread, in the order of submission, and the strings they refer to by number (intern.c). Out: the trace
 * file (recorder_file.c), in blocks of 4096 records, column by column (recorder_column.h). The process has one buffer under one
 * lock. Records are encoded into it a few dozen at a time, so that each column is visited once for all of them.
 *
 * The virtual clock sees every record before the file does and does not need the file: if the file can no longer be written (a
 * full disk), or has as many steps as the settings allow, the trace ends there, and later records go to the clock alone.
 *
 * A block is written when it is full, when a record finds it older than a second, by maya_record_flush (after every step of an
 * optimizer), and when the process exits. If a signal kills the process, buffered records are lost, and the file is valid up to
 * there. exec ends the trace like a crash. A forked child drops the parent's buffer and records into a file of its own; it
 * keeps all interned strings, because callers keep their numbers. */
#define _GNU_SOURCE
#include "recorder.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "device.h"
#include "host_time.h"
#include "process.h"
#include "intern.h"
#include "late_rank.h"
#include "recorder_clock.h"
#include "recorder_column.h"
#include "recorder_file.h"
#include "trial.h"
#include "vector.h"
#include "virtual_clock.h"

enum { STAGED = 64, KINDS = 256, STRINGS_PER_BLOCK = MAYA_BLOCK_PIECES - 1 };

static const uint64_t NS_PER_SECOND = 1000000000;
static const uint64_t OLDEST_BLOCK_NS = 1000000000;

typedef enum { UNDECIDED, RECORDING, OFF } recorder_state;
static _Atomic recorder_state state;

static _Atomic uint64_t clock_start_ns; /* of maya_clock_ns; 0: not begun */
static _Atomic uint32_t threads_seen;
static _Atomic uint32_t ops_begun;

typedef maya_trace_record record;

pthread_mutex_t maya_recorder_lock = PTHREAD_MUTEX_INITIALIZER; /* guards all of the following, and the file */
static record staged[STAGED];
static maya_column columns[MAYA_COLUMNS];
static uint64_t previous[MAYA_FIRST_COLUMN_BY_KIND];
static uint64_t previous_by_kind[MAYA_COLUMNS - MAYA_FIRST_COLUMN_BY_KIND][KINDS];
static uint32_t buffered;                           /* records in the columns, and ... */
static uint32_t staged_count;                       /* ... before them, in `staged` */
static uint64_t host_times[MAYA_RECORDS_PER_BLOCK]; /* of all these records, if measured */
static uint64_t block_began_ns;
static uint64_t last_ns;                /* of the last record that is no op */
static const maya_string *last_written; /* the last string that is in the file */
static bool file_is_lost;               /* it could not be opened or written */
static bool limit_is_reached;           /* no more is to be recorded ... */
static maya_trace_limit limit;          /* ... and what the file says about it; before, only `steps` counts */
static uint64_t operations;             /* recorded since the last step of an optimizer */
static pid_t recording_process;
maya_record_listener maya_clock_listener;
static maya_op_signer op_signer;
static maya_trace_end written; /* totals of the file */

/* ---- time and threads ---- */

static uint64_t date_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * NS_PER_SECOND + (uint64_t)now.tv_nsec;
}

uint64_t maya_now_ns(void) {
    uint64_t start = atomic_load_explicit(&clock_start_ns, memory_order_relaxed);
    uint64_t now = maya_clock_ns();
    if (!start) {
        if (atomic_compare_exchange_strong(&clock_start_ns, &start, now)) return 0;
        now = maya_clock_ns(); /* another thread has set the start, perhaps after we read the clock */
    }
    return now > start ? now - start : 0;
}

maya_thread *maya_this_thread(void) {
    static __thread maya_thread thread;
    if (!thread.number) thread.number = atomic_fetch_add(&threads_seen, 1) + 1;
    return &thread;
}

void maya_set_op_signer(maya_op_signer signer) { op_signer = signer; }

uint32_t maya_signature_with_op(uint32_t signature) {
    static const char between[] = ",\"from\":";
    uint32_t op = maya_this_thread()->current_op && op_signer ? op_signer() : 0;
    const maya_string *plain = maya_string_numbered(signature), *from = maya_string_numbered(op);
    if (plain == NULL || from == NULL || plain->length == 0) return signature;
    size_t kept = plain->length - 1, length = kept + sizeof between - 1 + from->length + 1;
    char *text = must_alloc(malloc(length));
    memcpy(text, plain->text, kept); /* without its closing brace */
    memcpy(text + kept, between, sizeof between - 1);
    memcpy(text + kept + sizeof between - 1, from->text, from->length);
    text[length - 1] = '}';
    uint32_t number = maya_intern(text, length);
    free(text);
    return number;
}

uint32_t maya_next_op(void) {
    uint32_t number = atomic_fetch_add_explicit(&ops_begun, 1, memory_order_relaxed) + 1;
    return number ? number : maya_next_op(); /* 0 is no op; long programs begin again */
}

/* ---- writing; the caller holds the lock ---- */

static bool write_strings(void) {
    uint8_t lengths[STRINGS_PER_BLOCK * MAYA_LONGEST_VARINT];
    struct iovec pieces[1 + STRINGS_PER_BLOCK];
    for (;;) {
        const maya_string *last = last_written;
        uint8_t *end = lengths;
        uint32_t count = 0;
        const maya_string *string;
        while (count < STRINGS_PER_BLOCK && (string = maya_string_after(last))) {
            end = maya_varint(end, string->length);
            pieces[++count] = (struct iovec){(void *)string->text, string->length};
            last = string;
        }
        if (!count) return true;
        pieces[0] = (struct iovec){lengths, (size_t)(end - lengths)};
        if (!maya_trace_file_append(MAYA_BLOCK_STRINGS, count, pieces, 1 + (int)count)) return false;
        last_written = last;
        written.strings += count;
    }
}

#define ENCODE(column, field) \
    { \
        uint8_t *to = maya_column_open(&columns[column]); \
        uint64_t before = previous[column]; \
        for (uint32_t i = 0; i < staged_count; before = staged[i++].field) \
            to = maya_column_append(to, staged[i].field, before); \
        previous[column] = before; \
        maya_column_close(&columns[column], to); \
    }

#define ENCODE_IN_RUNS(column, field) \
    { \
        uint8_t *to = maya_column_open(&columns[column]); \
        uint64_t before = previous[column]; \
        uint32_t zeros = columns[column].zeros; \
        for (uint32_t i = 0; i < staged_count; before = staged[i++].field) \
            to = maya_column_append_in_runs(to, &zeros, staged[i].field, before); \
        previous[column] = before; \
        columns[column].zeros = zeros; \
        maya_column_close(&columns[column], to); \
    }

#define ENCODE_BY_KIND(column, field) \
    { \
        uint8_t *to = maya_column_open(&columns[column]); \
        for (uint32_t i = 0; i < staged_count; i++) { \
            uint64_t *before = &previous_by_kind[column - MAYA_FIRST_COLUMN_BY_KIND][staged[i].kind]; \
            to = maya_column_append(to, staged[i].field, *before); \
            *before = staged[i].field; \
        } \
        maya_column_close(&columns[column], to); \
    }

static void encode_staged(void) {
    MAYA_FOR_EACH_COLUMN(ENCODE, ENCODE_IN_RUNS, ENCODE_BY_KIND)
    staged_count = 0;
}

static bool write_host_times(void) {
    static uint8_t bytes[MAYA_RECORDS_PER_BLOCK * MAYA_LONGEST_VARINT];
    if (!maya_measures_host || !buffered) return true;
    uint8_t *end = bytes;
    for (uint32_t i = 0; i < buffered; i++) end = maya_varint(end, host_times[i]);
    return maya_trace_file_append(MAYA_BLOCK_HOST_TIMES, buffered, &(struct iovec){bytes, (size_t)(end - bytes)}, 1);
}

static bool write_records(void) {
    encode_staged();
    if (!buffered) return true;
    uint32_t lengths[MAYA_COLUMNS];
    struct iovec pieces[1 + MAYA_COLUMNS] = {{lengths, sizeof lengths}};
    for (int i = 0; i < MAYA_COLUMNS; i++) {
        lengths[i] = maya_column_significant(&columns[i]);
        pieces[1 + i] = (struct iovec){columns[i].bytes, lengths[i]};
    }
    if (!maya_trace_file_append(MAYA_BLOCK_RECORDS, buffered, pieces, 1 + MAYA_COLUMNS)) return false;
    written.records += buffered;
    return true;
}

static void empty_buffer(void) {
    for (int i = 0; i < MAYA_COLUMNS; i++) columns[i].length = columns[i].zeros = 0;
    memset(previous, 0, sizeof previous);
    memset(previous_by_kind, 0, sizeof previous_by_kind);
    buffered = staged_count = 0;
}

static void flush(void) {
    if (limit_is_reached) return;
    if (maya_trace_file_is_open() && !(write_strings() && write_host_times() && write_records())) file_is_lost = true;
    empty_buffer();
}

/* ---- the limit ---- */

static void write_limit(void) {
    if (!maya_trace_file_is_open()) return;
    struct iovec payload = {&limit, sizeof limit};
    if (!maya_trace_file_append(MAYA_BLOCK_LIMIT, 0, &payload, 1)) file_is_lost = true;
}

static void reach_limit(uint64_t after_operations) {
    flush();
    limit.recorded_steps = limit.steps;
    limit.operations = after_operations;
    limit_is_reached = true;
    write_limit();
}

static bool is_operation(uint8_t kind) {
    return kind == MAYA_RECORD_KERNEL || kind == MAYA_RECORD_LIBRARY || kind == MAYA_RECORD_MEMCPY ||
           kind == MAYA_RECORD_MEMSET || kind == MAYA_RECORD_COLLECTIVE;
}

static void count_operation(void) {
    const maya_settings *settings = maya_get_settings();
    if (settings->record_steps == 0 || (int64_t)++operations < settings->record_operations) return;
    reach_limit(operations);
}

void maya_record_steps(uint64_t steps, bool all_optimizers) {
    const int64_t most = maya_get_settings()->record_steps;
    pthread_mutex_lock(&maya_recorder_lock);
    if (steps > limit.steps) limit.steps = steps;
    operations = 0;
    if (most && all_optimizers && !limit_is_reached && steps >= (uint64_t)most) reach_limit(0);
    pthread_mutex_unlock(&maya_recorder_lock);
}

/* ---- the ends of a process ---- */

static void begin_anew(void) {
    empty_buffer();
    last_written = NULL;
    memset(&written, 0, sizeof written);
    clock_start_ns = last_ns = 0;
    file_is_lost = limit_is_reached = false;
    limit = (maya_trace_limit){0};
    operations = 0;
    recording_process = getpid();
}

void maya_recorder_after_fork(void) {
    maya_trace_file_leave_to_parent();
    begin_anew();
    maya_clock_listener = NULL; /* children of a rank have real time */
    maya_host_time_off();
    maya_this_thread()->is_recorded = false;
    maya_this_thread()->delay_ns = 0;
    maya_this_thread()->trials = maya_this_thread()->memory_trials = 0;
}

void maya_recorder_begin_rank(void) {
    maya_trace_file_is_ours();
    begin_anew();
    maya_clock_listener = NULL;
    maya_host_time_off();
    state = UNDECIDED;
    ops_begun = 0;
    threads_seen = 1;
    *maya_this_thread() = (maya_thread){.number = 1};
}

void maya_record_flush(void) {
    pthread_mutex_lock(&maya_recorder_lock);
    flush();
    pthread_mutex_unlock(&maya_recorder_lock);
}

void maya_record_end(void) {
    if (state != RECORDING || recording_process != getpid()) /* a child of vfork shares our memory */
        return;
    for (int attempt = 0; pthread_mutex_trylock(&maya_recorder_lock); attempt++) {
        if (attempt == 1000) return;
        usleep(1000);
    }
    flush();
    if (limit_is_reached && limit.steps > limit.recorded_steps) write_limit();
    if (maya_trace_file_is_open()) maya_trace_file_append(MAYA_BLOCK_END, 0, &(struct iovec){&written, sizeof written}, 1);
    maya_trace_file_close();
    state = OFF;
    pthread_mutex_unlock(&maya_recorder_lock);
}

/* This library is unloaded last, so the trace includes memory that torch frees while it is torn down. */
__attribute__((destructor)) static void at_unload(void) { maya_record_end(); }

/* ---- recording ---- */

static void decide(void) {
    const maya_settings *settings = maya_get_settings();
    if (settings->bare || !settings->trace_path[0]) {
        state = OFF;
        return;
    }
    static bool flushes_at_exit;
    recording_process = getpid();
    if (!flushes_at_exit) atexit(maya_record_flush); /* the program may crash between exit handlers and at_unload */
    flushes_at_exit = true;
    maya_watch_forks();
    maya_clock_begin();
    maya_host_time_begin();
    state = RECORDING;
}

bool maya_is_recording(void) {
    static pthread_mutex_t deciding = PTHREAD_MUTEX_INITIALIZER;
    recorder_state now = atomic_load_explicit(&state, memory_order_acquire);
    if (now == UNDECIDED && maya_waits_to_appear()) return false;
    if (now == UNDECIDED) {
        pthread_mutex_lock(&deciding);
        if (state == UNDECIDED) decide();
        pthread_mutex_unlock(&deciding);
        now = state;
    }
    return now == RECORDING;
}

/* A record that does not affect the replay leaves its host time to the thread's next record. */
static bool has_host_time(uint8_t kind) {
#define UNREPLAYED(kind) \
    case kind: return false;
    switch ((maya_record_kind)kind) {
        MAYA_FOR_EACH_UNREPLAYED_KIND(UNREPLAYED)
        default: return true;
    }
}

/* Into the buffer that will be written. */
static void buffer(const record *record, maya_thread *thread, uint64_t now_ns) {
    if (!buffered) block_began_ns = now_ns;
    staged[staged_count] = *record;
    if (maya_measures_host) host_times[buffered] = has_host_time(record->kind) ? maya_take_host_time(thread) : 0;
    if (++staged_count == STAGED) encode_staged();
    written.placeholder_reads += record->kind == MAYA_RECORD_PLACEHOLDER_READ;
    if (++buffered == MAYA_RECORDS_PER_BLOCK || now_ns > block_began_ns + OLDEST_BLOCK_NS) flush();
}

static void stage(const record *given, maya_thread *thread, uint64_t now_ns) {
    record record = *given;
    record.thread = thread->number < MAYA_LARGEST_THREAD_NUMBER ? thread->number : MAYA_LARGEST_THREAD_NUMBER;
    record.ops = thread->ops_uncounted;
    if (maya_clock_listener) maya_clock_listener(thread, &record);
    thread->ops_uncounted = 0;
    if (file_is_lost || limit_is_reached) return;
    buffer(&record, thread, now_ns);
    if (is_operation(record.kind)) count_operation();
}

static void stage_thread(maya_thread *thread, uint64_t now_ns) {
    char name[16] = "", text[64] = "{\"thread\":\"";
    pthread_getname_np(pthread_self(), name, sizeof name);
    size_t length = strlen(text);
    for (const char *from = name; *from; from++) /* characters that JSON would have to escape become ? */
        text[length++] = (*from >= ' ' && *from < 127 && *from != '"' && *from != '\\') ? *from : '?';
    length += (size_t)snprintf(text + length, sizeof text - length, "\"}");
    thread->is_recorded = true;
    stage(&(record){.host_ns = now_ns, .signature = maya_intern(text, length), .kind = MAYA_RECORD_THREAD}, thread, now_ns);
}

static void stage_delay(maya_thread *thread, uint64_t now_ns) {
    record delay = {.host_ns = now_ns, .value = thread->delay_ns, .kind = MAYA_RECORD_HOST_DELAY};
    thread->delay_ns = 0;
    stage(&delay, thread, now_ns);
}

/* Makes times monotonic in submission order: they are read under the lock, but processors may differ by some ns. */
static uint64_t not_before_last(uint64_t now_ns) {
    if (now_ns > last_ns) last_ns = now_ns;
    return last_ns;
}

/* The caller holds the lock; `now_ns` is the time of the call (for an op, its end). The thread's name and delay, if not yet
 * recorded, go before the record. */
static void append(const record *record, maya_thread *thread, uint64_t now_ns) {
    if (state != RECORDING) /* it ended while the caller waited for the lock */
        return;
    if (!file_is_lost && !maya_trace_file_is_open() && !maya_trace_file_open(date_ns() - now_ns)) file_is_lost = true;
    if (!thread->is_recorded && thread->number > 1) stage_thread(thread, not_before_last(now_ns));
    if (thread->delay_ns) stage_delay(thread, not_before_last(now_ns));
    stage(record, thread, now_ns);
}

void maya_record_delay_locked(void) {
    maya_thread *thread = maya_this_thread();
    uint64_t delay_ns = thread->delay_ns;
    thread->delay_ns = 0;
    if (delay_ns && state == RECORDING) maya_record_locked(MAYA_RECORD_HOST_DELAY, 0, 0, delay_ns, 0);
}

void maya_record(maya_record_kind kind, uint32_t stream_number, uint32_t signature, uint64_t value, uint8_t flags) {
    MAYA_OWN_TIME;
    maya_thread *thread = maya_this_thread();
    if (kind == MAYA_RECORD_KERNEL || kind == MAYA_RECORD_LIBRARY)
        thread->device_work++; /* also without a trace: the op observer needs it */
    if (!maya_is_recording()) return;
    if (maya_clock_listener && (kind == MAYA_RECORD_KERNEL || kind == MAYA_RECORD_LIBRARY))
        thread->op_signature =
            thread->current_op && op_signer ? op_signer() : 0; /* before taking the lock: it may take the GIL */
    if (maya_trial_hides(thread, kind, signature, value)) return;
    pthread_mutex_lock(&maya_recorder_lock);
    maya_record_locked(kind, stream_number, signature, value, flags);
    pthread_mutex_unlock(&maya_recorder_lock);
    if (maya_clock_listener) maya_clock_after_record();
}

void maya_record_locked(maya_record_kind kind, uint32_t stream_number, uint32_t signature, uint64_t value, uint8_t flags) {
    maya_thread *thread = maya_this_thread();
    /* Blocks are half of all records, and their exact time matters little: they reuse the previous record's. */
    bool is_block = kind == MAYA_RECORD_BLOCK_ALLOC || kind == MAYA_RECORD_BLOCK_FREE;
    uint64_t now_ns = is_block && last_ns ? last_ns : not_before_last(maya_now_ns());
    record record = {
        .host_ns = now_ns,
        .signature = signature,
        .op = thread->current_op,
        .stream = stream_number,
        .value = value,
        .kind = (uint8_t)kind,
        .flags = flags,
    };
    append(&record, thread, now_ns);
}

void maya_record_op(maya_record_kind kind, uint32_t op, uint32_t parent, uint32_t signature, uint64_t start_ns,
                    uint64_t duration_ns, uint32_t sequence) {
    if (!maya_is_recording() || maya_this_thread()->trials > 0) return;
    bool is_long = duration_ns > UINT32_MAX; /* four seconds: an annotation around an epoch */
    uint64_t duration = is_long ? duration_ns / 1000 : duration_ns;
    record record = {
        .host_ns = start_ns,
        .signature = signature,
        .op = op,
        .stream = parent,
        .value = (uint64_t)sequence << 32 | (duration < UINT32_MAX ? duration : UINT32_MAX),
        .kind = (uint8_t)kind,
        .flags = is_long ? MAYA_FLAG_MICROSECONDS : 0,
    };
    pthread_mutex_lock(&maya_recorder_lock);
    append(&record, maya_this_thread(), start_ns + duration_ns);
    pthread_mutex_unlock(&maya_recorder_lock);
}
