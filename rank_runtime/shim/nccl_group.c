/* Groups: calls between ncclGroupStart and the outermost ncclGroupEnd of a thread are collected.
 *
 * The init of a communicator begins at its call and is waited for at the end of the group, so that a thread can make several
 * communicators that depend on each other. Operations are submitted at the end, in the order of the calls; if one of them was
 * refused, none is. A call outside a group is a group of its own. */

#include "nccl_internal.h"

#include <stdlib.h>

static __thread struct {
    int depth;
    nccl_result refused; /* the first error of a call in this group */
    nccl_operation *operations;
    size_t count, capacity;
    nccl_communicator ***inits; /* the communicators whose init began in this group */
    size_t init_count, init_capacity;
} group;

void nccl_group_open(void) {
    if (group.depth++ == 0) group.refused = NCCL_SUCCESS;
}

bool nccl_group_is_open(void) { return group.depth > 0; }

void nccl_group_refuse(nccl_result result) {
    if (group.refused == NCCL_SUCCESS) group.refused = result;
}

static void reset_group(void) {
    free(group.operations);
    free(group.inits);
    group.operations = NULL;
    group.inits = NULL;
    group.count = group.capacity = group.init_count = group.init_capacity = 0;
}

static nccl_result wait_for_inits(void) {
    nccl_result result = NCCL_SUCCESS;
    bool in_progress = false;
    for (size_t i = 0; i < group.init_count; i++) {
        nccl_communicator **handle = group.inits[i];
        nccl_result init_result = (*handle)->blocking ? nccl_wait_for_init(handle) : NCCL_IN_PROGRESS;
        if (init_result == NCCL_IN_PROGRESS) in_progress = true;
        else if (result == NCCL_SUCCESS) result = init_result;
    }
    return result == NCCL_SUCCESS && in_progress ? NCCL_IN_PROGRESS : result;
}

nccl_result nccl_group_close(void) {
    MAYA_OWN_TIME;
    if (group.depth == 0) return nccl_fail(NCCL_INVALID_USAGE, "ncclGroupEnd without ncclGroupStart");
    if (--group.depth > 0) return NCCL_SUCCESS;
    nccl_result init_result = wait_for_inits(), result = group.refused;
    if (result == NCCL_SUCCESS) result = init_result;
    bool agreed = result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS;
    if (agreed && group.count > 0) {
        nccl_result posted = nccl_post(group.operations, group.count);
        if (posted != NCCL_SUCCESS) result = posted;
    }
    reset_group();
    return result;
}

MAYA_API nccl_result ncclGroupStart(void) {
    nccl_group_open();
    return NCCL_SUCCESS;
}

MAYA_API nccl_result ncclGroupEnd(void) { return nccl_group_close(); }

/* NCCL's function estimates the duration of the group instead of starting it. Not emulated: Maya's durations are known only
 * after the run. */
MAYA_API nccl_result ncclGroupSimulateEnd(void *simulation_info) {
    (void)simulation_info;
    if (group.depth == 0) return nccl_fail(NCCL_INVALID_USAGE, "ncclGroupSimulateEnd without ncclGroupStart");
    if (--group.depth == 0) {
        wait_for_inits();
        reset_group();
    }
    maya_unsupported("ncclGroupSimulateEnd");
    return nccl_fail(NCCL_INVALID_USAGE, "ncclGroupSimulateEnd is not emulated");
}

nccl_result nccl_group_add_operation(const nccl_operation *operation) {
    if (group.count == group.capacity) {
        size_t capacity = group.capacity ? 2 * group.capacity : 16;
        nccl_operation *grown = realloc(group.operations, capacity * sizeof *grown);
        if (grown == NULL) return nccl_fail(NCCL_SYSTEM_ERROR, "out of memory");
        group.operations = grown;
        group.capacity = capacity;
    }
    group.operations[group.count++] = *operation;
    return NCCL_SUCCESS;
}

nccl_result nccl_group_add_init(nccl_communicator **handle) {
    if (group.init_count == group.init_capacity) {
        size_t capacity = group.init_capacity ? 2 * group.init_capacity : 8;
        nccl_communicator ***grown = realloc(group.inits, capacity * sizeof *grown);
        if (grown == NULL) return nccl_fail(NCCL_SYSTEM_ERROR, "out of memory");
        group.inits = grown;
        group.init_capacity = capacity;
    }
    group.inits[group.init_count++] = handle;
    return NCCL_SUCCESS;
}
