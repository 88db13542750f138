/* launch_part.c: which part of its op a kernel launch does. */

#ifndef MAYA_LAUNCH_PART_H
#define MAYA_LAUNCH_PART_H

#include "internal.h"

/* Where a kernel's launches say it. */
typedef enum {
    MAYA_PART_UNDECIDED,     /* its name has not been looked at */
    MAYA_PART_ALL,           /* nowhere: it does all that its op asks for, as far as is known */
    MAYA_PART_COUNT_32,      /* the first argument is the number of elements, an int ... */
    MAYA_PART_COUNT_64,      /* ... or a long */
    MAYA_PART_REDUCTION,     /* the ReduceConfig in the first argument */
    MAYA_PART_JIT_COUNT,     /* the first argument, if it is of torch's jiterator, which compiles kernels at run time ... */
    MAYA_PART_JIT_REDUCTION, /* ... and so */
    MAYA_PART_BLOCKS,        /* each block does one chunk of a list of tensors, in order */
    MAYA_PART_TENSORS,       /* grid[1] is the number of tensors of a list that it does, in order */
    MAYA_PART_ARGUMENT,      /* plus n: argument n is the number of elements */
} maya_part_kind;

typedef struct {
    int64_t elements; /* that it goes through; 0: not known */
    int64_t outputs;  /* of a reduction: results; 0: not known */
    int64_t before;   /* of kernels over lists: chunks or tensors that the op's launches before have done */
} maya_launch_part;

maya_part_kind maya_part_kind_of(const char *name, bool is_compiled_at_run_time);
/* Counts the launch among those of its op, so it is called once for each. `part` is all zeros. */
void maya_read_part(maya_part_kind kind, const void *kernel, const unsigned grid[3], const unsigned block[3], void **arguments,
                    maya_launch_part *part);

#endif
