/* What the parts of the recorder share; the functions for everybody else are in device.h. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "device.h"

/* One record; its fields are the columns of rank_runtime/trace_format.py. */
typedef struct {
    uint64_t host_ns, value;
    uint32_t signature, op, stream, thread, ops;
    uint8_t kind, flags;
} maya_trace_record;

/* Called with every record in the order of the trace, by its thread, under the recorder's lock; NULL: nobody is. */
typedef void (*maya_record_listener)(maya_thread *thread, const maya_trace_record *record);
extern maya_record_listener maya_clock_listener;

/* false without a trace path, in bare mode, and after the trace was ended. A file that cannot be written ends the file alone:
 * records are still taken, because the virtual clock counts them. */
bool maya_is_recording(void);

/* The signature of a kernel with that of the op that the calling thread is in. Without locks: it may take Python's. */
uint32_t maya_signature_with_op(uint32_t signature);

/* As maya_record, for a caller that holds maya_recorder_lock because of books of its own that go with the records; only
 * while maya_is_recording. */
void maya_record_locked(maya_record_kind kind, uint32_t stream_number, uint32_t signature, uint64_t value, uint8_t flags);

/* The calling thread's delay goes into the trace now; otherwise it does before the thread's next record. The caller holds the
 * lock. */
void maya_record_delay_locked(void);

/* Write what is buffered and the block that marks a clean end. Does nothing in a process that did not record, nor when
 * another thread keeps the lock for long: the caller is about to end the process, perhaps from a signal handler. */
void maya_record_end(void);
