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

/* A tensor map is opaque to the host; only kernels, which do not run here, read it. The fake one holds address and size of its
 * tensor, which a launch with the map as an argument records. */
typedef struct {
    void *address;
    uint64_t bytes; /* size of the tensor */
    uint64_t mark;
    char unused[104];
} tensor_map;

static const uint64_t TENSOR_MAP = 0x70616D726F736E74u;
_Static_assert(sizeof(tensor_map) == 128, "the size of a CUtensorMap");

/* The device pointers among a launch's arguments, and the size of the tensor behind each, by parameter; 0: no device pointer.
 */
typedef struct {
    size_t count, parameters; /* number of parameters up to the last pointer */
    const void *addresses[MAYA_PARAMETERS];
    uint64_t extents[MAYA_PARAMETERS];
} pointer_arguments;

static void find_pointers(pointer_arguments *found, CUfunction function, void **arguments) {
    const maya_cubin_kernel *resources = function ? maya_kernel_resources(function) : NULL;
    found->count = found->parameters = 0;
    if (resources == NULL || arguments == NULL) return;
    for (int i = 0; i < resources->parameters; i++) {
        const uint16_t size = resources->parameter_bytes[i];
        found->extents[i] = 0;
        if (arguments[i] == NULL || (size != sizeof(void *) && size != sizeof(tensor_map))) continue;
        tensor_map map = {.mark = 0};
        memcpy(&map, arguments[i], size);
        if (maya_address_device(map.address) < 0 || (size == sizeof map && map.mark != TENSOR_MAP)) continue;
        found->addresses[found->count++] = map.address;
        found->extents[i] = size == sizeof map ? map.bytes : maya_extent_of(map.address);
        found->parameters = (size_t)i + 1;
    }
    maya_forget_pointers();
}

/* The pointer arguments of a kernel that is loaded at run time and launched outside an ATen op (mostly Triton's): each may be
 * an output. Inside an ATen op the op observer knows the outputs. */
typedef struct {
    size_t count;
    const void *pointers[];
} possible_outputs;

static void run_invalidation(void *argument) {
    const possible_outputs *outputs = argument;
    for (size_t i = 0; i < outputs->count; i++) maya_values_doubt(outputs->pointers[i]);
}

static void invalidate_outputs(const pointer_arguments *pointers, CUstream stream) {
    if (pointers->count == 0 || strncmp(maya_op_name(), "aten::", 6) == 0) return;
    possible_outputs *outputs = malloc(sizeof *outputs + pointers->count * sizeof(void *));
    if (outputs == NULL) abort();
    outputs->count = pointers->count;
    memcpy(outputs->pointers, pointers->addresses, pointers->count * sizeof(void *));
    maya_command command = {.run = run_invalidation, .release = free, .argument = outputs, .unrecorded = true};
    maya_submit(stream, &command);
}

static CUresult launch(CUfunction function, const unsigned grid[3], const unsigned block[3], unsigned shared_bytes,
                       CUstream stream, void **arguments) {
    pointer_arguments pointers;
    find_pointers(&pointers, function, arguments);
    invalidate_outputs(&pointers, stream);
    maya_launch_arguments given = {arguments, pointers.extents, pointers.parameters};
    return maya_kernel_launch(maya_kernel_of(function), grid, block, shared_bytes, stream, &given);
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
    tensor_map made = {.address = address, .mark = TENSOR_MAP};
    made.bytes = type >= 0 && type < (int)sizeof element_bytes ? element_bytes[type] : 1;
    for (unsigned i = 0; i < rank; i++) made.bytes *= dimensions[i];
    memcpy(map, &made, sizeof made);
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
