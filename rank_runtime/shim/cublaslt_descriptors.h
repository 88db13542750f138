/* The descriptors of cuBLASLt as Maya keeps them. The program sees them as opaque memory that it may also provide
 * itself, so none may be larger than the real one. */
#pragma once

#include "cublaslt_attributes.h"

/* cublasStatus_t */
enum {
    LT_SUCCESS = 0,
    LT_NOT_INITIALIZED = 1,
    LT_ALLOC_FAILED = 3,
    LT_INVALID_VALUE = 7,
    LT_EXECUTION_FAILED = 13,
    LT_NOT_SUPPORTED = 15,
};

/* cublasLtMatrixLayout_t */
typedef struct {
    uint32_t type;
    int32_t order; /* 0: column-major, 1: row-major; others are tiled formats */
    uint64_t rows, columns;
    int64_t leading;
    int32_t batch;
    uint32_t batch_mode; /* 0: fixed stride, 1: array of pointers; 2, groups of different shapes, is not emulated */
    int64_t stride;
    int64_t plane_offset;
} matrix_layout;

enum { ORDER_COLUMN = 0, ORDER_ROW = 1 };
enum { BATCH_STRIDED = 0, BATCH_POINTERS = 1 };

/* cublasLtMatmulDesc_t */
typedef struct {
    int32_t compute, scale_type;
    int32_t pointer_mode;
    int32_t transa, transb, transc;
    int32_t fill;
    uint32_t epilogue;
    const void *bias;
    int64_t bias_stride;
    void *auxiliary;
    int64_t auxiliary_leading, auxiliary_stride;
    int64_t alpha_vector_stride;
    const void *a_scale, *b_scale, *c_scale, *d_scale;
    void *amax;
    const void *auxiliary_scale;
    void *auxiliary_amax;
    void *d_out_scale;
    void *emulation;
    int64_t alpha_stride, beta_stride;
    int32_t sm_count_target;
    int32_t auxiliary_type, bias_type;
    int32_t a_scale_mode, b_scale_mode, c_scale_mode, d_scale_mode, auxiliary_scale_mode, d_out_scale_mode;
    int32_t batch_invariance;
    int8_t fast_accumulation;
} matmul_descriptor;

enum {
    LT_POINTER_HOST = 0,
    LT_POINTER_DEVICE = 1,
    LT_POINTER_DEVICE_VECTOR = 2,
    LT_POINTER_ALPHA_VECTOR_BETA_ZERO = 3,
    LT_POINTER_ALPHA_VECTOR_BETA_HOST = 4,
};

/* cublasLtMatmulPreference_t */
typedef struct {
    uint32_t search_mode, reduction_mask;
    uint64_t workspace_bytes;
    uint32_t alignment_a, alignment_b, alignment_c, alignment_d;
    float waves;
    uint64_t implementation_mask;
} matmul_preference;

/* cublasLtMatmulAlgo_t: 64 bytes that the program may copy. */
typedef struct {
    uint32_t mark; /* ALGORITHM_MARK, which uninitialized memory does not have */
    int32_t id;
    uint32_t tile, stages;
    int32_t split_k;
    uint32_t reduction, swizzle, custom;
    uint16_t inner_shape, cluster_shape;
    uint32_t unused[7];
} matmul_algorithm;

enum { ALGORITHM_MARK = 0x6d617961 };

/* cublasLtMatmulHeuristicResult_t */
typedef struct {
    matmul_algorithm algorithm;
    size_t workspace_bytes;
    int32_t state;
    float waves;
    int32_t reserved[4];
} heuristic_result;

_Static_assert(sizeof(matrix_layout) <= 64, "the smallest real layout has 64 bytes");
_Static_assert(sizeof(matmul_descriptor) <= 256, "the real descriptor has 256 bytes");
_Static_assert(sizeof(matmul_preference) <= 64, "the smallest real preference has 64 bytes");
_Static_assert(sizeof(matmul_algorithm) == 64, "as in the real library");
_Static_assert(sizeof(heuristic_result) == 96, "as in the real library");
