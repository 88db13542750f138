/* launch_part.c: which part of its op a kernel launch does. */

#ifndef MAYA_LAUNCH_PART_H
#define MAYA_LAUNCH_PART_H

#include "internal.h"

/* How to find the part of a kernel's launches. */
typedef enum {
    MAYA_PART_UNDECIDED,     /* its name has not been examined yet */
    MAYA_PART_ALL,           /* a launch does the whole op, as far as is known */
    MAYA_PART_COUNT_32,      /* the first argument is the number of elements, an int ... */
    MAYA_PART_COUNT_64,      /* ... or a long */
    MAYA_PART_REDUCTION,     /* the ReduceConfig in the first argument */
    MAYA_PART_JIT_COUNT,     /* as COUNT_32, if the kernel is of torch's jiterator, which compiles kernels at run time */
    MAYA_PART_JIT_REDUCTION, /* as REDUCTION, if it is of the jiterator */
    MAYA_PART_BLOCKS,        /* each block does one chunk of a list of tensors, in order */
    MAYA_PART_TENSORS,       /* grid[1] is the number of tensors of a list, in order */
    MAYA_PART_ARGUMENT,      /* plus n: argument n is the number of elements */
} maya_part_kind;

typedef struct {
    int64_t elements; /* elements that it processes; 0: unknown */
    int64_t outputs;  /* results of a reduction; 0: unknown */
    int64_t before;   /* for kernels over lists: chunks or tensors done by the op's earlier launches */
} maya_launch_part;

maya_part_kind maya_part_kind_of(const char *name, bool is_compiled_at_run_time);
/* Call it once for each launch: it counts the launches of an op. `part` must be all zeros. */
void maya_read_part(maya_part_kind kind, const void *kernel, const unsigned grid[3], const unsigned block[3], void **arguments,
                    maya_launch_part *part);

#endif
