/* Groups: between ncclGroupStart and the outermost ncclGroupEnd of a thread, calls only gather.
 *
 * Communicators begin to meet when they are asked for and are waited for at the end, so that a thread can make several that
 * depend on each other. The operations are handed on at the end, in the order of the calls, or, if one of them was refused,
 * none. A call outside a group is a group of its own. */

#include "nccl_internal.h"

#include <stdlib.h>

static __thread struct {
    int depth;
    nccl_result refused; /* the first error of a call in this group */
    nccl_operation *operations;
    size_t count, capacity;
    nccl_communicator ***births; /* where the handles are */
    size_t birth_count, birth_capacity;
} group;

void nccl_group_open(void) {
    if (group.depth++ == 0) group.refused = NCCL_SUCCESS;
}

bool nccl_group_is_open(void) { return group.depth > 0; }

void nccl_group_refuse(nccl_result result) {
    if (group.refused == NCCL_SUCCESS) group.refused = result;
}

static void forget_group(void) {
    free(group.operations);
    free(group.births);
    group.operations = NULL;
    group.births = NULL;
    group.count = group.capacity = group.birth_count = group.birth_capacity = 0;
}

static nccl_result wait_for_births(void) {
    nccl_result result = NCCL_SUCCESS;
    bool in_progress = false;
    for (size_t i = 0; i < group.birth_count; i++) {
        nccl_communicator **handle = group.births[i];
        nccl_result born = (*handle)->blocking ? nccl_wait_for_birth(handle) : NCCL_IN_PROGRESS;
        if (born == NCCL_IN_PROGRESS) in_progress = true;
        else if (result == NCCL_SUCCESS) result = born;
    }
    return result == NCCL_SUCCESS && in_progress ? NCCL_IN_PROGRESS : result;
}

nccl_result nccl_group_close(void) {
    MAYA_OWN_TIME;
    if (group.depth == 0) return nccl_fail(NCCL_INVALID_USAGE, "ncclGroupEnd without ncclGroupStart");
    if (--group.depth > 0) return NCCL_SUCCESS;
    nccl_result born = wait_for_births(), result = group.refused;
    if (result == NCCL_SUCCESS) result = born;
    bool agreed = result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS;
    if (agreed && group.count > 0) {
        nccl_result posted = nccl_post(group.operations, group.count);
        if (posted != NCCL_SUCCESS) result = posted;
    }
    forget_group();
    return result;
}

MAYA_API nccl_result ncclGroupStart(void) {
    nccl_group_open();
    return NCCL_SUCCESS;
}

MAYA_API nccl_result ncclGroupEnd(void) { return nccl_group_close(); }

/* Would close the group without starting it and say how long it takes: durations are known only after the run. */
MAYA_API nccl_result ncclGroupSimulateEnd(void *simulation_info) {
    (void)simulation_info;
    if (group.depth == 0) return nccl_fail(NCCL_INVALID_USAGE, "ncclGroupSimulateEnd without ncclGroupStart");
    if (--group.depth == 0) {
        wait_for_births();
        forget_group();
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

nccl_result nccl_group_add_birth(nccl_communicator **handle) {
    if (group.birth_count == group.birth_capacity) {
        size_t capacity = group.birth_capacity ? 2 * group.birth_capacity : 8;
        nccl_communicator ***grown = realloc(group.births, capacity * sizeof *grown);
        if (grown == NULL) return nccl_fail(NCCL_SYSTEM_ERROR, "out of memory");
        group.births = grown;
        group.birth_capacity = capacity;
    }
    group.births[group.birth_count++] = handle;
    return NCCL_SUCCESS;
}
