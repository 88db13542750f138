/* cuSPARSELt: matmuls with a matrix of which two of every four elements are zero (2:4 sparsity).
 *
 * In: descriptors that live in the program's memory, at least 512 bytes each. Out: one record for every compression and
 * matmul, with the shape and the fused epilogue.
 *
 * Not emulated: pruning, which torch does itself.
 */
#include "cublas_types.h"

#include <stdio.h>

/* cusparseStatus_t */
enum {
    SPARSELT_SUCCESS = 0,
    SPARSELT_NOT_INITIALIZED = 1,
    SPARSELT_INVALID_VALUE = 3,
    SPARSELT_EXECUTION_FAILED = 6,
    SPARSELT_NOT_SUPPORTED = 10,
};

/* Every structure begins with a mark, so that uninitialised memory is refused. */
enum { HANDLE_MARK = 0x4d4c5401, MATRIX_MARK, MATMUL_MARK, SELECTION_MARK, PLAN_MARK };

typedef struct {
    uint32_t mark;
} sparselt_handle;

typedef struct {
    uint32_t mark;
    bool structured;
    int64_t rows, columns, leading;
    int type;
    int order; /* 1: column-major, 2: row-major */
    int batch;
    int64_t stride;
} sparselt_matrix;

typedef struct {
    uint32_t mark;
    int transa, transb;
    int compute;
    sparselt_matrix a, b, c, d;
    int relu, gelu;
    int alpha_vector, beta_vector;
    const void *bias;
    const void *sparse_matrix;
    int a_scale_mode, b_scale_mode, d_scale_mode, d_out_scale_mode;
} sparselt_matmul;

typedef struct {
    uint32_t mark;
    int id;
    int iterations;
    int split_k, split_k_mode, split_k_buffers;
} sparselt_selection;

typedef struct {
    uint32_t mark;
    sparselt_matmul matmul;
} sparselt_plan;

_Static_assert(sizeof(sparselt_plan) <= 512, "the smallest real structures have 512 bytes");

MAYA_API int cusparseLtInit(sparselt_handle *handle) {
    if (handle == NULL) return SPARSELT_INVALID_VALUE;
    /* Sparse tensor cores came with compute capability 8.0. */
    if (maya_get_settings()->device.compute_major < 8) return SPARSELT_NOT_SUPPORTED;
    handle->mark = HANDLE_MARK;
    return SPARSELT_SUCCESS;
}

MAYA_API int cusparseLtDestroy(sparselt_handle *handle) {
    if (handle == NULL) return SPARSELT_INVALID_VALUE;
    handle->mark = 0;
    return SPARSELT_SUCCESS;
}

static bool is_open(const sparselt_handle *handle) { return handle != NULL && handle->mark == HANDLE_MARK; }

/* ---- matrices ---- */

static int describe_matrix(const sparselt_handle *handle, sparselt_matrix *matrix, int64_t rows, int64_t columns,
                           int64_t leading, int type, int order, bool structured) {
    if (!is_open(handle)) return SPARSELT_NOT_INITIALIZED;
    if (matrix == NULL || rows <= 0 || columns <= 0 || order < 1 || order > 2 || leading < (order == 1 ? rows : columns))
        return SPARSELT_INVALID_VALUE;
    if (data_type_name(type) == NULL) return SPARSELT_NOT_SUPPORTED;
    *matrix = (sparselt_matrix){.mark = MATRIX_MARK,
                                .structured = structured,
                                .rows = rows,
                                .columns = columns,
                                .leading = leading,
                                .type = type,
                                .order = order,
                                .batch = 1};
    return SPARSELT_SUCCESS;
}

MAYA_API int cusparseLtDenseDescriptorInit(const sparselt_handle *handle, sparselt_matrix *matrix, int64_t rows,
                                           int64_t columns, int64_t leading, uint32_t alignment, int type, int order) {
    return describe_matrix(handle, matrix, rows, columns, leading, type, order, false);
}

MAYA_API int cusparseLtStructuredDescriptorInit(const sparselt_handle *handle, sparselt_matrix *matrix, int64_t rows,
                                                int64_t columns, int64_t leading, uint32_t alignment, int type, int order,
                                                int sparsity) {
    return describe_matrix(handle, matrix, rows, columns, leading, type, order, true);
}

MAYA_API int cusparseLtMatDescriptorDestroy(const sparselt_matrix *matrix) {
    return matrix == NULL ? SPARSELT_INVALID_VALUE : SPARSELT_SUCCESS;
}

MAYA_API int cusparseLtMatDescSetAttribute(const sparselt_handle *handle, sparselt_matrix *matrix, int attribute,
                                           const void *value, size_t bytes) {
    enum { BATCH = 0, STRIDE = 1 };
    if (!is_open(handle)) return SPARSELT_NOT_INITIALIZED;
    if (matrix == NULL || matrix->mark != MATRIX_MARK || value == NULL) return SPARSELT_INVALID_VALUE;
    if (attribute == BATCH && bytes == sizeof matrix->batch) memcpy(&matrix->batch, value, bytes);
    else if (attribute == STRIDE && bytes == sizeof matrix->stride) memcpy(&matrix->stride, value, bytes);
    else return SPARSELT_INVALID_VALUE;
    return SPARSELT_SUCCESS;
}

/* ---- matmuls ---- */

static const char *compute_name(int compute) {
    static const char *const names[] = {"int32", "fp16", "fp32"};
    return compute >= 0 && compute <= 2 ? names[compute] : NULL;
}

MAYA_API int cusparseLtMatmulDescriptorInit(const sparselt_handle *handle, sparselt_matmul *matmul, int transa, int transb,
                                            const sparselt_matrix *a, const sparselt_matrix *b, const sparselt_matrix *c,
                                            const sparselt_matrix *d, int compute) {
    if (!is_open(handle)) return SPARSELT_NOT_INITIALIZED;
    if (matmul == NULL || a == NULL || b == NULL || c == NULL || d == NULL || operation_name(transa) == NULL ||
        operation_name(transb) == NULL || compute_name(compute) == NULL || a->mark != MATRIX_MARK || b->mark != MATRIX_MARK ||
        d->mark != MATRIX_MARK || a->structured == b->structured)
        return SPARSELT_INVALID_VALUE;
    int64_t m = transa == OPERATION_NONE ? a->rows : a->columns, k = transa == OPERATION_NONE ? a->columns : a->rows;
    int64_t n = transb == OPERATION_NONE ? b->columns : b->rows, kb = transb == OPERATION_NONE ? b->rows : b->columns;
    if (k != kb || d->rows != m || d->columns != n) return SPARSELT_INVALID_VALUE;
    *matmul = (sparselt_matmul){
        .mark = MATMUL_MARK, .transa = transa, .transb = transb, .compute = compute, .a = *a, .b = *b, .c = *c, .d = *d};
    return SPARSELT_SUCCESS;
}

MAYA_API int cusparseLtMatmulDescSetAttribute(const sparselt_handle *handle, sparselt_matmul *matmul, int attribute,
                                              const void *value, size_t bytes) {
    enum {
        RELU = 0,
        GELU = 3,
        ALPHA_VECTOR = 5,
        BETA_VECTOR = 6,
        BIAS_POINTER = 8,
        SPARSE_POINTER = 9,
        A_SCALE_MODE = 10,
        B_SCALE_MODE = 11,
        D_SCALE_MODE = 13,
        D_OUT_SCALE_MODE = 14,
        LAST_SCALE_POINTER = 19
    };
    if (!is_open(handle)) return SPARSELT_NOT_INITIALIZED;
    if (matmul == NULL || matmul->mark != MATMUL_MARK || value == NULL || attribute < 0 || attribute > LAST_SCALE_POINTER)
        return SPARSELT_INVALID_VALUE;
    void *field = NULL;
    size_t field_bytes = sizeof(int);
    switch (attribute) {
        case RELU: field = &matmul->relu; break;
        case GELU: field = &matmul->gelu; break;
        case ALPHA_VECTOR: field = &matmul->alpha_vector; break;
        case BETA_VECTOR: field = &matmul->beta_vector; break;
        case A_SCALE_MODE: field = &matmul->a_scale_mode; break;
        case B_SCALE_MODE: field = &matmul->b_scale_mode; break;
        case D_SCALE_MODE: field = &matmul->d_scale_mode; break;
        case D_OUT_SCALE_MODE: field = &matmul->d_out_scale_mode; break;
        case BIAS_POINTER: field = &matmul->bias, field_bytes = sizeof(void *); break;
        case SPARSE_POINTER: field = &matmul->sparse_matrix, field_bytes = sizeof(void *); break;
        default: return SPARSELT_SUCCESS; /* bounds of an activation, strides and addresses: no time depends on them */
    }
    if (bytes != field_bytes) return SPARSELT_INVALID_VALUE;
    memcpy(field, value, bytes);
    return SPARSELT_SUCCESS;
}

/* ---- algorithm selection, which is stored and has no effect on time ---- */

MAYA_API int cusparseLtMatmulAlgSelectionInit(const sparselt_handle *handle, sparselt_selection *selection,
                                              const sparselt_matmul *matmul, int algorithm) {
    if (!is_open(handle)) return SPARSELT_NOT_INITIALIZED;
    if (selection == NULL || matmul == NULL || matmul->mark != MATMUL_MARK) return SPARSELT_INVALID_VALUE;
    *selection =
        (sparselt_selection){.mark = SELECTION_MARK, .iterations = 5, .split_k = 1, .split_k_mode = 1, .split_k_buffers = 0};
    return SPARSELT_SUCCESS;
}

MAYA_API int cusparseLtMatmulAlgSelectionDestroy(const sparselt_selection *selection) {
    return selection == NULL ? SPARSELT_INVALID_VALUE : SPARSELT_SUCCESS;
}

enum { CONFIG_ID = 0, CONFIG_MAX_ID = 1, SEARCH_ITERATIONS = 2, SPLIT_K = 3, SPLIT_K_MODE = 4, SPLIT_K_BUFFERS = 5 };

static int *selection_field(sparselt_selection *selection, int attribute) {
    switch (attribute) {
        case CONFIG_ID: return &selection->id;
        case SEARCH_ITERATIONS: return &selection->iterations;
        case SPLIT_K: return &selection->split_k;
        case SPLIT_K_MODE: return &selection->split_k_mode;
        case SPLIT_K_BUFFERS: return &selection->split_k_buffers;
        default: return NULL;
    }
}

MAYA_API int cusparseLtMatmulAlgSetAttribute(const sparselt_handle *handle, sparselt_selection *selection, int attribute,
                                             const void *value, size_t bytes) {
    if (!is_open(handle)) return SPARSELT_NOT_INITIALIZED;
    if (selection == NULL || selection->mark != SELECTION_MARK || value == NULL) return SPARSELT_INVALID_VALUE;
    int *field = selection_field(selection, attribute);
    if (field == NULL || bytes != sizeof *field) return SPARSELT_INVALID_VALUE;
    memcpy(field, value, bytes);
    return SPARSELT_SUCCESS;
}

MAYA_API int cusparseLtMatmulAlgGetAttribute(const sparselt_handle *handle, const sparselt_selection *selection, int attribute,
                                             void *value, size_t bytes) {
    static const int one_algorithm = 1;
    if (!is_open(handle)) return SPARSELT_NOT_INITIALIZED;
    if (selection == NULL || selection->mark != SELECTION_MARK || value == NULL) return SPARSELT_INVALID_VALUE;
    const int *field =
        attribute == CONFIG_MAX_ID ? &one_algorithm : selection_field((sparselt_selection *)selection, attribute);
    if (field == NULL || bytes != sizeof *field) return SPARSELT_INVALID_VALUE;
    memcpy(value, field, bytes);
    return SPARSELT_SUCCESS;
}

/* ---- plans ---- */

MAYA_API int cusparseLtMatmulPlanInit(const sparselt_handle *handle, sparselt_plan *plan, const sparselt_matmul *matmul,
                                      const sparselt_selection *selection) {
    if (!is_open(handle)) return SPARSELT_NOT_INITIALIZED;
    if (plan == NULL || matmul == NULL || matmul->mark != MATMUL_MARK || selection == NULL || selection->mark != SELECTION_MARK)
        return SPARSELT_INVALID_VALUE;
    *plan = (sparselt_plan){.mark = PLAN_MARK, .matmul = *matmul};
    return SPARSELT_SUCCESS;
}

MAYA_API int cusparseLtMatmulPlanDestroy(const sparselt_plan *plan) {
    return plan == NULL ? SPARSELT_INVALID_VALUE : SPARSELT_SUCCESS;
}

/* An estimate: counters for a matmul whose inner dimension is split. */
MAYA_API int cusparseLtMatmulGetWorkspace(const sparselt_handle *handle, const sparselt_plan *plan, size_t *bytes) {
    if (!is_open(handle)) return SPARSELT_NOT_INITIALIZED;
    if (plan == NULL || plan->mark != PLAN_MARK || bytes == NULL) return SPARSELT_INVALID_VALUE;
    *bytes = 512 * 1024;
    return SPARSELT_SUCCESS;
}

static bool reads_c(const sparselt_matmul *p, const void *beta) {
    float zero = 0;
    return p->beta_vector != 0 || (beta != NULL && memcmp(beta, &zero, sizeof zero) != 0);
}

static int multiply(const sparselt_handle *handle, const sparselt_plan *plan, const char *call, const void *beta,
                    void *const *streams, int stream_count) {
    if (!is_open(handle)) return SPARSELT_NOT_INITIALIZED;
    if (plan == NULL || plan->mark != PLAN_MARK || stream_count < 0 || (stream_count > 0 && streams == NULL))
        return SPARSELT_INVALID_VALUE;
    const sparselt_matmul *p = &plan->matmul;
    const char *activation = p->relu ? "relu" : p->gelu ? "gelu" : "none";
    char scales[96] = "";
    if (p->a_scale_mode != 0 || p->b_scale_mode != 0)
        snprintf(scales, sizeof scales, ",\"a_scale_mode\":%d,\"b_scale_mode\":%d", p->a_scale_mode, p->b_scale_mode);
    int error = maya_library_call(
        stream_count > 0 ? streams[0] : NULL,
        "{\"call\":\"%s\",\"m\":%lld,\"n\":%lld,\"k\":%lld,\"batch\":%d,\"sparse\":\"%s\",\"transa\":\"%s\","
        "\"transb\":\"%s\",\"lda\":%lld,\"ldb\":%lld,\"ldc\":%lld,\"a_type\":\"%s\",\"b_type\":\"%s\","
        "\"c_type\":\"%s\",\"compute\":\"%s\",\"accumulate\":%s,\"activation\":\"%s\",\"bias\":%s,"
        "\"alpha_vector\":%s%s}",
        call, (long long)p->d.rows, (long long)p->d.columns,
        (long long)(p->transa == OPERATION_NONE ? p->a.columns : p->a.rows), p->d.batch, p->a.structured ? "a" : "b",
        operation_name(p->transa), operation_name(p->transb), (long long)p->a.leading, (long long)p->b.leading,
        (long long)p->d.leading, data_type_name(p->a.type), data_type_name(p->b.type), data_type_name(p->d.type),
        compute_name(p->compute), reads_c(p, beta) ? "true" : "false", activation, p->bias != NULL ? "true" : "false",
        p->alpha_vector ? "true" : "false", scales);
    return error == 0 ? SPARSELT_SUCCESS : SPARSELT_EXECUTION_FAILED;
}

MAYA_API int cusparseLtMatmul(const sparselt_handle *handle, const sparselt_plan *plan, const void *alpha, const void *a,
                              const void *b, const void *beta, const void *c, void *d, void *workspace, void **streams,
                              int32_t stream_count) {
    return multiply(handle, plan, "cusparseLtMatmul", beta, streams, stream_count);
}

/* A search runs the matmul a few times and leaves the plan unchanged, because there is one algorithm. */
MAYA_API int cusparseLtMatmulSearch(const sparselt_handle *handle, sparselt_plan *plan, const void *alpha, const void *a,
                                    const void *b, const void *beta, const void *c, void *d, void *workspace, void **streams,
                                    int32_t stream_count) {
    return multiply(handle, plan, "cusparseLtMatmulSearch", beta, streams, stream_count);
}

/* ---- compression: half the values, and one bit per element for their positions ---- */

MAYA_API int cusparseLtSpMMACompressedSize2(const sparselt_handle *handle, const sparselt_matrix *matrix,
                                            size_t *compressed_bytes, size_t *buffer_bytes) {
    if (!is_open(handle)) return SPARSELT_NOT_INITIALIZED;
    if (matrix == NULL || matrix->mark != MATRIX_MARK || !matrix->structured || compressed_bytes == NULL ||
        buffer_bytes == NULL)
        return SPARSELT_INVALID_VALUE;
    size_t elements = (size_t)matrix->rows * (size_t)matrix->columns * (size_t)matrix->batch;
    *compressed_bytes = elements * (size_t)data_type_bits(matrix->type) / 16 + elements / 8;
    *buffer_bytes = elements / 8 + 256; /* an estimate: the bits once more, before they are reordered */
    return SPARSELT_SUCCESS;
}

MAYA_API int cusparseLtSpMMACompress2(const sparselt_handle *handle, const sparselt_matrix *matrix, int is_a, int operation,
                                      const void *dense, void *compressed, void *buffer, void *stream) {
    if (!is_open(handle)) return SPARSELT_NOT_INITIALIZED;
    if (matrix == NULL || matrix->mark != MATRIX_MARK || !matrix->structured || operation_name(operation) == NULL)
        return SPARSELT_INVALID_VALUE;
    int error = maya_library_call(stream, "{\"call\":\"cusparseLtSpMMACompress2\",\"rows\":%lld,\"cols\":%lld,\"type\":\"%s\"}",
                                  (long long)matrix->rows, (long long)matrix->columns, data_type_name(matrix->type));
    return error == 0 ? SPARSELT_SUCCESS : SPARSELT_EXECUTION_FAILED;
}
