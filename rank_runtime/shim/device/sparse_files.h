/* What sparse_files.c and hole_reads.c agree on. */
#pragma once

#include <stddef.h>

/* Zeros of at least this size become a hole, and a hole of at least this size is not read. */
#define MAYA_WORTH_A_HOLE ((size_t)1 << 20)

/* The extended attribute of files whose holes are placeholders. */
#define MAYA_HOLES_ATTRIBUTE "user.maya.placeholders"

/* The next definition of a function of libc that this library interposes. */
void *maya_next_function(const char *name);
