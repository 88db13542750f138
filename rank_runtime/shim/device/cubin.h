/* Properties of the kernels in a cubin (an ELF file with machine code for a GPU). */
#pragma once

#include "device.h"

enum { MAYA_PARAMETERS = 128, MAYA_SOURCE_NAME = 96 };

typedef struct {
    int registers;                             /* per thread */
    int shared_bytes;                          /* static, per block */
    int parameters;                            /* how many, as far as room allows ... */
    uint16_t parameter_bytes[MAYA_PARAMETERS]; /* ... and the size of each */
    /* From the debug information of a cubin with one kernel, which Triton's are: */
    char source[MAYA_SOURCE_NAME]; /* the file it was compiled from, without its folder; "" if that is not known */
    int line;                      /* where the kernel begins there */
    bool tensor_cores;             /* its PTX has matrix instructions */
} maya_cubin_kernel;

/* Bytes of the cubin at `image`, or 0 if it is none. */
MAYA_API size_t maya_cubin_size(const void *image);
/* false: the cubin has no kernel of that name. */
MAYA_API bool maya_cubin_find(const void *image, const char *name, maya_cubin_kernel *kernel);
