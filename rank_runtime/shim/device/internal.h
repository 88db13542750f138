/* Functions of the virtual device for cudart.c, cuda.c and the observer; device.h has those for all libraries. */
#pragma once

#include "cubin.h"
#include "cuda_errors.h"
#include "device.h"
#include "host_time.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- context.c: the calling thread's device ---- */

MAYA_API int maya_set_device(int device);
/* Pay for the context of `device`, if this process has none yet, and load the op observer. 0 or a cudaError_t. */
MAYA_API int maya_use_device(int device);
MAYA_API bool maya_device_in_use(int device);
MAYA_API void maya_load_observer(void);

/* ---- memory.c ---- */

typedef enum {
    MAYA_MEMORY_UNREGISTERED = 0, /* the numbers are cudaMemoryType's */
    MAYA_MEMORY_HOST = 1,
    MAYA_MEMORY_DEVICE = 2,
    MAYA_MEMORY_MANAGED = 3,
} maya_memory_type;

typedef struct {
    maya_memory_type type;
    int device;
    void *base; /* start of the allocation */
    size_t size;
    uint64_t number; /* a new one for every allocation */
} maya_allocation_info;

MAYA_API maya_allocation_info maya_find_allocation(const void *address);
MAYA_API int maya_managed_malloc(int device, size_t size, void **address);
MAYA_API int maya_host_malloc(size_t size, void **address);
MAYA_API int maya_host_free(void *address);
MAYA_API int maya_host_register(void *address, size_t size);
MAYA_API int maya_host_unregister(void *address);
/* Charge (or with a negative size give back) device memory that has no address, such as a communicator's buffers. */
MAYA_API int maya_device_charge(int device, int64_t bytes);
/* Once true, zeroing must write zeros: dropping the pages of a shared mapping would not clear them. */
bool maya_shared_memory_exists(void);
int maya_reserve_device_memory(int device);
int maya_reserve_range(int device, size_t size, size_t alignment, void **address);
int maya_unreserve_range(void *address);
int maya_share_range(void *address, size_t size);
int maya_share_nothing(size_t size);
void maya_note_shared_memory(void);

/* Number of the text {"bytes": size} in the trace. */
uint32_t maya_bytes_signature(size_t size);

/* Inter-process handles: 64 opaque bytes. */
MAYA_API int maya_ipc_export(void *address, unsigned char handle[64]);
MAYA_API int maya_ipc_open(const unsigned char handle[64], int device, void **address);
MAYA_API int maya_ipc_close(void *address);

/* ---- blocks.c: blocks of PyTorch's caching allocator ---- */

void maya_record_block(const void *address, size_t size, bool handed_out, uint32_t stream_number);

/* ---- record_function.c: torch's RecordFunction ---- */

typedef struct {
    /* Called instead of the constructor of an at::RecordFunction, with its address and scope; true: it is constructed. */
    bool (*begins)(void *function, uint8_t scope);
    /* Called with an at::RecordFunction of an op, the op's c10::FunctionSchema, its dispatch keys and its boxed arguments;
     * true: there are no other callbacks to run. */
    bool (*op_begins)(void *function, const void *schema, uint64_t keys, const void *inputs, size_t count);
    /* Called before an at::RecordFunction is destroyed. */
    void (*ends)(void *function);
    /* Called with an at::RecordFunctionTLS that the thread is to take over; true: the thread has the same one already. */
    bool (*is_set)(const void *observers);
} maya_record_function_callbacks;

/* torch's own function behind one that we replace; aborts if there is none. */
#define MAYA_TEXT_OF(name) #name
void *maya_need_function(const char *library, const char *name);

/* Without effect if torch lacks one of the functions that record_function.c replaces. */
MAYA_API void maya_set_record_function_callbacks(const maya_record_function_callbacks *observer);

/* ---- deferred_increfs.c ---- */

/* Called when the thread begins to box an op's arguments, when it is done, and when the op has ended. */
MAYA_API void maya_boxing_begins(void);
MAYA_API void maya_boxing_ends(void);
MAYA_API void maya_flush_deferred_increfs(void);

/* ---- pool.c: stream-ordered allocation (cudaMallocAsync) ---- */

typedef struct {
    uint64_t release_threshold; /* memory the pool keeps for itself when it is freed */
    uint64_t reserved, reserved_high, used, used_high;
} maya_pool_state;

MAYA_API maya_pool_state *maya_pool_of(int device);
MAYA_API int maya_pool_malloc(int device, size_t size, void *stream, void **address);
MAYA_API int maya_pool_free(void *address, void *stream);
MAYA_API void maya_pool_trim(int device, uint64_t keep);

/* ---- vmm.c: virtual memory management (cuMemCreate and friends) ---- */

MAYA_API int maya_vmm_reserve(size_t size, size_t alignment, void **address);
MAYA_API int maya_vmm_release_range(void *address, size_t size);
MAYA_API int maya_vmm_create(int device, size_t size, unsigned handle_types, uint64_t *handle);
MAYA_API int maya_vmm_release(uint64_t handle);
MAYA_API int maya_vmm_retain_by_address(const void *address, uint64_t *handle);
MAYA_API int maya_vmm_map(void *address, size_t size, size_t offset, uint64_t handle);
MAYA_API int maya_vmm_unmap(void *address, size_t size);
MAYA_API int maya_vmm_export(uint64_t handle, int *file_descriptor);
MAYA_API int maya_vmm_import(int file_descriptor, uint64_t *handle);
MAYA_API int maya_vmm_describe(uint64_t handle, int *device, unsigned *handle_types);

/* ---- values.c ---- */

/* Written by a tiny op that was computed from placeholders: stays a placeholder, but is not zero. */
MAYA_API void maya_values_guessed(const void *address, size_t size);
typedef struct {
    const void *address;
    size_t size;
} maya_range;

MAYA_API void maya_values_set_placeholder_ranges(const maya_range *ranges, size_t count);
/* A kernel with unknown effects may have written through this pointer: the known range from there on keeps its bytes but is no
 * longer known. */
MAYA_API void maya_values_doubt(const void *address);
/* The result of an op that concatenated objects: known, and counted as an object. */
MAYA_API void maya_values_joined(const void *address, size_t size);
/* These known bytes follow from an assumed choice. */
MAYA_API void maya_values_assumed(const void *address, size_t size);
/* Whether some of these bytes do. */
MAYA_API bool maya_values_are_assumed(const void *address, size_t size);
/* Some of these bytes are placeholders for contents that the program wrote there. */
bool maya_values_were_given_up(const void *address, size_t size);
/* The range is about to be unmapped, so its bytes need not be zeroed. */
void maya_values_forget_without_zeroing(const void *address, size_t size);
/* Raw bytes of the dirty parts, into a copy of the range that lies at `view`. */
void maya_values_copy_dirty(void *view, const void *address, size_t size);

/* ---- contents.c ---- */

/* One row of `size` bytes of a fill or copy of `whole` bytes. `content` is the kind of contents of a copy from the host. */
MAYA_API void maya_values_fill(void *address, const void *pattern, size_t pattern_size, size_t size, size_t whole);
void maya_values_copy_part(void *destination, const void *source, size_t size, size_t whole, maya_content content);
/* Whether a copy of this size from the host to `address` would be kept now. */
bool maya_values_room_for(const void *address, size_t size, maya_content content);
/* Whether computed results of `size` bytes can be kept; floating-point contents give way to integers. The caller must not hold
 * the values. */
MAYA_API bool maya_values_room_to_compute(size_t size, maya_content content);
/* Whether contents at the address are large integers from the host or other ranks, or computed from such. */
MAYA_API bool maya_values_are_large_integers(const void *address);
/* As maya_values_room_to_compute for integers, without a warning and without displacing others. */
MAYA_API bool maya_values_room_left(size_t size);
/* The result of an op that was computed at any size: known, and counted against MAYA_KEPT_BYTES if it is large. */
MAYA_API void maya_values_computed(const void *address, size_t size, maya_content content);
/* Instead of maya_values_copy_part, for a copy that is not kept. */
void maya_values_give_up(void *address, size_t size, size_t whole, maya_content content);

/* ---- copies.c ---- */

/* `rows` rows of `width` bytes, the starts of which lie `pitch` bytes apart. A copy to or from pageable memory, and any
 * with `blocking`, is complete on return. */
typedef struct {
    void *destination;
    const void *source;
    size_t width, rows, destination_pitch, source_pitch;
    bool blocking;
} maya_copy;

MAYA_API int maya_copy_submit(void *stream, const maya_copy *copy);
MAYA_API int maya_fill_submit(void *stream, void *address, uint32_t pattern, size_t pattern_size, size_t width, size_t rows,
                              size_t pitch, bool blocking);
/* Arms an answer for the next `count` device-to-host copies of the calling thread's op (see observer/): a copy of 1 to 8
 * placeholder bytes reads as `answer`. guessed: these reads are still reported as placeholder reads. */
MAYA_API void maya_answer_next_read(int64_t answer, int count, bool guessed);
/* Finds the source line of a placeholder read; called without any lock, for the first reads only; set by the observer. */
typedef void (*maya_source_finder)(char *line, size_t size);
MAYA_API void maya_set_source_finder(maya_source_finder finder);
/* Records the choices that the program's values follow from and that are not recorded yet; called in front of the record of a
 * read of such values; set by the observer. */
typedef void (*maya_choice_recorder)(void);
MAYA_API void maya_set_choice_recorder(maya_choice_recorder recorder);
/* The calling thread's op lets the host know a number that follows from assumed choices with these marks (routing.h). */
MAYA_API void maya_record_assumed_read(size_t size, uint32_t choices);
/* The kind of contents that the calling thread's op writes; set by the observer. */
typedef maya_content (*maya_content_finder)(void);
MAYA_API void maya_set_content_finder(maya_content_finder finder);
/* Name of the calling thread's op, for messages; set by the observer. */
typedef const char *(*maya_op_namer)(void);
MAYA_API void maya_set_op_namer(maya_op_namer namer);
MAYA_API const char *maya_op_name(void);

/* ---- stream.c ---- */

enum { MAYA_STREAM_NON_BLOCKING = 1 };
enum { MAYA_EVENT_DISABLE_TIMING = 2, MAYA_EVENT_INTERPROCESS = 4 };

MAYA_API int maya_stream_create(unsigned flags, int priority, void **stream);
MAYA_API int maya_stream_destroy(void *stream);
MAYA_API int maya_stream_query(void *stream);
/* Whether all its work is done, regardless of the virtual clock. */
bool maya_stream_is_idle(void *stream);
MAYA_API int maya_stream_info(void *stream, unsigned *flags, int *priority, int *device, uint64_t *id);
MAYA_API int maya_device_synchronize(void);
/* The same for any device. */
void maya_device_wait(int device);
/* Wait for all work of a stream, or of all streams of one device, without recording a synchronization. */
void maya_stream_drain(void *stream);
void maya_device_drain(int device);
/* true while some stream has queued work, so that effects on memory may come after their submission. */
MAYA_API bool maya_commands_are_queued(void);

MAYA_API int maya_event_create(unsigned flags, maya_event **event);
MAYA_API int maya_event_destroy(maya_event *event);
MAYA_API int maya_event_record(maya_event *event, void *stream);
MAYA_API int maya_event_query(maya_event *event);
MAYA_API int maya_event_synchronize(maya_event *event);
MAYA_API int maya_event_elapsed(maya_event *start, maya_event *end, float *milliseconds);
MAYA_API int maya_stream_wait_event(void *stream, maya_event *event);
MAYA_API int maya_event_export(maya_event *event, unsigned char handle[64]);
MAYA_API int maya_event_open(const unsigned char handle[64], maya_event **event);
/* Hold the stream until (*address & mask) compares with value: CUDA's stream memory wait (geq 0, eq 1, and 2, nor 3). */
MAYA_API int maya_stream_wait_value(void *stream, const void *address, uint64_t value, bool wide, unsigned comparison);

/* ---- graph.c ---- */

typedef struct maya_graph maya_graph;
typedef struct maya_graph_node maya_graph_node;

enum { MAYA_CAPTURE_NONE = 0, MAYA_CAPTURE_ACTIVE = 1 };
enum { MAYA_CAPTURE_GLOBAL = 0, MAYA_CAPTURE_THREAD_LOCAL = 1, MAYA_CAPTURE_RELAXED = 2 };

typedef struct {
    int status;
    uint64_t id;
    maya_graph *graph;
    maya_graph_node *const *dependencies;
    size_t dependency_count;
} maya_capture_info;

MAYA_API int maya_graph_create(maya_graph **graph);
MAYA_API void maya_graph_retain(maya_graph *graph);
MAYA_API int maya_graph_release(maya_graph *graph);
/* `release(argument)` is called when the graph is gone. */
MAYA_API void maya_graph_keep(maya_graph *graph, void (*release)(void *), void *argument);
MAYA_API size_t maya_graph_nodes(const maya_graph *graph, maya_graph_node **nodes, size_t room);
MAYA_API maya_graph_node *maya_graph_node_before(const maya_graph_node *node);
MAYA_API int maya_graph_node_kind(const maya_graph_node *node);
MAYA_API int maya_graph_launch(maya_graph *graph, void *stream);
MAYA_API int maya_capture_begin(void *stream, int mode, maya_graph *into);
MAYA_API int maya_capture_end(void *stream, maya_graph **graph);
MAYA_API int maya_capture_info_of(void *stream, maya_capture_info *info);
MAYA_API int maya_capture_exchange_mode(int *mode);
/* true while some stream is captured. */
MAYA_API bool maya_captures_exist(void);

/* ---- extents.c: how many bytes a kernel's pointers point to ---- */

/* A tensor of `bytes` bytes at `address` may be passed to the thread's next launch. */
MAYA_API void maya_note_pointer(const void *address, uint64_t bytes);
/* How many notes the thread has made since its last launch. */
MAYA_API uint32_t maya_noted_pointers(void);
/* Forgets the notes after the launch they were made for. */
MAYA_API void maya_forget_pointers(void);
/* Bytes behind a pointer to device memory; 0 if they are not known. */
MAYA_API uint64_t maya_extent_of(const void *address);
/* blocks.c: bytes of the caching allocator's block that begins there; 0: none does. */
uint64_t maya_block_bytes(const void *address);

/* ---- kernels.c: kernels and their launches ---- */

typedef struct maya_kernel maya_kernel;

MAYA_API void maya_kernel_register(const void *host_function, const char *name);
/* By host function, or the kernel itself: since CUDA 12 most runtime calls take either. NULL: unknown. */
MAYA_API maya_kernel *maya_kernel_of(const void *function);
/* A kernel from a module or library image, with its resources if the image is a cubin (else NULL). Kernels of the same name
 * are different if their cubins are. The name is copied. */
MAYA_API maya_kernel *maya_kernel_named(const char *name, const maya_cubin_kernel *resources);
MAYA_API const maya_cubin_kernel *maya_kernel_resources(const maya_kernel *kernel);
typedef struct {
    void **values;           /* point to the kernel's arguments, in order; NULL: not known */
    const uint64_t *extents; /* the bytes behind each argument that is a pointer, 0 for others */
    size_t extent_count;     /* up to the last pointer; 0: not known */
} maya_launch_arguments;

/* By type (kernel_parameters.h), one character for each; "": not known, as for kernels from images. */
const char *maya_kernel_parameters(maya_kernel *kernel);

/* ---- pointer_arguments.c: the device pointers among a launch's arguments ---- */

/* A tensor map is opaque to the host; only kernels, which do not run here, read it. The fake one holds address and size of its
 * tensor, which a launch with the map as an argument records. */
typedef struct {
    void *address;
    uint64_t bytes; /* size of the tensor */
    uint64_t mark;
    char unused[104];
} maya_tensor_map;

typedef struct {
    size_t output_count, parameters; /* pointers that may be written; parameters up to the last pointer */
    const void *outputs[MAYA_PARAMETERS];
    uint64_t extents[MAYA_PARAMETERS]; /* size of the tensor behind each, by parameter; 0: no pointer, or not known */
    uint32_t routing;                  /* marks of the memory behind them (routing.h) */
} maya_pointer_arguments;

MAYA_API void maya_tensor_map_encode(void *map, void *address, uint64_t bytes);
/* Whether the thread is inside an ATen op, and inside an op of torch's dispatcher at all: the op observer knows its results
 * and which of its arguments it changes. */
MAYA_API bool maya_launch_is_of_aten(void);
MAYA_API bool maya_launch_is_of_op(void);
MAYA_API void maya_find_pointers(maya_pointer_arguments *found, maya_kernel *kernel, void **arguments);
/* Whether a launch outside torch's ops hangs on routing. Choices that it reads count as routing from now on, because what its
 * kernel does with them is not known. */
MAYA_API bool maya_launch_is_routed(const maya_pointer_arguments *pointers);
/* What the kernel may write counts as a placeholder once the stream comes to the launch. */
MAYA_API void maya_invalidate_outputs(const maya_pointer_arguments *pointers, void *stream);

/* ---- kernels.c again ---- */

MAYA_API int maya_kernel_launch(maya_kernel *kernel, const unsigned grid[3], const unsigned block[3], size_t shared_bytes,
                                void *stream, const maya_launch_arguments *arguments);
MAYA_API int maya_occupancy(int block_threads, size_t shared_bytes);

#ifdef __cplusplus
}
#endif
