/* Copies and fills: submitted to a stream, recorded, and done with real bytes as far as values.c keeps them.
 *
 * A copy to the host is where a program looks at the device. If the bytes it gets are made up, that is counted and recorded
 * with the op and the source line, and with --strict-values it is an error. */

#include "internal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The addresses tell. */
typedef enum { MAYA_HTOH = 0, MAYA_HTOD = 1, MAYA_DTOH = 2, MAYA_DTOD = 3 } maya_copy_kind;

typedef struct {
    maya_copy copy;
    maya_copy_kind kind;
    bool snapshot;  /* source is our own copy of pageable memory, taken when the copy was submitted */
    bool made_up;   /* out: the host got bytes that nothing produced */
    bool done;      /* out: it ran */
    pthread_t submitter;
    int references; /* the queue's and the submitting thread's */
} copy_job;

static __thread int64_t armed_answer;
static __thread int armed_count;
static __thread bool armed_guess;
static maya_source_finder source_finder;
static maya_op_namer op_namer;

void maya_answer_next_read(int64_t answer, int count, bool guessed) {
    armed_answer = answer;
    armed_count = count;
    armed_guess = guessed;
}

void maya_set_source_finder(maya_source_finder finder) { source_finder = finder; }

void maya_set_op_namer(maya_op_namer namer) { op_namer = namer; }

const char *maya_op_name(void) { return op_namer ? op_namer() : ""; }

/* ---- copies ---- */

static void report_made_up(size_t size, bool find_line) {
    enum { LINES_FOUND = 10000 }; /* finding the line takes Python's lock; a program that polls should not pay for ever */
    static _Atomic int reads;
    char line[512] = "", text[1024];
    if (find_line && source_finder && reads++ < LINES_FOUND) source_finder(line, sizeof line);
    int length = snprintf(text, sizeof text, "{\"read\":\"%s\",\"at\":\"%s\",\"bytes\":%zu}", maya_op_name(), line,
                          size);
    maya_record(MAYA_RECORD_MADE_UP_READ, 0, maya_intern(text, (size_t)length), size, 0);
    if (maya_get_settings()->strict_values) {
        maya_message("--strict-values: %s reads %zu bytes that were not computed%s%s", *maya_op_name() ? maya_op_name() : "the program",
                     size, *line ? ", at " : "", line);
    }
}

static bool answer_read(void *destination, size_t size) {
    if (armed_count <= 0 || size > sizeof armed_answer) return false;
    armed_count--;
    memcpy(destination, &armed_answer, size);
    return true;
}

static void run_copy(void *argument) {
    copy_job *job = argument;
    const maya_copy *copy = &job->copy;
    size_t bytes = copy->width * copy->rows;
    for (size_t row = 0; row < copy->rows; row++) {
        char *destination = (char *)copy->destination + row * copy->destination_pitch;
        const char *source = (const char *)copy->source + row * copy->source_pitch;
        maya_values_copy(destination, source, copy->width);
        if (job->kind != MAYA_DTOH || maya_values_are_known(source, copy->width)) continue;
        if (!answer_read(destination, copy->width) || armed_guess) job->made_up = true;
    }
    /* The submitting thread reports what it can see itself: finding the line takes Python's lock, and a thread that has
     * it may be waiting for this stream. */
    if (job->made_up && !copy->blocking && !pthread_equal(job->submitter, pthread_self())) report_made_up(bytes, false);
    job->done = true;
}

static void release_copy(void *argument) {
    copy_job *job = argument;
    if (__atomic_sub_fetch(&job->references, 1, __ATOMIC_ACQ_REL) > 0) return;
    if (job->snapshot) free((void *)job->copy.source);
    free(job);
}

static maya_copy_kind kind_by_address(const maya_copy *copy) {
    bool from_device = maya_address_device(copy->source) >= 0, to_device = maya_address_device(copy->destination) >= 0;
    return from_device ? (to_device ? MAYA_DTOD : MAYA_DTOH) : (to_device ? MAYA_HTOD : MAYA_HTOH);
}

static bool is_pageable(const void *address) {
    return maya_find_allocation(address).type == MAYA_MEMORY_UNREGISTERED;
}

static uint32_t copy_signature(maya_copy_kind kind, bool pageable, bool between_devices) {
    static const char *const names[] = {"HtoH", "HtoD", "DtoH", "DtoD"};
    char text[64];
    int length = snprintf(text, sizeof text, "{\"copy\":\"%s\"%s}", between_devices ? "PtoP" : names[kind],
                          pageable ? ",\"pageable\":true" : "");
    return maya_intern(text, (size_t)length);
}

/* What the host gets to see in a bare run: nothing is kept, so zeros. */
static int copy_bare(const maya_copy *copy) {
    for (size_t row = 0; row < copy->rows && maya_address_device(copy->destination) < 0; row++) {
        memset((char *)copy->destination + row * copy->destination_pitch, 0, copy->width);
    }
    return CUDA_OK;
}

int maya_copy_submit(void *stream, const maya_copy *given) {
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
    bool between_devices = job->kind == MAYA_DTOD &&
                           maya_address_device(copy->source) != maya_address_device(copy->destination);
    size_t bytes = copy->width * copy->rows;
    bool waits = copy->blocking && !capturing;
    /* the caller may change pageable memory as soon as we return, so a copy that cannot run at once takes its own */
    if (job->kind == MAYA_HTOD && pageable && !capturing && maya_stream_query(stream) != CUDA_OK &&
        copy->rows == 1 && maya_values_room_for(bytes)) {
        void *snapshot = malloc(bytes);
        if (snapshot == NULL) abort();
        memcpy(snapshot, copy->source, bytes);
        copy->source = snapshot;
        job->snapshot = true;
    }
    job->references = 2;
    job->submitter = pthread_self();
    maya_work work = {.run = run_copy, .release = release_copy, .argument = job, .kind = MAYA_RECORD_MEMCPY,
                      .signature = copy_signature(job->kind, pageable, between_devices), .value = bytes};
    int status = maya_submit(stream, &work);
    if (waits && status == CUDA_OK) status = maya_stream_synchronize(stream);
    if (!capturing && job->done && job->made_up) {
        report_made_up(bytes, true);
        if (maya_get_settings()->strict_values) status = CUDA_NOT_PERMITTED;
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
        maya_values_fill((char *)job->address + row * job->pitch, &job->pattern, job->pattern_size, job->width);
    }
}

/* Nearly all fill with zeros. */
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
    if (width == 0 || rows == 0 || maya_get_settings()->bare) return CUDA_OK;
    if (address == NULL) return CUDA_INVALID_VALUE;
    fill_job *job = malloc(sizeof *job);
    if (job == NULL) return CUDA_OUT_OF_MEMORY;
    *job = (fill_job){address, pattern, pattern_size, width, rows, pitch};
    maya_work work = {.run = run_fill, .release = free, .argument = job, .kind = MAYA_RECORD_MEMSET,
                      .signature = fill_signature(pattern), .value = width * rows};
    int status = maya_submit(stream, &work);
    return status == CUDA_OK && blocking && maya_address_device(address) < 0 ? maya_stream_synchronize(stream) : status;
}
