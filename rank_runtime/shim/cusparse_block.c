/* cuSPARSE's functions on matrices of dense blocks (BSR): matmuls and triangular solves.
 *
 * In: numbers of blocks and the block size. Out: one record per call, with sizes in elements. A zero on the
 * diagonal is never reported.
 */
#include "cublas_signature.h"
#include "cusparse_internal.h"

typedef struct {
    const char *call, *type;
    int block_rows, block_columns, blocks, block;
    int n; /* columns of the dense side */
    int trans, trans_dense;
    const legacy_descriptor *descriptor;
    bool triangular;
} block_problem;

static int record(cusparse_handle *handle, const block_problem *p) {
    if (handle == NULL) return CUSPARSE_NOT_INITIALIZED;
    const char *trans = operation_name(p->trans), *trans_dense = operation_name(p->trans_dense);
    if (trans == NULL || trans_dense == NULL || p->descriptor == NULL || p->block < 1 || p->block_rows < 0 ||
        p->block_columns < 0 || p->blocks < 0 || p->n < 0)
        return CUSPARSE_INVALID_VALUE;
    if (p->block_rows == 0 || p->n == 0) return CUSPARSE_SUCCESS;
    more_keys keys = {.used = 0};
    add_word(&keys, "uplo", p->triangular ? fill_name(p->descriptor->fill) : NULL);
    add_word(&keys, "diag", p->triangular ? diagonal_name(p->descriptor->diagonal) : NULL);
    return cusparse_status(
        maya_library_call(handle->stream,
                          "{\"call\":\"%s\",\"format\":\"bsr\",\"rows\":%lld,\"cols\":%lld,\"nnz\":%lld,\"block\":%d,\"n\":%d,"
                          "\"transa\":\"%s\",\"transb\":\"%s\"%s,\"index_type\":\"int32\",\"type\":\"%s\"}",
                          p->call, (long long)p->block_rows * p->block, (long long)p->block_columns * p->block,
                          (long long)p->blocks * p->block * p->block, p->block, p->n, trans, trans_dense, keys.text, p->type));
}

/* An estimate: level and row bookkeeping of the analysis. */
static int buffer_size(const cusparse_handle *handle, int block_rows, int blocks, int *bytes) {
    if (handle == NULL) return CUSPARSE_NOT_INITIALIZED;
    if (bytes == NULL || block_rows < 0 || blocks < 0) return CUSPARSE_INVALID_VALUE;
    *bytes = 1024 + 16 * block_rows + 4 * blocks;
    return CUSPARSE_SUCCESS;
}

#define RECORD(function, element, ...) \
    record(handle, &(block_problem){.call = "cusparse" function, \
                                    .type = element, \
                                    .block_rows = mb, \
                                    .blocks = nnzb, \
                                    .block = block, \
                                    .descriptor = descriptor, \
                                    .trans = trans, \
                                    __VA_ARGS__})

#define BLOCK_MATMULS(letter, element) \
    MAYA_API int cusparse##letter##bsrmv(cusparse_handle *handle, int direction, int trans, int mb, int nb, int nnzb, \
                                         const void *alpha, const legacy_descriptor *descriptor, const void *values, \
                                         const int *offsets, const int *columns, int block, const void *x, const void *beta, \
                                         void *y) { \
        return RECORD(#letter "bsrmv", element, .block_columns = nb, .n = 1); \
    } \
    MAYA_API int cusparse##letter##bsrmm(cusparse_handle *handle, int direction, int trans, int trans_dense, int mb, int n, \
                                         int kb, int nnzb, const void *alpha, const legacy_descriptor *descriptor, \
                                         const void *values, const int *offsets, const int *columns, int block, const void *b, \
                                         int ldb, const void *beta, void *c, int ldc) { \
        return RECORD(#letter "bsrmm", element, .block_columns = kb, .n = n, .trans_dense = trans_dense); \
    }
ALL_TYPES(BLOCK_MATMULS)

#define BLOCK_VECTOR_SOLVE(letter, element) \
    MAYA_API int cusparse##letter##bsrsv2_bufferSize(cusparse_handle *handle, int direction, int trans, int mb, int nnzb, \
                                                     const legacy_descriptor *descriptor, void *values, const int *offsets, \
                                                     const int *columns, int block, void *info, int *bytes) { \
        return buffer_size(handle, mb, nnzb, bytes); \
    } \
    MAYA_API int cusparse##letter##bsrsv2_analysis( \
        cusparse_handle *handle, int direction, int trans, int mb, int nnzb, const legacy_descriptor *descriptor, \
        const void *values, const int *offsets, const int *columns, int block, void *info, int policy, void *buffer) { \
        return RECORD(#letter "bsrsv2_analysis", element, .block_columns = mb, .n = 1, .triangular = true); \
    } \
    MAYA_API int cusparse##letter##bsrsv2_solve(cusparse_handle *handle, int direction, int trans, int mb, int nnzb, \
                                                const void *alpha, const legacy_descriptor *descriptor, const void *values, \
                                                const int *offsets, const int *columns, int block, void *info, const void *f, \
                                                void *x, int policy, void *buffer) { \
        return RECORD(#letter "bsrsv2_solve", element, .block_columns = mb, .n = 1, .triangular = true); \
    }
ALL_TYPES(BLOCK_VECTOR_SOLVE)

#define BLOCK_MATRIX_SOLVE(letter, element) \
    MAYA_API int cusparse##letter##bsrsm2_bufferSize(cusparse_handle *handle, int direction, int trans, int trans_dense, \
                                                     int mb, int n, int nnzb, const legacy_descriptor *descriptor, \
                                                     void *values, const int *offsets, const int *columns, int block, \
                                                     void *info, int *bytes) { \
        return buffer_size(handle, mb, nnzb, bytes); \
    } \
    MAYA_API int cusparse##letter##bsrsm2_analysis(cusparse_handle *handle, int direction, int trans, int trans_dense, int mb, \
                                                   int n, int nnzb, const legacy_descriptor *descriptor, const void *values, \
                                                   const int *offsets, const int *columns, int block, void *info, int policy, \
                                                   void *buffer) { \
        return RECORD(#letter "bsrsm2_analysis", element, .block_columns = mb, .n = n, .trans_dense = trans_dense, \
                      .triangular = true); \
    } \
    MAYA_API int cusparse##letter##bsrsm2_solve( \
        cusparse_handle *handle, int direction, int trans, int trans_dense, int mb, int n, int nnzb, const void *alpha, \
        const legacy_descriptor *descriptor, const void *values, const int *offsets, const int *columns, int block, \
        void *info, const void *b, int ldb, void *x, int ldx, int policy, void *buffer) { \
        return RECORD(#letter "bsrsm2_solve", element, .block_columns = mb, .n = n, .trans_dense = trans_dense, \
                      .triangular = true); \
    }
ALL_TYPES(BLOCK_MATRIX_SOLVE)

/* The program's handle of an analysis; its result is not needed here. */

static int create_info(void **info) {
    if (info == NULL) return CUSPARSE_INVALID_VALUE;
    *info = malloc(1);
    return *info == NULL ? CUSPARSE_ALLOC_FAILED : CUSPARSE_SUCCESS;
}

static void write_no_position(void *position) {
    *(int *)position = -1;
    maya_values_known(position, sizeof(int));
}

/* Returns -1, no zero on the diagonal. The host waits if the result is in host memory. */
static int no_zero_pivot(cusparse_handle *handle, const void *info, int *position) {
    if (handle == NULL) return CUSPARSE_NOT_INITIALIZED;
    if (info == NULL || position == NULL) return CUSPARSE_INVALID_VALUE;
    if (handle->pointer_mode == SPARSE_POINTER_DEVICE)
        return cusparse_status(maya_submit(
            handle->stream,
            &(maya_command){.run = write_no_position, .argument = position, .kind = MAYA_RECORD_LIBRARY, .unrecorded = true}));
    *position = -1;
    return cusparse_status(maya_stream_synchronize(handle->stream));
}

#define BLOCK_SOLVE_INFO(lower, upper) \
    MAYA_API int cusparseCreate##upper##Info(void **info) { return create_info(info); } \
    MAYA_API int cusparseDestroy##upper##Info(void *info) { \
        free(info); \
        return CUSPARSE_SUCCESS; \
    } \
    MAYA_API int cusparseX##lower##_zeroPivot(cusparse_handle *handle, const void *info, int *position) { \
        return no_zero_pivot(handle, info, position); \
    }
BLOCK_SOLVE_INFO(bsrsv2, Bsrsv2)
BLOCK_SOLVE_INFO(bsrsm2, Bsrsm2)
