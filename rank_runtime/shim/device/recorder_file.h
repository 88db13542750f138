/* The trace file: a header, then blocks, each appended whole. maya/trace/format.py describes the format.
 *
 * In: blocks, from recorder.c, which holds its lock around every call. Out: the file named by the settings. An error is
 * reported once, with the file's name; the functions then return false, and the file stays readable up to there. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "trace_format.h"

/* The most pieces in the payload of one block; few, because they lie on the stack of the program's threads. */
enum { MAYA_BLOCK_PIECES = 129 };

bool maya_trace_file_is_open(void);
/* started_ns: the wall clock at the trace's time 0, in nanoseconds since 1970. */
bool maya_trace_file_open(uint64_t started_ns);
bool maya_trace_file_append(maya_block_kind kind, uint32_t count, const struct iovec *pieces, int piece_count);
void maya_trace_file_close(void);
/* In a forked child: drops the parent's file; a file opened from now on is the child's own. */
void maya_trace_file_leave_to_parent(void);
/* In a process that becomes a rank: a file opened from now on has the name in the settings. */
void maya_trace_file_is_ours(void);
