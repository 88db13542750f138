/* Kernels: those that compiled code registers under the address of their host stub, and those of modules loaded at run time,
 * known by name. A launch becomes one record. Its signature is looked up by kernel, geometry, the part of its op that it does
 * (launch_part.h) and the bytes that its pointers point to, so that the text is formatted only once. */

#include "internal.h"
#include "kernel_parameters.h"
#include "launch_part.h"
#include "process.h"
#include "recorder.h"
#include "table.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct maya_kernel {
    const void *host_function; /* NULL for a kernel known by name */
    const char *name;
    const maya_cubin_kernel *resources;
    char *_Atomic parameters; /* by type; NULL until a launch asks */
    uint8_t part_kind;        /* maya_part_kind */
};

pthread_mutex_t maya_kernels_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- registered kernels: a hash table by host function; kernels are allocated in slabs and never move ---- */

enum { SLAB = 1024 };

typedef struct kernel_slab {
    maya_kernel kernels[SLAB];
    struct kernel_slab *next;
} kernel_slab;

static kernel_slab *slabs; /* the newest first */
static size_t slab_used = SLAB;

typedef maya_kernel *kernel_pointer;

static inline bool by_host_function_is_used(const kernel_pointer *kernel) { return *kernel != NULL; }

static inline const void *by_host_function_key(const kernel_pointer *kernel) { return (*kernel)->host_function; }

static inline uint64_t by_host_function_hash(const void *host_function) {
    return ((uintptr_t)host_function >> 4) * 0x9E3779B97F4A7C15u >> 20;
}

static inline bool by_host_function_is_same(const void *one, const void *other) { return one == other; }

MAYA_DEFINE_TABLE(by_host_function, kernel_pointer, const void *, 65536)

static by_host_function registered;

static maya_kernel *new_kernel(const void *host_function, const char *name) {
    if (slab_used == SLAB) {
        kernel_slab *slab = must_alloc(malloc(sizeof *slab));
        slab->next = slabs;
        slabs = slab;
        slab_used = 0;
    }
    maya_kernel *kernel = &slabs->kernels[slab_used++];
    *kernel = (maya_kernel){.host_function = host_function, .name = name};
    return kernel;
}

void maya_kernel_register(const void *host_function, const char *name) {
    pthread_mutex_lock(&maya_kernels_lock);
    *by_host_function_place(&registered, host_function) = new_kernel(host_function, name);
    pthread_mutex_unlock(&maya_kernels_lock);
}

maya_kernel *maya_kernel_of(const void *function) {
    pthread_mutex_lock(&maya_kernels_lock);
    kernel_pointer *entry = by_host_function_find(&registered, function);
    maya_kernel *found = entry ? *entry : NULL;
    for (kernel_slab *slab = slabs; slab && found == NULL; slab = slab->next) {
        if (function >= (void *)slab->kernels && function < (void *)(slab->kernels + SLAB)) found = (maya_kernel *)function;
    }
    pthread_mutex_unlock(&maya_kernels_lock);
    return found;
}

/* ---- kernels known by name ---- */

static MAYA_VECTOR(maya_kernel *) named;

static bool is_same(const maya_cubin_kernel *one, const maya_cubin_kernel *other) {
    return one == other || (one && other && memcmp(one, other, sizeof *one) == 0);
}

static maya_kernel *add_named(const char *name, const maya_cubin_kernel *resources) {
    maya_kernel *kernel = *maya_vector_add(&named) = new_kernel(NULL, must_alloc(strdup(name)));
    if (resources == NULL) return kernel;
    maya_cubin_kernel *kept = must_alloc(malloc(sizeof *kept));
    memcpy(kept, resources, sizeof *kept); /* with its padding, which takes part in the comparison */
    kernel->resources = kept;
    return kernel;
}

maya_kernel *maya_kernel_named(const char *name, const maya_cubin_kernel *resources) {
    pthread_mutex_lock(&maya_kernels_lock);
    maya_kernel *kernel = NULL;
    for (size_t i = 0; i < named.count && kernel == NULL; i++) {
        maya_kernel *candidate = named.items[i];
        if (strcmp(candidate->name, name) == 0 && is_same(candidate->resources, resources)) kernel = candidate;
    }
    if (kernel == NULL) kernel = add_named(name, resources);
    pthread_mutex_unlock(&maya_kernels_lock);
    return kernel;
}

const maya_cubin_kernel *maya_kernel_resources(const maya_kernel *kernel) { return kernel->resources; }

const char *maya_kernel_parameters(maya_kernel *kernel) {
    if (kernel->host_function == NULL) return "";
    char *kinds = atomic_load_explicit(&kernel->parameters, memory_order_acquire), *expected = NULL;
    if (kinds) return kinds;
    kinds = maya_parameter_kinds(kernel->name);
    if (atomic_compare_exchange_strong(&kernel->parameters, &expected, kinds)) return kinds;
    free(kinds); /* another thread was faster */
    return expected;
}

/* ---- launches ---- */

typedef struct {
    const maya_kernel *kernel;
    unsigned grid[3], block[3];
    size_t shared_bytes;
    maya_launch_part part;
    uint64_t extents[2]; /* two independent hashes of the bytes its pointers point to; 0: unknown */
} launch_key;

typedef struct {
    launch_key key;
    uint32_t signature;
} launch_entry;

static inline bool launch_table_is_used(const launch_entry *entry) { return entry->key.kernel != NULL; }

static inline const launch_key *launch_table_key(const launch_entry *entry) { return &entry->key; }

static inline uint64_t launch_table_hash(const launch_key *key) {
    uint64_t hash = (uintptr_t)key->kernel;
    const unsigned numbers[] = {key->grid[0],
                                key->grid[1],
                                key->grid[2],
                                key->block[0],
                                key->block[1],
                                key->block[2],
                                (unsigned)key->shared_bytes,
                                (unsigned)key->extents[0],
                                (unsigned)key->part.elements,
                                (unsigned)key->part.outputs,
                                (unsigned)key->part.before};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) hash = (hash ^ numbers[i]) * 0x9E3779B97F4A7C15u;
    return hash >> 20;
}

static inline bool launch_table_is_same(const launch_key *one, const launch_key *other) {
    return memcmp(one, other, sizeof *one) == 0;
}

MAYA_DEFINE_TABLE(launch_table, launch_entry, const launch_key *, 4096)

static launch_table launches; /* all launches so far */

static void hash_extents(launch_key *key, const maya_launch_arguments *arguments) {
    for (size_t i = 0; i < arguments->extent_count; i++) {
        uint64_t value = arguments->extents[i] + i + 1;
        key->extents[0] = (key->extents[0] ^ value) * 0xFF51AFD7ED558CCDu;
        key->extents[0] ^= key->extents[0] >> 32;
        key->extents[1] = (key->extents[1] + value) * 0xC4CEB9FE1A85EC53u;
        key->extents[1] ^= key->extents[1] >> 29;
    }
}

enum { NAME_LENGTH = 7900, SIGNATURE_LENGTH = NAME_LENGTH + 512 + 21 * MAYA_PARAMETERS };

static uint32_t make_signature(const launch_key *key, const maya_launch_arguments *arguments) {
    char text[SIGNATURE_LENGTH];
    const maya_cubin_kernel *resources = key->kernel->resources;
    const maya_launch_part *part = &key->part;
    bool is_over_list = key->kernel->part_kind == MAYA_PART_BLOCKS || key->kernel->part_kind == MAYA_PART_TENSORS;
    size_t length =
        (size_t)snprintf(text, sizeof text, "{\"kernel\":\"%.*s\",\"grid\":[%u,%u,%u],\"block\":[%u,%u,%u],\"shared\":%zu",
                         NAME_LENGTH, key->kernel->name, key->grid[0], key->grid[1], key->grid[2], key->block[0], key->block[1],
                         key->block[2], key->shared_bytes + (size_t)(resources ? resources->shared_bytes : 0));
#define APPEND(...) (length += (size_t)snprintf(text + length, sizeof text - length, __VA_ARGS__))
    if (resources) APPEND(",\"registers\":%d", resources->registers);
    if (is_over_list) APPEND(",\"before\":%" PRId64, part->before);
    else if (part->elements) APPEND(",\"elements\":%" PRId64, part->elements);
    if (part->outputs) APPEND(",\"outputs\":%" PRId64, part->outputs);
    if (resources && resources->source[0] && strpbrk(resources->source, "\"\\") == NULL) {
        APPEND(",\"source\":\"%s\",\"line\":%d", resources->source, resources->line);
    }
    if (resources && resources->tensor_cores) APPEND(",\"tensor_cores\":true");
    for (size_t i = 0; i < arguments->extent_count; i++) {
        APPEND("%s%llu", i ? "," : ",\"pointers\":[", (unsigned long long)arguments->extents[i]);
    }
    APPEND(arguments->extent_count ? "]}" : "}");
#undef APPEND
    return maya_intern(text, length);
}

static uint32_t find_signature(const launch_key *key, const maya_launch_arguments *arguments) {
    pthread_mutex_lock(&maya_kernels_lock);
    launch_entry *entry = launch_table_place(&launches, key);
    if (entry->key.kernel == NULL) entry->key = *key;
    if (entry->signature == 0 && maya_is_recording()) entry->signature = make_signature(key, arguments);
    uint32_t signature = entry->signature;
    pthread_mutex_unlock(&maya_kernels_lock);
    return signature;
}

/* Asks the thread's own recent launches first: they need no lock. */
static uint32_t launch_signature(const launch_key *key, const maya_launch_arguments *arguments) {
    enum { BITS = 8 };
    static __thread launch_entry *remembered;
    if (remembered == NULL) maya_thread_table((void **)&remembered, (1 << BITS) * sizeof *remembered);
    uint64_t mixed = (uintptr_t)key->kernel ^ (uint64_t)key->grid[0] << 24 ^ (uint64_t)key->grid[1] << 48 ^ key->block[0] ^
                     (uint64_t)key->part.elements << 8 ^ (uint64_t)key->part.before << 16 ^ key->extents[0];
    launch_entry *entry = &remembered[mixed * 0x9E3779B97F4A7C15u >> (64 - BITS)];
    bool is_known = memcmp(&entry->key, key, sizeof *key) == 0;
    /* a signature of 0: recording was off when it was looked up */
    if (!is_known || (entry->signature == 0 && maya_is_recording())) {
        *entry = (launch_entry){*key, find_signature(key, arguments)};
    }
    return entry->signature;
}

int maya_kernel_launch(maya_kernel *kernel, const unsigned grid[3], const unsigned block[3], size_t shared_bytes, void *stream,
                       const maya_launch_arguments *arguments) {
    MAYA_OWN_TIME;
    if (maya_get_settings()->bare) return CUDA_OK;
    if (kernel == NULL) return CUDA_INVALID_DEVICE_FUNCTION;
    size_t threads = (size_t)block[0] * block[1] * block[2];
    /* the limits of every compute capability since 3.0 */
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || threads == 0 || threads > 1024 || block[2] > 64 ||
        grid[0] > 2147483647u || grid[1] > 65535u || grid[2] > 65535u ||
        (int64_t)shared_bytes > maya_get_settings()->device.shared_per_block_optin) {
        return CUDA_INVALID_CONFIGURATION;
    }
    launch_key key;
    memset(&key, 0, sizeof key); /* padding takes part in the comparison */
    key.kernel = kernel;
    memcpy(key.grid, grid, sizeof key.grid);
    memcpy(key.block, block, sizeof key.block);
    key.shared_bytes = shared_bytes;
    if (kernel->part_kind == MAYA_PART_UNDECIDED) {
        kernel->part_kind =
            (uint8_t)maya_part_kind_of(kernel->name, kernel->host_function == NULL && kernel->resources == NULL);
    }
    maya_read_part(kernel->part_kind, kernel, grid, block, arguments->values, &key.part);
    hash_extents(&key, arguments);
    maya_command command = {.kind = MAYA_RECORD_KERNEL, .signature = launch_signature(&key, arguments)};
    return maya_submit(stream, &command);
}

/* How many blocks of that size fit on a multiprocessor. Register use is unknown and does not limit them. */
int maya_occupancy(int block_threads, size_t shared_bytes) {
    const maya_device_properties *device = &maya_get_settings()->device;
    int warps_threads = (block_threads + 31) / 32 * 32;
    int blocks = warps_threads > 0 ? device->max_threads_per_sm / warps_threads : device->max_blocks_per_sm;
    if (blocks > device->max_blocks_per_sm) blocks = device->max_blocks_per_sm;
    size_t per_block = shared_bytes + (size_t)device->reserved_shared_per_block;
    if (shared_bytes > 0 && (size_t)blocks * per_block > (size_t)device->shared_per_sm) {
        blocks = (int)((size_t)device->shared_per_sm / per_block);
    }
    return blocks;
}
