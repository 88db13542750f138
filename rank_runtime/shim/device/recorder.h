/* What the parts of the recorder share; the functions for everybody else are in device.h. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "device.h"

/* A flag of OP and ANNOTATION records: the duration is in microseconds, because in nanoseconds it would not fit. */
enum { MAYA_FLAG_MICROSECONDS = 128 };

/* false without a trace path, in bare mode, and after the file could not be written or was ended. */
bool maya_is_recording(void);

/* As maya_record, for a caller that holds maya_recorder_lock because of books of its own that go with the records; only
 * while maya_is_recording. */
void maya_record_locked(maya_record_kind kind, uint32_t stream_number, uint32_t signature, uint64_t value, uint8_t flags);

/* Write what is buffered and the block that marks a clean end. Does nothing in a process that did not record, nor when
 * another thread keeps the lock for long: the caller is about to end the process, perhaps from a signal handler. */
void maya_record_end(void);
