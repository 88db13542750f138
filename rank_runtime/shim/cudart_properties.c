/* libcudart: device properties. The numbers come from the catalogue entry of the emulated GPU. */

#include "cudart_common.h"
#include "device/attributes.h"

#include <string.h>

/* cudaDeviceProp. CUDA 13 dropped some fields in the middle; the tail is the same except for its reserved space. */
typedef struct {
    char name[256];
    unsigned char uuid[16];
    char luid[8];
    unsigned luid_device_node_mask;
    size_t total_global_mem, shared_mem_per_block;
    int regs_per_block, warp_size;
    size_t mem_pitch;
    int max_threads_per_block, max_threads_dim[3], max_grid_size[3];
#if MAYA_CUDA_VERSION < 13000
    int clock_rate;
#endif
    size_t total_const_mem;
    int major, minor;
    size_t texture_alignment, texture_pitch_alignment;
#if MAYA_CUDA_VERSION < 13000
    int device_overlap;
#endif
    int multi_processor_count;
#if MAYA_CUDA_VERSION < 13000
    int kernel_exec_timeout_enabled;
#endif
    int integrated, can_map_host_memory;
#if MAYA_CUDA_VERSION < 13000
    int compute_mode;
#endif
    int max_texture_1d, max_texture_1d_mipmap;
#if MAYA_CUDA_VERSION < 13000
    int max_texture_1d_linear;
#endif
    int max_texture_2d[2], max_texture_2d_mipmap[2], max_texture_2d_linear[3], max_texture_2d_gather[2];
    int max_texture_3d[3], max_texture_3d_alt[3], max_texture_cubemap;
    int max_texture_1d_layered[2], max_texture_2d_layered[3], max_texture_cubemap_layered[2];
    int max_surface_1d, max_surface_2d[2], max_surface_3d[3], max_surface_1d_layered[2], max_surface_2d_layered[3];
    int max_surface_cubemap, max_surface_cubemap_layered[2];
    size_t surface_alignment;
    int concurrent_kernels, ecc_enabled, pci_bus_id, pci_device_id, pci_domain_id, tcc_driver, async_engine_count;
    int unified_addressing;
#if MAYA_CUDA_VERSION < 13000
    int memory_clock_rate;
#endif
    int memory_bus_width, l2_cache_size, persisting_l2_cache_max_size, max_threads_per_multi_processor;
    int stream_priorities_supported, global_l1_cache_supported, local_l1_cache_supported;
    size_t shared_mem_per_multiprocessor;
    int regs_per_multiprocessor, managed_memory, is_multi_gpu_board, multi_gpu_board_group_id;
    int host_native_atomic_supported;
#if MAYA_CUDA_VERSION < 13000
    int single_to_double_precision_perf_ratio;
#endif
    int pageable_memory_access, concurrent_managed_access, compute_preemption_supported;
    int can_use_host_pointer_for_registered_mem, cooperative_launch;
#if MAYA_CUDA_VERSION < 13000
    int cooperative_multi_device_launch;
#endif
    size_t shared_mem_per_block_optin;
    int pageable_memory_access_uses_host_page_tables, direct_managed_mem_access_from_host;
    int max_blocks_per_multi_processor, access_policy_max_window_size;
    size_t reserved_shared_mem_per_block;
    int host_register_supported, sparse_cuda_array_supported, host_register_read_only_supported;
    int timeline_semaphore_interop_supported, memory_pools_supported, gpu_direct_rdma_supported;
    unsigned gpu_direct_rdma_flush_writes_options;
    int gpu_direct_rdma_writes_ordering;
    unsigned memory_pool_supported_handle_types;
    int deferred_mapping_cuda_array_supported, ipc_event_supported, cluster_launch, unified_function_pointers;
    int rest[63];
} device_properties;

_Static_assert(sizeof(device_properties) == (MAYA_CUDA_VERSION < 13000 ? 1032 : 1008), "layout of cudaDeviceProp");

static cudaError_t fill(device_properties *properties, int index) {
    if (index < 0 || index >= maya_visible_devices()->count) return cudart_result(CUDA_INVALID_DEVICE);
    const maya_device_properties *device = &maya_get_settings()->device;
    int (*attribute)(int) = maya_device_attribute;
    *properties = (device_properties){
        .luid_device_node_mask = 0,
        .total_global_mem = (size_t)device->memory_bytes,
        .shared_mem_per_block = (size_t)device->shared_per_block,
        .regs_per_block = 65536,
        .warp_size = 32,
        .mem_pitch = 2147483647,
        .max_threads_per_block = 1024,
        .max_threads_dim = {1024, 1024, 64},
        .max_grid_size = {2147483647, 65535, 65535},
#if MAYA_CUDA_VERSION < 13000
        .clock_rate = device->clock_khz,
        .device_overlap = 1,
        .max_texture_1d_linear = 268435456,
        .memory_clock_rate = device->memory_clock_khz,
        .single_to_double_precision_perf_ratio = 2,
        .cooperative_multi_device_launch = 1,
#endif
        .total_const_mem = 65536,
        .major = device->compute_major,
        .minor = device->compute_minor,
        .texture_alignment = 512,
        .texture_pitch_alignment = 32,
        .multi_processor_count = device->sm_count,
        .can_map_host_memory = 1,
        .max_texture_1d = 131072,
        .max_texture_1d_mipmap = 32768,
        .max_texture_2d = {131072, 65536},
        .max_texture_2d_mipmap = {32768, 32768},
        .max_texture_2d_linear = {131072, 65000, 2097120},
        .max_texture_2d_gather = {32768, 32768},
        .max_texture_3d = {16384, 16384, 16384},
        .max_texture_3d_alt = {8192, 8192, 32768},
        .max_texture_cubemap = 32768,
        .max_texture_1d_layered = {32768, 2048},
        .max_texture_2d_layered = {32768, 32768, 2048},
        .max_texture_cubemap_layered = {32768, 2046},
        .max_surface_1d = 32768,
        .max_surface_2d = {131072, 65536},
        .max_surface_3d = {16384, 16384, 16384},
        .max_surface_1d_layered = {32768, 2048},
        .max_surface_2d_layered = {32768, 32768, 2048},
        .max_surface_cubemap = 32768,
        .max_surface_cubemap_layered = {32768, 2046},
        .surface_alignment = 512,
        .concurrent_kernels = 1,
        .ecc_enabled = 1,
        .pci_bus_id = maya_device_attribute_of(index, MAYA_ATTRIBUTE_PCI_BUS),
        .async_engine_count = attribute(MAYA_ATTRIBUTE_ASYNC_ENGINES),
        .unified_addressing = 1,
        .memory_bus_width = device->memory_bus_bits,
        .l2_cache_size = (int)device->l2_bytes,
        .persisting_l2_cache_max_size = attribute(MAYA_ATTRIBUTE_PERSISTING_L2),
        .max_threads_per_multi_processor = device->max_threads_per_sm,
        .stream_priorities_supported = 1,
        .global_l1_cache_supported = 1,
        .local_l1_cache_supported = 1,
        .shared_mem_per_multiprocessor = (size_t)device->shared_per_sm,
        .regs_per_multiprocessor = device->registers_per_sm,
        .managed_memory = 1,
        .multi_gpu_board_group_id = index,
        .concurrent_managed_access = 1,
        .compute_preemption_supported = 1,
        .can_use_host_pointer_for_registered_mem = 1,
        .cooperative_launch = 1,
        .shared_mem_per_block_optin = (size_t)device->shared_per_block_optin,
        .max_blocks_per_multi_processor = device->max_blocks_per_sm,
        .access_policy_max_window_size = attribute(MAYA_ATTRIBUTE_ACCESS_WINDOW),
        .reserved_shared_mem_per_block = (size_t)device->reserved_shared_per_block,
        .host_register_supported = 1,
        .sparse_cuda_array_supported = 1,
        .host_register_read_only_supported = 1,
        .timeline_semaphore_interop_supported = 1,
        .memory_pools_supported = 1,
        .gpu_direct_rdma_supported = 1,
        .gpu_direct_rdma_flush_writes_options = 1,
        .gpu_direct_rdma_writes_ordering = 100,
        .memory_pool_supported_handle_types = 1,
        .deferred_mapping_cuda_array_supported = 1,
        .ipc_event_supported = 1,
        .cluster_launch = device->compute_major >= 9,
        .unified_function_pointers = 1,
    };
    memcpy(properties->name, device->name, sizeof device->name);
    maya_device_uuid(maya_visible_devices()->physical[index], properties->uuid);
    return CUDA_OK;
}

MAYA_API cudaError_t cudaGetDeviceProperties(device_properties *properties, int device) { return fill(properties, device); }

MAYA_API cudaError_t cudaGetDeviceProperties_v2(device_properties *properties, int device) { return fill(properties, device); }

MAYA_API cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int device) {
    if (device < 0 || device >= maya_visible_devices()->count) return cudart_result(CUDA_INVALID_DEVICE);
    *value = maya_device_attribute_of(device, attribute);
    return *value < 0 ? cudart_result(CUDA_INVALID_VALUE) : CUDA_OK;
}
