/* The state of a cuBLAS handle, and the few steps that every cuBLAS function takes. */
#pragma once

#include "cublas_types.h"

/* cublasStatus_t */
enum {
    CUBLAS_SUCCESS = 0,
    CUBLAS_NOT_INITIALIZED = 1,
    CUBLAS_ALLOC_FAILED = 3,
    CUBLAS_INVALID_VALUE = 7,
    CUBLAS_ARCH_MISMATCH = 8,
    CUBLAS_MAPPING_ERROR = 11,
    CUBLAS_EXECUTION_FAILED = 13,
    CUBLAS_INTERNAL_ERROR = 14,
    CUBLAS_NOT_SUPPORTED = 15,
    CUBLAS_LICENSE_ERROR = 16,
};

/* cublasPointerMode_t: where alpha, beta and scalar results live */
enum { POINTER_HOST = 0, POINTER_DEVICE = 1 };

/* cublasMath_t: a mode in the low bits, and a flag on reductions whose effect on time is negligible */
enum { MATH_DEFAULT = 0, MATH_TENSOR_OP = 1, MATH_PEDANTIC = 2, MATH_TF32 = 3, MATH_BF16X9 = 4, MATH_MODE_BITS = 15 };

typedef struct {
    void *stream;
    int pointer_mode;
    int atomics_mode;
    int math_mode;
    int sm_count_target; /* 0: all */
    void *user_workspace;
    size_t user_workspace_bytes;
    void *own_workspace; /* the library's own device memory, taken when the handle is made */
} cublas_handle;

static inline int cublas_status(int cuda_error) { return cuda_error == 0 ? CUBLAS_SUCCESS : CUBLAS_EXECUTION_FAILED; }

/* Whether a leading dimension holds a column; it must, even for an empty matrix. */
static inline bool leading_dimension_holds(int64_t leading, int64_t rows) { return leading >= (rows > 1 ? rows : 1); }
