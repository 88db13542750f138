/* Copies and fills: submitted to a stream, recorded, and carried out on the bytes that are known (values.c).
 *
 * A copy to the host is where a program reads the device. A read of placeholders is counted and recorded with its op and source
 * line; with --strict-values it is an error. */

#include "host_values.h"
#include "internal.h"
#include "routing.h"
#include "vector.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum { MAYA_HTOH = 0, MAYA_HTOD = 1, MAYA_DTOH = 2, MAYA_DTOD = 3 } maya_copy_kind;

/* The op and the source line of a read. */
typedef struct {
    char op[256], line[512];
} maya_reader;

typedef struct {
    maya_copy copy;
    maya_copy_kind kind;
    bool snapshot;         /* source is our own copy of pageable memory, taken when the copy was submitted */
    bool from_placeholder; /* the source is host memory with placeholders */
    bool from_zeros;       /* the source is pageable memory that holds zeros only */
    bool unread;           /* source is pageable memory that is too large to keep and may be gone when the copy runs */
    maya_content content;  /* of a copy from the host */
    bool armed;            /* placeholders read as `answer` (maya_answer_next_read) */
    bool is_guess;
    int64_t answer;
    maya_reader *reader; /* of a copy to the host that cannot run at once, so that another thread will run it */
    bool placeholder;    /* out: the host read placeholders ... */
    bool assumed;        /* ... or values that follow from an assumed choice */
    uint32_t choices;    /* the marks of these choices (routing.h) */
    bool given_up;       /* ... because contents of large copies are not kept */
    bool at_once;        /* out: the submitting thread ran it */
    _Atomic bool done;   /* out: it ran */
    pthread_t submitter;
    int references; /* the queue's and the submitting thread's */
} copy_job;

static __thread int64_t armed_answer;
static __thread int armed_count;
static __thread bool armed_guess;
static maya_source_finder source_finder;
static maya_op_namer op_namer;
static maya_content_finder content_finder;
static maya_choice_recorder choice_recorder;

void maya_answer_next_read(int64_t answer, int count, bool guessed) {
    armed_answer = answer;
    armed_count = count;
    armed_guess = guessed;
}

void maya_set_source_finder(maya_source_finder finder) { source_finder = finder; }

void maya_set_content_finder(maya_content_finder finder) { content_finder = finder; }

void maya_set_op_namer(maya_op_namer namer) { op_namer = namer; }

void maya_set_choice_recorder(maya_choice_recorder recorder) { choice_recorder = recorder; }

const char *maya_op_name(void) { return op_namer ? op_namer() : ""; }

/* ---- copies ---- */

/* The op and the source line of the calling thread. */
static void find_reader(maya_reader *reader) {
    enum { LINES_FOUND = 10000 }; /* finding the line takes the GIL, and a polling program should not pay for it forever */
    static _Atomic int reads;
    *reader = (maya_reader){0};
    snprintf(reader->op, sizeof reader->op, "%s", maya_op_name());
    if (source_finder && reads++ < LINES_FOUND) source_finder(reader->line, sizeof reader->line);
}

static void record_read(const maya_reader *reader, size_t size, const char *detail) {
    char text[1024];
    int length =
        snprintf(text, sizeof text, "{\"read\":\"%s\",\"at\":\"%s\",\"bytes\":%zu%s}", reader->op, reader->line, size, detail);
    maya_record(MAYA_RECORD_PLACEHOLDER_READ, 0, maya_intern(text, (size_t)length), size, 0);
}

static void record_assumed_read(const maya_reader *reader, size_t size, uint32_t choices) {
    char detail[64];
    snprintf(detail, sizeof detail, ",\"assumed\":true,\"choices\":%u", choices & ~(MAYA_ROUTED_ROWS | MAYA_ROUTING_MIXED));
    record_read(reader, size, detail);
}

static void report_read(const copy_job *job, const maya_reader *reader) {
    size_t size = job->copy.width * job->copy.rows;
    if (job->assumed && choice_recorder) choice_recorder();
    if (job->assumed && !job->placeholder) {
        record_assumed_read(reader, size, job->choices);
        return;
    }
    record_read(reader, size, job->given_up ? ",\"given_up\":true" : "");
    if (maya_get_settings()->strict_values) {
        maya_message("--strict-values: %s reads %zu bytes of placeholder values%s%s", *reader->op ? reader->op : "the program",
                     size, *reader->line ? ", at " : "", reader->line);
    }
}

void maya_record_assumed_read(size_t size, uint32_t choices) {
    maya_reader reader;
    find_reader(&reader);
    if (choice_recorder) choice_recorder();
    record_assumed_read(&reader, size, choices);
}

bool maya_host_report_read(const char *op, size_t size) {
    maya_reader reader;
    find_reader(&reader);
    snprintf(reader.op, sizeof reader.op, "%s", op);
    report_read(&(copy_job){.copy = {.width = size, .rows = 1}, .placeholder = true}, &reader);
    return maya_get_settings()->strict_values;
}

/* The copy may run in another thread, so it takes the submitting thread's armed answer along. */
static void take_answer(copy_job *job) {
    if (armed_count <= 0 || job->kind != MAYA_DTOH || job->copy.width > sizeof job->answer) return;
    armed_count--;
    job->armed = true;
    job->answer = armed_answer;
    job->is_guess = armed_guess;
}

static void run_copy(void *argument) {
    copy_job *job = argument;
    const maya_copy *copy = &job->copy;
    const size_t bytes = copy->width * copy->rows;
    for (size_t row = 0; row < copy->rows; row++) {
        char *destination = (char *)copy->destination + row * copy->destination_pitch;
        const char *source = (const char *)copy->source + row * copy->source_pitch;
        if (job->from_placeholder) maya_values_set_placeholder(destination, copy->width);
        else if (job->from_zeros) maya_values_fill(destination, &(char){0}, 1, copy->width, bytes);
        else if (job->unread) maya_values_give_up(destination, copy->width, bytes, job->content);
        else maya_values_copy_part(destination, source, copy->width, bytes, job->content);
        if (job->kind != MAYA_DTOH) continue;
        job->assumed = job->assumed || maya_values_are_assumed(source, copy->width);
        if (maya_values_are_known(source, copy->width)) continue;
        if (maya_host_makes_placeholders(bytes) && maya_host_is_tracked(destination, copy->width)) continue; /* read later */
        if (job->armed) memcpy(destination, &job->answer, copy->width);
        if (job->armed && !job->is_guess) continue;
        job->placeholder = true;
        job->given_up = job->given_up || maya_values_were_given_up(source, copy->width);
    }
    if (pthread_equal(job->submitter, pthread_self()))
        job->at_once = true; /* then the submitting thread reports the read itself */
    else if ((job->placeholder || job->assumed) && !copy->blocking)
        report_read(job, job->reader ? job->reader : &(maya_reader){0});
    job->done = true;
}

static void release_copy(void *argument) {
    copy_job *job = argument;
    if (__atomic_sub_fetch(&job->references, 1, __ATOMIC_ACQ_REL) > 0) return;
    if (job->snapshot) free((void *)job->copy.source);
    free(job->reader);
    free(job);
}

/* Our own copy of the rows. */
static void take_snapshot(copy_job *job) {
    maya_copy *copy = &job->copy;
    char *snapshot = must_alloc(malloc(copy->width * copy->rows));
    for (size_t row = 0; row < copy->rows; row++) {
        memcpy(snapshot + row * copy->width, (const char *)copy->source + row * copy->source_pitch, copy->width);
    }
    copy->source = snapshot;
    copy->source_pitch = copy->width;
    job->snapshot = true;
}

static maya_copy_kind kind_by_address(const maya_copy *copy) {
    bool from_device = maya_address_device(copy->source) >= 0, to_device = maya_address_device(copy->destination) >= 0;
    return from_device ? (to_device ? MAYA_DTOD : MAYA_DTOH) : (to_device ? MAYA_HTOD : MAYA_HTOH);
}

static bool has_host_placeholder(const maya_copy *copy) {
    for (size_t row = 0; row < copy->rows; row++) {
        if (maya_host_has_placeholder((const char *)copy->source + row * copy->source_pitch, copy->width)) return true;
    }
    return false;
}

static bool has_zeros_only(const maya_copy *copy) {
    if (!maya_host_is_large(copy->width * copy->rows)) return false;
    for (size_t row = 0; row < copy->rows; row++) {
        if (!maya_host_holds_zeros((const char *)copy->source + row * copy->source_pitch, copy->width)) return false;
    }
    return true;
}

static bool is_pageable(const void *address) { return maya_find_allocation(address).type == MAYA_MEMORY_UNREGISTERED; }

static uint32_t copy_signature(maya_copy_kind kind, bool pageable, bool between_devices) {
    static const char *const names[] = {"HtoH", "HtoD", "DtoH", "DtoD"};
    char text[64];
    int length = snprintf(text, sizeof text, "{\"copy\":\"%s\"%s}", between_devices ? "PtoP" : names[kind],
                          pageable ? ",\"pageable\":true" : "");
    return maya_intern(text, (size_t)length);
}

/* In a bare run nothing is kept, so the host reads zeros. */
static int copy_bare(const maya_copy *copy) {
    for (size_t row = 0; row < copy->rows && maya_address_device(copy->destination) < 0; row++) {
        memset((char *)copy->destination + row * copy->destination_pitch, 0, copy->width);
    }
    return CUDA_OK;
}

int maya_copy_submit(void *stream, const maya_copy *given) {
    MAYA_OWN_TIME;
    if (given->width == 0 || given->rows == 0) return CUDA_OK;
    if (given->destination == NULL || given->source == NULL) return CUDA_INVALID_VALUE;
    if (maya_get_settings()->bare) return copy_bare(given);
    copy_job *job = calloc(1, sizeof *job);
    if (job == NULL) return CUDA_OUT_OF_MEMORY;
    job->copy = *given;
    maya_copy *copy = &job->copy;
    job->kind = kind_by_address(copy);
    const void *host_side = job->kind == MAYA_HTOD ? copy->source : copy->destination;
    bool pageable = (job->kind == MAYA_HTOD || job->kind == MAYA_DTOH) && is_pageable(host_side);
    bool capturing = maya_stream_is_capturing(stream);
    if (capturing && copy->blocking) {
        free(job);
        return CUDA_CAPTURE_UNSUPPORTED;
    }
    if (job->kind == MAYA_DTOH && pageable && !capturing) copy->blocking = true;
    bool between_devices =
        job->kind == MAYA_DTOD && maya_address_device(copy->source) != maya_address_device(copy->destination);
    size_t bytes = copy->width * copy->rows;
    bool waits = copy->blocking && !capturing;
    /* The caller may change pageable memory as soon as we return, so a copy that cannot run at once takes a snapshot. */
    bool from_pageable = job->kind == MAYA_HTOD && pageable && !capturing;
    job->content = job->kind == MAYA_HTOD && content_finder ? content_finder() : MAYA_CONTENT_OTHER;
    job->from_placeholder = job->kind == MAYA_HTOD && has_host_placeholder(copy);
    job->from_zeros = from_pageable && !job->from_placeholder && has_zeros_only(copy);
    bool is_kept = !from_pageable || job->from_zeros || maya_values_room_for(copy->destination, bytes, job->content);
    job->unread = !is_kept || job->from_placeholder || job->from_zeros;
    if (from_pageable && !job->unread && !maya_stream_is_idle(stream)) take_snapshot(job);
    take_answer(job);
    if (job->kind == MAYA_DTOH) job->choices = maya_routing_marks(copy->source, copy->width);
    /* The thread that runs the copy later must not search for the line itself: that takes the GIL, and a thread that holds it
     * may be waiting for this stream. */
    if (job->kind == MAYA_DTOH && !capturing && !waits && !maya_stream_is_idle(stream)) {
        job->reader = must_alloc(malloc(sizeof *job->reader));
        find_reader(job->reader);
    }
    job->references = 2;
    job->submitter = pthread_self();
    maya_command command = {.run = run_copy,
                            .release = release_copy,
                            .argument = job,
                            .kind = MAYA_RECORD_MEMCPY,
                            .signature = copy_signature(job->kind, pageable, between_devices),
                            .value = bytes};
    int status = maya_submit(stream, &command);
    if (waits && status == CUDA_OK) status = maya_stream_synchronize(stream);
    /* The stream was idle when checked, but other work got in before the copy. */
    if (from_pageable && !job->snapshot && !job->unread && !job->done) maya_stream_drain(stream);
    if (status == CUDA_OK && !capturing && (waits || job->at_once) && (job->placeholder || job->assumed)) {
        maya_reader reader;
        find_reader(&reader);
        report_read(job, &reader);
        if (job->placeholder && maya_get_settings()->strict_values) status = CUDA_NOT_PERMITTED;
    }
    release_copy(job);
    return status;
}

/* ---- fills ---- */

typedef struct {
    void *address;
    uint32_t pattern;
    size_t pattern_size, width, rows, pitch;
} fill_job;

static void run_fill(void *argument) {
    const fill_job *job = argument;
    for (size_t row = 0; row < job->rows; row++) {
        maya_values_fill((char *)job->address + row * job->pitch, &job->pattern, job->pattern_size, job->width,
                         job->width * job->rows);
    }
}

/* Remembers the last pattern: nearly all fills write zeros. */
static uint32_t fill_signature(uint32_t pattern) {
    static __thread uint32_t last_pattern, last_signature;
    if (last_signature == 0 || last_pattern != pattern) {
        char text[48];
        int length = snprintf(text, sizeof text, "{\"memset\":%u}", pattern);
        last_pattern = pattern;
        last_signature = maya_intern(text, (size_t)length);
    }
    return last_signature;
}

int maya_fill_submit(void *stream, void *address, uint32_t pattern, size_t pattern_size, size_t width, size_t rows,
                     size_t pitch, bool blocking) {
    MAYA_OWN_TIME;
    if (width == 0 || rows == 0 || maya_get_settings()->bare) return CUDA_OK;
    if (address == NULL) return CUDA_INVALID_VALUE;
    fill_job *job = malloc(sizeof *job);
    if (job == NULL) return CUDA_OUT_OF_MEMORY;
    *job = (fill_job){address, pattern, pattern_size, width, rows, pitch};
    maya_command command = {.run = run_fill,
                            .release = free,
                            .argument = job,
                            .kind = MAYA_RECORD_MEMSET,
                            .signature = fill_signature(pattern),
                            .value = width * rows};
    int status = maya_submit(stream, &command);
    return status == CUDA_OK && blocking && maya_address_device(address) < 0 ? maya_stream_synchronize(stream) : status;
}
