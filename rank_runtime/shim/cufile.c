/* libcufile.so.0: GPUDirect Storage, between files and device memory.
 *
 * A device address is a host address, so a transfer is pread or pwrite at that address with real bytes. Bytes that are
 * read become known. Synchronous calls happen at once, as cuFile's do; the asynchronous ones happen in stream
 * order. Batches, parameters and statistics are not emulated. */

#include "device/device.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

enum {
    CUFILE_SUCCESS = 0,
    CUFILE_INVALID_FILE_TYPE = 5018,
    CUFILE_INVALID_VALUE = 5022,
    CUFILE_ALREADY_REGISTERED = 5023,
    CUFILE_NOT_REGISTERED = 5024,
    CUFILE_OUT_OF_MEMORY = 5043,
    CUFILE_CUDA_ERROR = 5011,
};

typedef struct {
    int error, cuda_error;
} cufile_result;

typedef struct {
    int type; /* 1: a file descriptor */
    union {
        int descriptor;
        void *handle;
    } file;
    const void *operations;
} cufile_description;

typedef struct {
    int descriptor;
} cufile_handle;

static cufile_result result_of(int error) { return (cufile_result){.error = error}; }

/* ---- the driver, which is always available ---- */

static long users;

MAYA_API cufile_result cuFileDriverOpen(void) {
    __atomic_add_fetch(&users, 1, __ATOMIC_RELAXED);
    return result_of(CUFILE_SUCCESS);
}

MAYA_API cufile_result cuFileDriverClose_v2(void) {
    __atomic_sub_fetch(&users, 1, __ATOMIC_RELAXED);
    return result_of(CUFILE_SUCCESS);
}

MAYA_API cufile_result cuFileDriverClose(void) { return cuFileDriverClose_v2(); }

MAYA_API long cuFileUseCount(void) { return __atomic_load_n(&users, __ATOMIC_RELAXED); }

MAYA_API cufile_result cuFileGetVersion(int *version) {
    if (version == NULL) return result_of(CUFILE_INVALID_VALUE);
    *version = 1150; /* 1.15 */
    return result_of(CUFILE_SUCCESS);
}

/* ---- files and buffers ---- */

MAYA_API cufile_result cuFileHandleRegister(cufile_handle **handle, const cufile_description *description) {
    enum { FILE_DESCRIPTOR = 1 };
    if (handle == NULL || description == NULL) return result_of(CUFILE_INVALID_VALUE);
    if (description->type != FILE_DESCRIPTOR) return result_of(CUFILE_INVALID_FILE_TYPE);
    cufile_handle *made = malloc(sizeof *made);
    if (made == NULL) return result_of(CUFILE_OUT_OF_MEMORY);
    made->descriptor = description->file.descriptor;
    *handle = made;
    return result_of(CUFILE_SUCCESS);
}

MAYA_API void cuFileHandleDeregister(cufile_handle *handle) { free(handle); }

/* Registered buffers: a list, because a program has few, and registers each once. */
typedef struct buffer {
    struct buffer *next;
    const void *address;
} buffer;

static pthread_mutex_t buffers_lock = PTHREAD_MUTEX_INITIALIZER;
static buffer *buffers;

MAYA_API cufile_result cuFileBufRegister(const void *address, size_t size, int flags) {
    (void)size, (void)flags;
    if (address == NULL) return result_of(CUFILE_INVALID_VALUE);
    int error = CUFILE_SUCCESS;
    pthread_mutex_lock(&buffers_lock);
    for (buffer *known = buffers; known != NULL; known = known->next) {
        if (known->address == address) error = CUFILE_ALREADY_REGISTERED;
    }
    buffer *added = error == CUFILE_SUCCESS ? malloc(sizeof *added) : NULL;
    if (added != NULL) {
        *added = (buffer){.next = buffers, .address = address};
        buffers = added;
    } else if (error == CUFILE_SUCCESS) {
        error = CUFILE_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&buffers_lock);
    return result_of(error);
}

MAYA_API cufile_result cuFileBufDeregister(const void *address) {
    int error = CUFILE_NOT_REGISTERED;
    pthread_mutex_lock(&buffers_lock);
    for (buffer **link = &buffers; *link != NULL; link = &(*link)->next) {
        if ((*link)->address != address) continue;
        buffer *removed = *link;
        *link = removed->next;
        free(removed);
        error = CUFILE_SUCCESS;
        break;
    }
    pthread_mutex_unlock(&buffers_lock);
    return result_of(error);
}

/* ---- transfers ---- */

typedef ssize_t transfer_function(int descriptor, char *address, size_t size, off_t offset);

static ssize_t read_some(int descriptor, char *address, size_t size, off_t offset) {
    return pread(descriptor, address, size, offset);
}

static ssize_t write_some(int descriptor, char *address, size_t size, off_t offset) {
    return pwrite(descriptor, address, size, offset);
}

/* Transfers all bytes, or as many as the file has. Returns their number, or -1 with errno set, as cuFile reports system errors.
 */
static ssize_t move(transfer_function *some, const cufile_handle *handle, char *address, size_t size, off_t offset) {
    if (handle == NULL || address == NULL) return -CUFILE_INVALID_VALUE;
    size_t done = 0;
    while (done < size) {
        ssize_t moved = some(handle->descriptor, address + done, size - done, offset + (off_t)done);
        if (moved < 0 && errno == EINTR) continue;
        if (moved < 0) return -1;
        if (moved == 0) break;
        done += (size_t)moved;
    }
    if (some == read_some) maya_values_known(address, done);
    return (ssize_t)done;
}

static uint32_t signature_of(const char *call, size_t bytes) {
    char text[96];
    int length = snprintf(text, sizeof text, "{\"call\":\"%s\",\"bytes\":%zu}", call, bytes);
    return maya_intern(text, (size_t)length);
}

/* Not ordered with any stream: as with the real library, the program must synchronize with other uses of the memory. */
MAYA_API ssize_t cuFileRead(cufile_handle *handle, void *base, size_t size, off_t file_offset, off_t buffer_offset) {
    maya_record(MAYA_RECORD_LIBRARY, maya_stream_number(NULL), signature_of(__func__, size), 0, 0);
    return move(read_some, handle, (char *)base + buffer_offset, size, file_offset);
}

MAYA_API ssize_t cuFileWrite(cufile_handle *handle, const void *base, size_t size, off_t file_offset, off_t buffer_offset) {
    maya_record(MAYA_RECORD_LIBRARY, maya_stream_number(NULL), signature_of(__func__, size), 0, 0);
    return move(write_some, handle, (char *)base + buffer_offset, size, file_offset);
}

/* The arguments are read when the stream reaches the transfer, which is cuFile's default. */
typedef struct {
    transfer_function *some;
    const cufile_handle *handle;
    char *base;
    const size_t *size;
    const off_t *file_offset, *buffer_offset;
    ssize_t *moved;
} asynchronous_transfer;

static void run_asynchronous(void *argument) {
    const asynchronous_transfer *request = argument;
    *request->moved =
        move(request->some, request->handle, request->base + *request->buffer_offset, *request->size, *request->file_offset);
}

static cufile_result submit(const char *call, void *stream, const asynchronous_transfer *transfer) {
    if (!transfer->handle || !transfer->base || !transfer->size || !transfer->file_offset || !transfer->buffer_offset ||
        !transfer->moved) {
        return result_of(CUFILE_INVALID_VALUE);
    }
    asynchronous_transfer *argument = malloc(sizeof *argument);
    if (argument == NULL) return result_of(CUFILE_OUT_OF_MEMORY);
    *argument = *transfer;
    maya_command command = {
        .run = run_asynchronous,
        .release = free,
        .argument = argument,
        .kind = MAYA_RECORD_LIBRARY,
        .signature = signature_of(call, *transfer->size),
    };
    int error = maya_submit(stream, &command);
    return error == 0 ? result_of(CUFILE_SUCCESS) : (cufile_result){.error = CUFILE_CUDA_ERROR, .cuda_error = error};
}

MAYA_API cufile_result cuFileReadAsync(cufile_handle *handle, void *base, size_t *size, off_t *file_offset,
                                       off_t *buffer_offset, ssize_t *moved, void *stream) {
    return submit(__func__, stream, &(asynchronous_transfer){read_some, handle, base, size, file_offset, buffer_offset, moved});
}

MAYA_API cufile_result cuFileWriteAsync(cufile_handle *handle, void *base, size_t *size, off_t *file_offset,
                                        off_t *buffer_offset, ssize_t *moved, void *stream) {
    return submit(__func__, stream,
                  &(asynchronous_transfer){write_some, handle, base, size, file_offset, buffer_offset, moved});
}

MAYA_API cufile_result cuFileStreamRegister(void *stream, unsigned flags) {
    (void)stream, (void)flags; /* the flags only disable checks of the real library */
    return result_of(CUFILE_SUCCESS);
}

MAYA_API cufile_result cuFileStreamDeregister(void *stream) {
    (void)stream;
    return result_of(CUFILE_SUCCESS);
}
