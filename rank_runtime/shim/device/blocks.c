/* Blocks: the memory that PyTorch's caching allocator hands out and takes back.
 *
 * The allocator reports every block to the profiler through one exported function of libc10.so, whose name and signature
 * have been the same since torch 1.8. This library is loaded before libc10.so, so its function of that name is the one
 * that is called; it notes the block and passes the call on. */

#define _GNU_SOURCE
#include "internal.h"

#include <dlfcn.h>

typedef struct {
    int8_t type, index;
} c10_device;

enum { C10_CUDA = 1 };

#define REPORT_MEMORY_USAGE _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE

typedef void (*report_function)(void *, int64_t, size_t, size_t, c10_device);

static report_function real_report(void) {
    static report_function real;
    if (real == NULL) {
        void *library = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
        real = library ? (report_function)dlsym(library, "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE") : NULL;
    }
    return real;
}

static void note_block(void *address, int64_t size) {
    size_t bytes = (size_t)(size < 0 ? -size : size);
    /* A block starts and ends its life without known bytes. While streams are held up, work that still uses the previous
     * owner's bytes may be queued; then they are left alone, and whatever is written next replaces them. */
    if (!maya_work_is_queued()) maya_values_made_up(address, bytes);
    maya_record(size < 0 ? MAYA_RECORD_BLOCK_FREE : MAYA_RECORD_BLOCK_ALLOC, 0, maya_bytes_signature(bytes),
                (uint64_t)(uintptr_t)address, 0);
}

MAYA_API void REPORT_MEMORY_USAGE(void *address, int64_t size, size_t allocated, size_t reserved, c10_device device) {
    if (device.type == C10_CUDA && !maya_get_settings()->bare) note_block(address, size);
    report_function real = real_report();
    if (real) real(address, size, allocated, reserved, device);
}
