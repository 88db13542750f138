/* Groups: calls between ncclGroupStart and the outermost ncclGroupEnd of a thread are collected.
 *
 * The init of a communicator begins at its call and is waited for at the end of the group, so that a thread can make several
 * communicators that depend on each other. Operations are submitted at the end, in the order of the calls; if one of them was
 * refused, none is. A call outside a group is a group of its own. */

#include "device/routing.h"
#include "device/vector.h"
#include "nccl_internal.h"

static __thread struct {
    int depth;
    nccl_result refused; /* the first error of a call in this group */
    MAYA_VECTOR(nccl_operation) operations;
    MAYA_VECTOR(nccl_communicator **) inits; /* the communicators whose init began in this group */
} group;

void nccl_group_open(void) {
    if (group.depth++ == 0) group.refused = NCCL_SUCCESS;
}

bool nccl_group_is_open(void) { return group.depth > 0; }

void nccl_group_refuse(nccl_result result) {
    if (group.refused == NCCL_SUCCESS) group.refused = result;
}

static void reset_group(void) {
    maya_vector_clear(&group.operations);
    maya_vector_clear(&group.inits);
}

static nccl_result wait_for_inits(void) {
    nccl_result result = NCCL_SUCCESS;
    bool in_progress = false;
    for (size_t i = 0; i < group.inits.count; i++) {
        nccl_communicator **handle = group.inits.items[i];
        nccl_result init_result = (*handle)->blocking ? nccl_wait_for_init(handle) : NCCL_IN_PROGRESS;
        if (init_result == NCCL_IN_PROGRESS) in_progress = true;
        else if (result == NCCL_SUCCESS) result = init_result;
    }
    return result == NCCL_SUCCESS && in_progress ? NCCL_IN_PROGRESS : result;
}

/* Marks what the group's operations receive like what they send. A send and a receive of one group are two directions of an
 * exchange. */
static void follow_routing(void) {
    uint32_t sent = 0;
    for (size_t i = 0; i < group.operations.count; i++) {
        const nccl_operation *operation = &group.operations.items[i];
        if (operation->call == NCCL_SEND) sent |= maya_routing_marks(operation->send, nccl_send_bytes(operation));
    }
    for (size_t i = 0; i < group.operations.count; i++) {
        nccl_operation *operation = &group.operations.items[i];
        uint32_t marks = sent;
        if (!nccl_is_p2p(operation)) marks = maya_routing_marks(operation->send, nccl_send_bytes(operation));
        if (operation->call == NCCL_SEND) marks = maya_routing_marks(operation->send, nccl_send_bytes(operation));
        else maya_routing_mark(operation->receive, nccl_receive_bytes(operation), marks);
        operation->routed = maya_routing_is_work(marks);
    }
}

nccl_result nccl_group_close(void) {
    MAYA_OWN_TIME;
    if (group.depth == 0) return nccl_fail(NCCL_INVALID_USAGE, "ncclGroupEnd without ncclGroupStart");
    if (--group.depth > 0) return NCCL_SUCCESS;
    nccl_result init_result = wait_for_inits(), result = group.refused;
    if (result == NCCL_SUCCESS) result = init_result;
    bool agreed = result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS;
    if (agreed && group.operations.count > 0) {
        if (maya_routing_exists()) follow_routing();
        nccl_result posted = nccl_post(group.operations.items, group.operations.count);
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

void nccl_group_add_operation(const nccl_operation *operation) { *maya_vector_add(&group.operations) = *operation; }

void nccl_group_add_init(nccl_communicator **handle) { *maya_vector_add(&group.inits) = handle; }
