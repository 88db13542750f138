/* Interprocess events: two counters in a page of a memory file, which other processes open through /proc. */

#define _GNU_SOURCE
#include "engine.h"
#include "vector.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };

typedef struct {
    char magic[8];
    int32_t process, file_descriptor;
} event_handle;

static const char event_magic[8] = "MAYAEVT";

typedef struct {
    shared_event *shared;
    uint64_t count;
} completion;

static void complete(void *argument) {
    completion *done = argument;
    done->shared->completed = done->count;
}

void maya_shared_event_record(shared_event *shared, maya_stream *stream) {
    completion *done = must_alloc(malloc(sizeof *done));
    *done = (completion){.shared = shared, .count = ++shared->recorded};
    maya_command command = {.run = complete, .release = free, .argument = done, .unrecorded = true};
    maya_submit_to(stream, &command, 0);
}

void maya_shared_event_close(shared_event *shared) { munmap(shared, PAGE); }

static shared_event *map_page(int file) {
    void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return page == MAP_FAILED ? NULL : page;
}

/* The file stays open until the process ends: others may open it at any time. */
int maya_event_export(maya_event *event, unsigned char handle[64]) {
    if (!(event->flags & MAYA_EVENT_INTERPROCESS)) return CUDA_INVALID_HANDLE;
    int file = maya_share_nothing(PAGE);
    event->shared = file < 0 ? NULL : map_page(file);
    if (event->shared == NULL) return CUDA_OUT_OF_MEMORY;
    if (event->recorded) maya_shared_event_record(event->shared, event->stream);
    event_handle out = {.process = getpid(), .file_descriptor = file};
    memcpy(out.magic, event_magic, sizeof out.magic);
    memset(handle, 0, 64);
    memcpy(handle, &out, sizeof out);
    return CUDA_OK;
}

int maya_event_open(const unsigned char handle[64], maya_event **event) {
    event_handle in;
    memcpy(&in, handle, sizeof in);
    if (memcmp(in.magic, event_magic, sizeof in.magic) != 0) return CUDA_INVALID_VALUE;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", in.process, in.file_descriptor);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) {
        maya_message("cannot open the event that process %d exported (%s): %s", in.process, path, strerror(errno));
        return CUDA_INVALID_VALUE;
    }
    shared_event *shared = map_page(file);
    close(file);
    if (shared == NULL) return CUDA_OUT_OF_MEMORY;
    int status = maya_event_create(MAYA_EVENT_DISABLE_TIMING | MAYA_EVENT_INTERPROCESS, event);
    if (status == CUDA_OK) (*event)->shared = shared;
    return status;
}
