/* libnvshmem_host.so.3: NVSHMEM for one processing element (PE), as torch's symmetric memory uses it from the host.
 *
 * With one PE the symmetric heap is plain device memory, every transfer is a local copy in stream order, and barriers
 * return at once. More than one PE is refused. Calls made by kernels are not seen here, because kernels do not run. */

#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

enum { NVSHMEM_SUCCESS = 0, NVSHMEM_ERROR = 1 };
enum { NOT_INITIALISED = 0, INITIALISED = 2 };
enum { TEAM_INVALID = -1, PREDEFINED_TEAMS = 16 };

typedef struct {
    int version;
    char bytes[124];
} nvshmem_unique_id;

/* nvshmemx_init_attr_t: only the arguments of initialisation by unique id are read. */
typedef struct {
    int version;
    void *mpi_communicator;
    int arguments_version;
    struct {
        int version;
        const nvshmem_unique_id *id;
        int rank, ranks;
    } unique_id;
    char rest[96];
} nvshmem_attributes;

typedef struct {
    int major, minor, patch;
} nvshmem_version;

static int status = NOT_INITIALISED;

/* The network transport that kernels use: none. In the real library this is an object as well, not a function. */
MAYA_API int nvshmem_selected_device_transport;

/* ---- life cycle ---- */

MAYA_API int nvshmemx_get_uniqueid(nvshmem_unique_id *id) {
    if (id == NULL) return NVSHMEM_ERROR;
    return getrandom(id->bytes, sizeof id->bytes, 0) == sizeof id->bytes ? NVSHMEM_SUCCESS : NVSHMEM_ERROR;
}

MAYA_API int nvshmemx_set_attr_uniqueid_args(int rank, int ranks, const nvshmem_unique_id *id, nvshmem_attributes *attributes) {
    if (attributes == NULL || id == NULL || rank < 0 || rank >= ranks) return NVSHMEM_ERROR;
    attributes->unique_id.id = id;
    attributes->unique_id.rank = rank;
    attributes->unique_id.ranks = ranks;
    return NVSHMEM_SUCCESS;
}

MAYA_API int nvshmemid_hostlib_init_attr(int requested, int *provided, unsigned flags, const nvshmem_attributes *attributes,
                                         nvshmem_version device_library, int (*initialise_device)(void **, void **)) {
    (void)device_library, (void)initialise_device; /* hands the state over to kernels */
    enum { WITH_UNIQUE_ID = 1 << 3 };
    if (!(flags & WITH_UNIQUE_ID) || attributes == NULL || attributes->unique_id.ranks != 1) {
        maya_unsupported_detail("nvshmemx_init_attr", "anything but one PE with a unique id");
        return NVSHMEM_ERROR;
    }
    if (provided != NULL) *provided = requested;
    status = INITIALISED;
    return NVSHMEM_SUCCESS;
}

MAYA_API int nvshmemid_init_status(void) { return status; }

MAYA_API void nvshmemid_hostlib_finalize(void *device_context, void *transport_context) {
    (void)device_context, (void)transport_context;
    status = NOT_INITIALISED;
}

/* A module whose kernels use NVSHMEM; its kernels do not run. */
MAYA_API int nvshmemx_cumodule_init(void *module) { return module == NULL ? NVSHMEM_ERROR : NVSHMEM_SUCCESS; }

/* The version of the OpenSHMEM specification. */
MAYA_API void nvshmem_info_get_version(int *major, int *minor) {
    *major = 1;
    *minor = 3;
}

/* ---- memory ---- */

MAYA_API void *nvshmem_malloc(size_t size) {
    void *address = NULL;
    if (status != INITIALISED || size == 0) return NULL;
    return maya_device_malloc(maya_current_device(), size, &address) == 0 ? address : NULL;
}

MAYA_API void nvshmem_free(void *address) {
    if (address != NULL) maya_device_free(address);
}

MAYA_API void *nvshmem_ptr(const void *address, int pe) { return pe == 0 ? (void *)address : NULL; }

/* No multicast address: there is no switch to multicast in. */
MAYA_API void *nvshmemx_mc_ptr(int32_t team, const void *address) {
    (void)team, (void)address;
    return NULL;
}

/* ---- teams: each has this PE as its only member ---- */

static int32_t next_team = PREDEFINED_TEAMS;

MAYA_API int nvshmem_team_n_pes(int32_t team) { return team == TEAM_INVALID ? -1 : 1; }

MAYA_API int nvshmem_team_split_strided(int32_t parent, int start, int stride, int size, const void *config, long mask,
                                        int32_t *team) {
    (void)stride, (void)config, (void)mask;
    if (team == NULL) return NVSHMEM_ERROR;
    bool possible = parent != TEAM_INVALID && start == 0 && size == 1;
    *team = possible ? __atomic_fetch_add(&next_team, 1, __ATOMIC_RELAXED) : TEAM_INVALID;
    return possible ? NVSHMEM_SUCCESS : NVSHMEM_ERROR;
}

MAYA_API void nvshmem_barrier_all(void) {} /* there is only one PE */

/* ---- transfers on a stream ---- */

typedef struct {
    void *target;
    const void *source;
    size_t size;
    uint64_t *signal; /* set (or added to) after the copy; NULL: none */
    uint64_t signal_value;
    bool add;
} transfer;

static void run_transfer(void *argument) {
    const transfer *request = argument;
    if (request->size > 0 && request->target != request->source)
        maya_values_copy(request->target, request->source, request->size);
    if (request->signal == NULL) return;
    *request->signal = request->signal_value + (request->add ? *request->signal : 0);
    maya_values_known(request->signal, sizeof *request->signal);
}

static int submit(const char *call, void *stream, transfer request) {
    transfer *argument = malloc(sizeof *argument);
    if (argument == NULL) return NVSHMEM_ERROR;
    *argument = request;
    char text[96];
    int length = snprintf(text, sizeof text, "{\"call\":\"%s\",\"bytes\":%zu}", call, request.size);
    maya_command submitted = {
        .run = run_transfer,
        .release = free,
        .argument = argument,
        .kind = MAYA_RECORD_LIBRARY, /* local: there is only one PE */
        .signature = maya_intern(text, (size_t)length),
    };
    return maya_submit(stream, &submitted) == 0 ? NVSHMEM_SUCCESS : NVSHMEM_ERROR;
}

/* These calls return no status, so a PE that does not exist is reported in a message. */
static bool is_this_pe(const char *call, int pe) {
    if (pe != 0) maya_unsupported_detail(call, "PE %d", pe);
    return pe == 0;
}

MAYA_API void nvshmemx_putmem_on_stream(void *target, const void *source, size_t size, int pe, void *stream) {
    if (is_this_pe(__func__, pe)) submit(__func__, stream, (transfer){target, source, size, NULL, 0, false});
}

MAYA_API void nvshmemx_getmem_on_stream(void *target, const void *source, size_t size, int pe, void *stream) {
    if (is_this_pe(__func__, pe)) submit(__func__, stream, (transfer){target, source, size, NULL, 0, false});
}

MAYA_API void nvshmemx_putmem_signal_on_stream(void *target, const void *source, size_t size, uint64_t *signal, uint64_t value,
                                               int operation, int pe, void *stream) {
    enum { SIGNAL_ADD = 10 };
    transfer request = {target, source, size, signal, value, operation == SIGNAL_ADD};
    if (is_this_pe(__func__, pe)) submit(__func__, stream, request);
}

/* Only this PE can have raised the signal, and only by earlier work, so there is nothing to wait for. */
MAYA_API void nvshmemx_signal_wait_until_on_stream(uint64_t *signal, int comparison, uint64_t value, void *stream) {
    (void)signal, (void)comparison, (void)value;
    submit(__func__, stream, (transfer){0});
}

MAYA_API int nvshmemx_alltoallmem_on_stream(int32_t team, void *target, const void *source, size_t size, void *stream) {
    (void)team;
    return submit(__func__, stream, (transfer){target, source, size, NULL, 0, false});
}

MAYA_API int nvshmemx_broadcastmem_on_stream(int32_t team, void *target, const void *source, size_t size, int root,
                                             void *stream) {
    (void)team;
    if (!is_this_pe(__func__, root)) return NVSHMEM_ERROR;
    return submit(__func__, stream, (transfer){target, source, size, NULL, 0, false});
}
