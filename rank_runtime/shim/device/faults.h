/* Faults that are made on purpose in this rank (--inject).
 *
 * In: MAYA_FAULTS, "kill:rank=3,call=10;oom:rank=3,bytes=1048576;...", and the rank's calls of NCCL, optimizer steps and
 * allocations as the host makes them, each counted from 1. Out: what goes wrong. Every fault happens once; one that never
 * has is named when the process ends. Children of a rank have no faults. */
#pragma once

#include "device.h"

typedef enum {
    MAYA_CALL_IS_FINE,
    MAYA_CALL_RAISES,  /* it fails at once, and torch raises an exception */
    MAYA_CALL_DROPPED, /* nobody hears of it, and the rank takes it for complete */
    MAYA_CALL_FAILS,   /* later, as if the network had */
} maya_call_fault;

/* The host makes a call on a communicator of several ranks. Does not return if the fault is the rank's end, and returns late
 * if it is a delay. `text` gets what is to be said. */
MAYA_API maya_call_fault maya_fault_at_call(char *text, size_t size);
/* An optimizer step has ended. */
void maya_fault_at_step(void);
/* The host asks for memory of the device. true: there is none. It stays so for all attempts at that size, until the host asks
 * how much there is: PyTorch's allocator gives back what it can and tries again, and asks when it gives up. */
bool maya_fault_at_allocation(size_t size);
/* The host asks how much memory is free: true if it has just been told that there is none. */
bool maya_fault_explains(void);
