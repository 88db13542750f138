/* Functions of the recorder for other files of the device; device.h has those for all libraries. */
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

/* Called with every record in the order of the trace, by its thread, under the recorder's lock; NULL: no listener. */
typedef void (*maya_record_listener)(maya_thread *thread, const maya_trace_record *record);
extern maya_record_listener maya_clock_listener;

/* false without a trace path, in bare mode, and after the trace has ended. If the file cannot be written, only the file ends:
 * recording continues, because the virtual clock needs the records. */
bool maya_is_recording(void);

/* The signature of a kernel with that of the calling thread's op. Call it without locks: it may take the GIL. */
uint32_t maya_signature_with_op(uint32_t signature);

/* As maya_record, for a caller that holds maya_recorder_lock because its own state must change together with the trace; only
 * while maya_is_recording. */
void maya_record_locked(maya_record_kind kind, uint32_t stream_number, uint32_t signature, uint64_t value, uint8_t flags);

/* Records the calling thread's delay now instead of before the thread's next record. The caller holds the lock. */
void maya_record_delay_locked(void);

/* Writes the buffered records and the block that marks a clean end. Does nothing in a process that did not record, or if
 * another thread holds the lock for long: the caller is about to end the process, perhaps from a signal handler. */
void maya_record_end(void);
