/* libcuda: modules (images of kernels loaded at run time, as Triton and NVRTC users do), functions and launches.
 *
 * From a cubin, which is an ELF file, the names and resources of kernels are read. Other images (PTX text, fat binaries, images
 * of the fake NVRTC) count as containing every kernel that a program looks up. */

#include "cuda_common.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    void *image; /* a copy of the cubin; NULL for other images */
} *CUmodule;

static CUresult load(CUmodule *module, const void *image) {
    CUmodule made = malloc(sizeof *made);
    if (made == NULL) return CUDA_OUT_OF_MEMORY;
    made->image = NULL;
    size_t size = maya_cubin_size(image);
    if (size > 0) {
        made->image = malloc(size);
        if (made->image == NULL) abort();
        memcpy(made->image, image, size);
    }
    *module = made;
    return CUDA_OK;
}

MAYA_API CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    return image ? load(module, image) : CUDA_INVALID_VALUE;
}

MAYA_API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options, void **values) {
    (void)count;
    (void)options;
    (void)values;
    return cuModuleLoadData(module, image);
}

MAYA_API CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) { return cuModuleLoadData(module, image); }

MAYA_API CUresult cuModuleLoad(CUmodule *module, const char *path) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat about;
    if (file < 0) return CUDA_FILE_NOT_FOUND;
    void *image = fstat(file, &about) == 0 ? mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, file, 0) : MAP_FAILED;
    close(file);
    if (image == MAP_FAILED) return CUDA_INVALID_IMAGE;
    CUresult status = load(module, image);
    munmap(image, (size_t)about.st_size);
    return status;
}

MAYA_API CUresult cuModuleUnload(CUmodule module) {
    free(module->image);
    free(module);
    return CUDA_OK;
}

MAYA_API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    maya_cubin_kernel resources;
    if (module->image == NULL) {
        *function = maya_kernel_named(name, NULL);
        return CUDA_OK;
    }
    if (!maya_cubin_find(module->image, name, &resources)) return CUDA_NOT_FOUND;
    *function = maya_kernel_named(name, &resources);
    return CUDA_OK;
}

/* ---- linking; the result is an image like any other ---- */

typedef struct {
    char image[64];
} *CUlinkState;

MAYA_API CUresult cuLinkCreate_v2(unsigned count, int *options, void **values, CUlinkState *state) {
    (void)count;
    (void)options;
    (void)values;
    *state = calloc(1, sizeof **state);
    if (*state == NULL) return CUDA_OUT_OF_MEMORY;
    snprintf((*state)->image, sizeof(*state)->image, "// linked by the virtual device");
    return CUDA_OK;
}

MAYA_API CUresult cuLinkAddData_v2(CUlinkState state, int type, void *data, size_t size, const char *name, unsigned count,
                                   int *options, void **values) {
    (void)type, (void)data, (void)size, (void)name, (void)count, (void)options, (void)values;
    return state ? CUDA_OK : CUDA_INVALID_HANDLE;
}

MAYA_API CUresult cuLinkComplete(CUlinkState state, void **image, size_t *size) {
    *image = state->image;
    *size = strlen(state->image) + 1;
    return CUDA_OK;
}

MAYA_API CUresult cuLinkDestroy(CUlinkState state) {
    free(state);
    return CUDA_OK;
}

/* ---- functions ---- */

MAYA_API CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function) {
    enum {
        MAX_THREADS,
        SHARED,
        CONSTANT,
        LOCAL,
        REGISTERS,
        PTX_VERSION,
        BINARY_VERSION,
        CACHE_MODE,
        MAX_DYNAMIC_SHARED,
        ATTRIBUTES = 16
    };
    const maya_device_properties *device = &maya_get_settings()->device;
    const maya_cubin_kernel *resources = maya_kernel_resources(function);
    switch (attribute) {
        case MAX_THREADS: *value = 1024; break;
        case SHARED: *value = resources ? resources->shared_bytes : 0; break;
        case REGISTERS: *value = resources ? resources->registers : 32; break;
        case PTX_VERSION:
        case BINARY_VERSION: *value = device->compute_major * 10 + device->compute_minor; break;
        case MAX_DYNAMIC_SHARED: *value = (int)device->shared_per_block; break;
        default: *value = 0; break; /* no constant or local memory, no preference, no required cluster */
    }
    return attribute >= 0 && attribute < ATTRIBUTES ? CUDA_OK : CUDA_INVALID_VALUE;
}

MAYA_API CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
    enum { MAX_DYNAMIC_SHARED = 8 };
    if (function == NULL) return CUDA_INVALID_HANDLE;
    bool too_much = attribute == MAX_DYNAMIC_SHARED && value > maya_get_settings()->device.shared_per_block_optin;
    return too_much ? CUDA_INVALID_VALUE : CUDA_OK;
}

MAYA_API CUresult cuFuncSetCacheConfig(CUfunction function, int configuration) {
    (void)configuration;
    return function ? CUDA_OK : CUDA_INVALID_HANDLE;
}

MAYA_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int block_size,
                                                              size_t shared_bytes) {
    (void)function;
    *blocks = maya_occupancy(block_size, shared_bytes);
    return CUDA_OK;
}

typedef struct {
    unsigned grid[3], block[3], shared_bytes;
    CUstream stream;
    void *attributes;
    unsigned attribute_count;
} launch_configuration;

MAYA_API CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const launch_configuration *configuration) {
    (void)function;
    int threads = (int)(configuration->block[0] * configuration->block[1] * configuration->block[2]);
    *clusters = maya_occupancy(threads, configuration->shared_bytes) * maya_get_settings()->device.sm_count / 2;
    return CUDA_OK;
}

/* ---- launches ---- */

static CUresult launch(CUfunction function, const unsigned grid[3], const unsigned block[3], unsigned shared_bytes,
                       CUstream stream, void **arguments) {
    maya_pointer_arguments pointers;
    maya_find_pointers(&pointers, function, arguments);
    maya_thread *thread = maya_this_thread();
    const bool was_routed = thread->routed;
    if (!maya_launch_is_of_aten()) {
        maya_invalidate_outputs(&pointers, stream);
        thread->routed = was_routed || maya_launch_is_routed(&pointers);
    }
    maya_launch_arguments given = {arguments, pointers.extents, pointers.parameters};
    CUresult result = maya_kernel_launch(maya_kernel_of(function), grid, block, shared_bytes, stream, &given);
    thread->routed = was_routed;
    return result;
}

MAYA_API CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                 unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void **arguments,
                                 void **extra) {
    (void)extra;
    const unsigned grid[3] = {grid_x, grid_y, grid_z}, block[3] = {block_x, block_y, block_z};
    return launch(function, grid, block, shared_bytes, stream, arguments);
}

MAYA_API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                            unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                            CUstream stream, void **arguments) {
    return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, arguments, NULL);
}

MAYA_API CUresult cuLaunchKernelEx(const launch_configuration *configuration, CUfunction function, void **arguments,
                                   void **extra) {
    (void)extra;
    return launch(function, configuration->grid, configuration->block, configuration->shared_bytes, configuration->stream,
                  arguments);
}

static CUresult encode_tensor_map(void *map, int type, unsigned rank, void *address, const uint64_t *dimensions) {
    static const unsigned char element_bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4}; /* by CUtensorMapDataType */
    if (map == NULL || address == NULL || dimensions == NULL || rank < 1 || rank > 5) return CUDA_INVALID_VALUE;
    uint64_t bytes = type >= 0 && type < (int)sizeof element_bytes ? element_bytes[type] : 1;
    for (unsigned i = 0; i < rank; i++) bytes *= dimensions[i];
    maya_tensor_map_encode(map, address, bytes);
    return CUDA_OK;
}

MAYA_API CUresult cuTensorMapEncodeIm2col(void *map, int type, unsigned rank, void *address, const uint64_t *dimensions,
                                          const uint64_t *strides, const int *lower, const int *upper, unsigned channels,
                                          unsigned pixels, const unsigned *element_strides, int interleave, int swizzle,
                                          int promotion, int fill) {
    (void)strides, (void)lower, (void)upper, (void)channels, (void)pixels, (void)element_strides;
    (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    return encode_tensor_map(map, type, rank, address, dimensions);
}

MAYA_API CUresult cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address, const uint64_t *dimensions,
                                         const uint64_t *strides, const unsigned *box, const unsigned *element_strides,
                                         int interleave, int swizzle, int promotion, int fill) {
    (void)strides, (void)box, (void)element_strides, (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    return encode_tensor_map(map, type, rank, address, dimensions);
}
