/* libcuda: its functions by name. A name has several interfaces: `cuMemPrefetchAsync` asked for by a program of CUDA 12.2 or
 * later is the function `cuMemPrefetchAsync_v2`. */

#define _GNU_SOURCE
#include "cuda_common.h"
#include "driver_versions.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* The CUDA version that a function came with; 0: before the oldest that Maya supports. */
static int version_of(const char *name) {
    static const struct {
        const char *name;
        int version;
    } since[] = {
#define ENTRY(name, version) {#name, version},
        MAYA_DRIVER_VERSIONS(ENTRY)
#undef ENTRY
    };
    for (size_t i = 0; i < sizeof since / sizeof *since; i++) {
        if (strcmp(since[i].name, name) == 0) return since[i].version;
    }
    return 0;
}

MAYA_API CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    (void)flags;
    enum { NEWEST = 4 };
    void *self = dlopen("libcuda.so.1", RTLD_LAZY);
    bool exists = false;
    *function = NULL;
    for (int number = NEWEST; number >= 1 && self && name && *function == NULL; number--) {
        char candidate[128];
        snprintf(candidate, sizeof candidate, number > 1 ? "%s_v%d" : "%s", name, number);
        void *found = dlsym(self, candidate);
        exists = exists || found;
        if (found && version_of(candidate) <= version) *function = found;
    }
    int outcome = *function ? CUDA_ENTRY_POINT_FOUND : exists ? CUDA_ENTRY_POINT_TOO_NEW : CUDA_ENTRY_POINT_NOT_FOUND;
    if (status) *status = outcome;
    return *function ? CUDA_OK : CUDA_NOT_FOUND;
}

MAYA_API CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
