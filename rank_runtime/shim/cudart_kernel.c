/* libcudart: registration and launch of compiled kernels, and libraries of kernels loaded at run time. */

#include "cudart_common.h"

#include <stdlib.h>
#include <string.h>

/* ---- registration, called by the constructors of compiled CUDA code ---- */

MAYA_API void **__cudaRegisterFatBinary(void *image) {
    void **handle = malloc(sizeof *handle);
    if (handle == NULL) abort();
    *handle = image;
    return handle;
}

MAYA_API void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }

MAYA_API void __cudaUnregisterFatBinary(void **handle) { free(handle); }

MAYA_API char __cudaInitModule(void **handle) {
    (void)handle;
    return 1;
}

MAYA_API void __cudaRegisterFunction(void **handle, const char *host_function, char *device_function, const char *name,
                                     int thread_limit, void *tid, void *bid, dim3 *block, dim3 *grid, int *warp_size) {
    (void)handle, (void)device_function, (void)thread_limit, (void)tid, (void)bid, (void)block, (void)grid, (void)warp_size;
    maya_kernel_register(host_function, name);
}

/* ---- device variables ---- */

typedef struct variable {
    const void *host_variable;
    size_t size;
    void *addresses[MAYA_MAX_DEVICES]; /* allocated at first use */
    struct variable *next;
} variable;

static variable *variables;

MAYA_API void __cudaRegisterVar(void **handle, char *host_variable, char *device_address, const char *name, int external,
                                size_t size, int constant, int global) {
    (void)handle, (void)device_address, (void)name, (void)external, (void)constant, (void)global;
    variable *made = calloc(1, sizeof *made);
    if (made == NULL) abort();
    made->host_variable = host_variable;
    made->size = size;
    made->next = variables;
    variables = made;
}

static int variable_address(const void *symbol, void **address, size_t *size) {
    variable *found = variables;
    while (found && found->host_variable != symbol) found = found->next;
    if (found == NULL) return CUDA_INVALID_SYMBOL;
    void **slot = &found->addresses[maya_current_device()];
    int status = *slot ? CUDA_OK : maya_device_malloc(maya_current_device(), found->size, slot);
    *address = *slot;
    *size = found->size;
    return status;
}

MAYA_API cudaError_t cudaGetSymbolAddress(void **address, const void *symbol) {
    size_t size;
    return cudart_result(variable_address(symbol, address, &size));
}

MAYA_API cudaError_t cudaGetSymbolSize(size_t *size, const void *symbol) {
    void *address;
    return cudart_result(variable_address(symbol, &address, size));
}

MAYA_API cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *source, size_t count, size_t offset, int kind) {
    (void)kind;
    void *address;
    size_t size;
    int status = variable_address(symbol, &address, &size);
    if (status != CUDA_OK) return cudart_result(status);
    if (offset + count > size) return cudart_result(CUDA_INVALID_VALUE);
    maya_copy copy = {.destination = (char *)address + offset, .source = source, .width = count, .rows = 1, .blocking = true};
    return cudart_result(maya_copy_submit(NULL, &copy));
}

/* ---- launches ---- */

typedef struct {
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
} call_configuration;

enum { CONFIGURATIONS = 64 };
static __thread call_configuration pushed[CONFIGURATIONS];
static __thread int pushed_count;

/* kernel<<<grid, block, shared, stream>>>(...) pushes its configuration, and the kernel's stub pops it. */
MAYA_API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream) {
    if (pushed_count == CONFIGURATIONS) return 1;
    pushed[pushed_count++] = (call_configuration){grid, block, shared_bytes, stream};
    return 0;
}

MAYA_API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, cudaStream_t *stream) {
    if (pushed_count == 0) return cudart_result(CUDA_MISSING_CONFIGURATION);
    const call_configuration *top = &pushed[--pushed_count];
    *grid = top->grid;
    *block = top->block;
    *shared_bytes = top->shared_bytes;
    *stream = top->stream;
    return CUDA_OK;
}

static cudaError_t launch(maya_kernel *kernel, dim3 grid, dim3 block, void **arguments, size_t shared_bytes,
                          cudaStream_t stream) {
    const unsigned grid_size[3] = {grid.x, grid.y, grid.z}, block_size[3] = {block.x, block.y, block.z};
    maya_launch_arguments given = {.values = arguments};
    maya_pointer_arguments pointers;
    maya_thread *thread = maya_this_thread();
    const bool was_routed = thread->routed;
    /* Outside ATen ops, which is where other packages launch, tensors are known by the pointers to them alone. */
    if (!maya_launch_is_of_aten()) {
        maya_find_pointers(&pointers, kernel, arguments);
        if (!maya_launch_is_of_op()) maya_invalidate_outputs(&pointers, stream);
        given.extents = pointers.extents;
        given.extent_count = pointers.parameters;
        if (!maya_launch_is_of_op()) thread->routed = maya_launch_is_routed(&pointers);
    }
    int result = maya_kernel_launch(kernel, grid_size, block_size, shared_bytes, stream, &given);
    thread->routed = was_routed;
    return cudart_result(result);
}

MAYA_API cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared_bytes,
                                      cudaStream_t stream) {
    return launch(maya_kernel_of(function), grid, block, arguments, shared_bytes, stream);
}

MAYA_API cudaError_t __cudaGetKernel(maya_kernel **kernel, const void *function) {
    *kernel = maya_kernel_of(function);
    return cudart_result(*kernel ? CUDA_OK : CUDA_INVALID_DEVICE_FUNCTION);
}

MAYA_API cudaError_t __cudaLaunchKernel(maya_kernel *kernel, dim3 grid, dim3 block, void **arguments, size_t shared_bytes,
                                        cudaStream_t stream) {
    return launch(kernel, grid, block, arguments, shared_bytes, stream);
}

MAYA_API cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments,
                                                 size_t shared_bytes, cudaStream_t stream) {
    return launch(maya_kernel_of(function), grid, block, arguments, shared_bytes, stream);
}

typedef struct {
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
    void *attributes; /* clusters, priorities, programmatic launch: not recorded */
    unsigned attribute_count;
} launch_configuration;

MAYA_API cudaError_t cudaLaunchKernelExC(const launch_configuration *configuration, const void *function, void **arguments) {
    return launch(maya_kernel_of(function), configuration->grid, configuration->block, arguments, configuration->shared_bytes,
                  configuration->stream);
}

/* ---- attributes and occupancy of kernels ---- */

typedef struct {
    size_t shared_bytes, constant_bytes, local_bytes;
    int max_threads_per_block, registers, ptx_version, binary_version, cache_mode_ca, max_dynamic_shared_bytes;
    int preferred_shared_carveout, cluster_dimension_must_be_set, required_cluster_width, required_cluster_height;
    int required_cluster_depth, cluster_scheduling_policy, non_portable_cluster_size_allowed;
    int reserved[16];
} function_attributes;

MAYA_API cudaError_t cudaFuncGetAttributes(function_attributes *attributes, const void *function) {
    if (maya_kernel_of(function) == NULL) return cudart_result(CUDA_INVALID_DEVICE_FUNCTION);
    const maya_device_properties *device = &maya_get_settings()->device;
    int version = device->compute_major * 10 + device->compute_minor;
    *attributes = (function_attributes){
        .max_threads_per_block = 1024,
        .registers = 32,
        .ptx_version = version,
        .binary_version = version,
        .max_dynamic_shared_bytes = (int)device->shared_per_block,
        .preferred_shared_carveout = -1,
    };
    return CUDA_OK;
}

MAYA_API cudaError_t cudaFuncSetAttribute(const void *function, int attribute, int value) {
    enum { MAX_DYNAMIC_SHARED = 8 };
    if (maya_kernel_of(function) == NULL) return cudart_result(CUDA_INVALID_DEVICE_FUNCTION);
    bool too_much = attribute == MAX_DYNAMIC_SHARED && value > maya_get_settings()->device.shared_per_block_optin;
    return cudart_result(too_much ? CUDA_INVALID_VALUE : CUDA_OK);
}

MAYA_API cudaError_t cudaFuncSetCacheConfig(const void *function, int configuration) {
    (void)configuration;
    return cudart_result(maya_kernel_of(function) ? CUDA_OK : CUDA_INVALID_DEVICE_FUNCTION);
}

MAYA_API cudaError_t cudaKernelSetAttributeForDevice(const void *kernel, int attribute, int value, int device) {
    (void)device;
    return cudaFuncSetAttribute(kernel, attribute, value);
}

MAYA_API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int block_size,
                                                                            size_t shared_bytes, unsigned flags) {
    (void)flags;
    if (maya_kernel_of(function) == NULL) return cudart_result(CUDA_INVALID_DEVICE_FUNCTION);
    *blocks = maya_occupancy(block_size, shared_bytes);
    return CUDA_OK;
}

MAYA_API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int block_size,
                                                                   size_t shared_bytes) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size, shared_bytes, 0);
}

MAYA_API cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *function,
                                                    const launch_configuration *configuration) {
    if (maya_kernel_of(function) == NULL) return cudart_result(CUDA_INVALID_DEVICE_FUNCTION);
    int threads = (int)(configuration->block.x * configuration->block.y * configuration->block.z);
    *clusters = maya_occupancy(threads, configuration->shared_bytes) * maya_get_settings()->device.sm_count / 2;
    return CUDA_OK;
}

/* ---- libraries; every kernel that a program looks up counts as part of the image ---- */

typedef struct {
    const void *image;
} library;

MAYA_API cudaError_t cudaLibraryLoadData(library **loaded, const void *image, void *jit_options, void **jit_values,
                                         unsigned jit_count, void *options, void **values, unsigned count) {
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    if (image == NULL) return cudart_result(CUDA_INVALID_VALUE);
    *loaded = malloc(sizeof **loaded);
    if (*loaded == NULL) return cudart_result(CUDA_OUT_OF_MEMORY);
    (*loaded)->image = image;
    return CUDA_OK;
}

MAYA_API cudaError_t cudaLibraryUnload(library *loaded) {
    free(loaded);
    return CUDA_OK;
}

MAYA_API cudaError_t cudaLibraryGetKernel(maya_kernel **kernel, library *loaded, const char *name) {
    (void)loaded;
    *kernel = maya_kernel_named(name, NULL);
    return CUDA_OK;
}
