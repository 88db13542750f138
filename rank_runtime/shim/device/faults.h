/* Injects faults into this rank (--inject).
 *
 * In: MAYA_FAULTS, "kill:rank=3,call=10;oom:rank=3,bytes=1048576;...", and the rank's NCCL calls, optimizer steps and
 * allocations, each counted from 1. Out: the faults. Every fault happens once; at the end of the process, faults that never
 * happened are reported. Children of a rank have no faults. */
#pragma once

#include "device.h"

typedef enum {
    MAYA_CALL_IS_FINE,
    MAYA_CALL_RAISES,  /* it fails at once, and torch raises an exception */
    MAYA_CALL_DROPPED, /* it is not sent, and the rank takes it for complete */
    MAYA_CALL_FAILS,   /* it fails later, like a network error */
} maya_call_fault;

/* The host makes a call on a communicator of several ranks. Does not return if the fault kills the rank, and returns late if it
 * is a delay. `text` receives the error message. */
MAYA_API maya_call_fault maya_fault_at_call(char *text, size_t size);
/* An optimizer step has ended. */
void maya_fault_at_step(void);
/* The host allocates device memory. true: out of memory. All further attempts at that size fail until the host asks how much
 * memory is free: PyTorch's allocator frees its cache and tries again, and asks when it gives up. */
bool maya_fault_at_allocation(size_t size);
/* The host asks how much memory is free: true if an injected fault has just exhausted it. */
bool maya_fault_explains(void);
