/* cuSPARSE's generic functions with one sparse operand: multiplication by dense matrices and vectors, triangular
 * solves.
 *
 * In: descriptors. Out: one record per call with rows, columns, number of values and the width of the dense side. An
 * analysis or preprocessing step also occupies the device and has a record of its own.
 */
#include "cublas_signature.h"
#include "cusparse_internal.h"

typedef struct {
    const char *call;
    const sparse_matrix *sparse;
    int transa, transb;
    int64_t n, k; /* columns of the dense result; inner dimension of a sampled matmul (SDDMM) */
    int batch;
    int compute;
    const dense_matrix *a, *b, *c; /* for their memory order; NULL where the operand is sparse or a vector */
    bool triangular;
} sparse_problem;

static int record(cusparse_handle *handle, const sparse_problem *p) {
    const sparse_matrix *sparse = p->sparse;
    const char *transa = operation_name(p->transa), *transb = operation_name(p->transb);
    const char *uplo = fill_name(sparse->fill), *diag = diagonal_name(sparse->diagonal);
    const char *compute = data_type_name(p->compute);
    if (transa == NULL || transb == NULL || uplo == NULL || diag == NULL) return CUSPARSE_INVALID_VALUE;
    if (compute == NULL) return CUSPARSE_NOT_SUPPORTED;
    more_keys keys = {.used = 0};
    add_number(&keys, "k", p->k);
    add_word(&keys, "uplo", p->triangular ? uplo : NULL);
    add_word(&keys, "diag", p->triangular ? diag : NULL);
    add_word(&keys, "a_order", p->a ? order_name(p->a->order) : NULL);
    add_word(&keys, "b_order", p->b ? order_name(p->b->order) : NULL);
    add_word(&keys, "c_order", p->c ? order_name(p->c->order) : NULL);
    return cusparse_status(
        maya_library_call(handle->stream,
                          "{\"call\":\"%s\",\"format\":\"%s\",\"rows\":%lld,\"cols\":%lld,\"nnz\":%lld,\"n\":%lld,\"batch\":%d,"
                          "\"transa\":\"%s\",\"transb\":\"%s\"%s,\"index_type\":\"%s\",\"type\":\"%s\",\"compute\":\"%s\"}",
                          p->call, format_name(sparse->format), (long long)sparse->rows, (long long)sparse->columns,
                          (long long)sparse->nonzeros, (long long)p->n, p->batch, transa, transb, keys.text,
                          index_type_name(sparse->column_index_type), data_type_name(sparse->type), compute));
}

/* Workspace of all these functions. An estimate: row bookkeeping and a carry for every 256 values. It is never zero, so
 * that the program allocates it. */
static int buffer_size(const cusparse_handle *handle, const sparse_matrix *a, const void *b, const void *c, size_t *bytes) {
    if (handle == NULL) return CUSPARSE_NOT_INITIALIZED;
    if (a == NULL || b == NULL || c == NULL || bytes == NULL) return CUSPARSE_INVALID_VALUE;
    size_t carries = (size_t)a->nonzeros / 256 + 1;
    *bytes = 256 + ((size_t)a->rows + 1) * 4 + carries * (size_t)data_type_bits(a->type) / 8;
    return CUSPARSE_SUCCESS;
}

static int larger_batch(int a, int b) { return a > b ? a : b; }

/* ---- sparse times dense matrix ---- */

MAYA_API int cusparseSpMM_bufferSize(cusparse_handle *handle, int transa, int transb, const void *alpha, const sparse_matrix *a,
                                     const dense_matrix *b, const void *beta, dense_matrix *c, int compute, int algorithm,
                                     size_t *bytes) {
    return buffer_size(handle, a, b, c, bytes);
}

MAYA_API int cusparseSpMM(cusparse_handle *handle, int transa, int transb, const void *alpha, const sparse_matrix *a,
                          const dense_matrix *b, const void *beta, dense_matrix *c, int compute, int algorithm, void *buffer) {
    if (handle == NULL) return CUSPARSE_NOT_INITIALIZED;
    if (a == NULL || b == NULL || c == NULL) return CUSPARSE_INVALID_VALUE;
    return record(handle, &(sparse_problem){.call = "cusparseSpMM",
                                            .sparse = a,
                                            .transa = transa,
                                            .transb = transb,
                                            .n = c->columns,
                                            .batch = larger_batch(b->batch, c->batch),
                                            .compute = compute,
                                            .b = b,
                                            .c = c});
}

/* ---- sparse times dense vector ---- */

MAYA_API int cusparseSpMV_bufferSize(cusparse_handle *handle, int transa, const void *alpha, const sparse_matrix *a,
                                     const dense_matrix *x, const void *beta, dense_matrix *y, int compute, int algorithm,
                                     size_t *bytes) {
    return buffer_size(handle, a, x, y, bytes);
}

MAYA_API int cusparseSpMV(cusparse_handle *handle, int transa, const void *alpha, const sparse_matrix *a, const dense_matrix *x,
                          const void *beta, dense_matrix *y, int compute, int algorithm, void *buffer) {
    if (handle == NULL) return CUSPARSE_NOT_INITIALIZED;
    if (a == NULL || x == NULL || y == NULL) return CUSPARSE_INVALID_VALUE;
    return record(handle, &(sparse_problem){
                              .call = "cusparseSpMV", .sparse = a, .transa = transa, .n = 1, .batch = 1, .compute = compute});
}

/* ---- dense times dense where the sparse result has values ---- */

MAYA_API int cusparseSDDMM_bufferSize(cusparse_handle *handle, int transa, int transb, const void *alpha, const dense_matrix *a,
                                      const dense_matrix *b, const void *beta, sparse_matrix *c, int compute, int algorithm,
                                      size_t *bytes) {
    return buffer_size(handle, c, a, b, bytes);
}

static int sampled_matmul(cusparse_handle *handle, const char *call, int transa, int transb, const dense_matrix *a,
                          const dense_matrix *b, const sparse_matrix *c, int compute) {
    if (handle == NULL) return CUSPARSE_NOT_INITIALIZED;
    if (a == NULL || b == NULL || c == NULL) return CUSPARSE_INVALID_VALUE;
    return record(handle, &(sparse_problem){.call = call,
                                            .sparse = c,
                                            .transa = transa,
                                            .transb = transb,
                                            .n = c->columns,
                                            .k = transa == OPERATION_NONE ? a->columns : a->rows,
                                            .batch = larger_batch(a->batch, c->batch),
                                            .compute = compute,
                                            .a = a,
                                            .b = b});
}

MAYA_API int cusparseSDDMM_preprocess(cusparse_handle *handle, int transa, int transb, const void *alpha, const dense_matrix *a,
                                      const dense_matrix *b, const void *beta, sparse_matrix *c, int compute, int algorithm,
                                      void *buffer) {
    return sampled_matmul(handle, "cusparseSDDMM_preprocess", transa, transb, a, b, c, compute);
}

MAYA_API int cusparseSDDMM(cusparse_handle *handle, int transa, int transb, const void *alpha, const dense_matrix *a,
                           const dense_matrix *b, const void *beta, sparse_matrix *c, int compute, int algorithm,
                           void *buffer) {
    return sampled_matmul(handle, "cusparseSDDMM", transa, transb, a, b, c, compute);
}

/* ---- triangular solves; their descriptor carries nothing that a record needs ---- */

static int create_empty(void **descriptor) {
    if (descriptor == NULL) return CUSPARSE_INVALID_VALUE;
    *descriptor = malloc(1);
    return *descriptor == NULL ? CUSPARSE_ALLOC_FAILED : CUSPARSE_SUCCESS;
}

static int destroy_empty(void *descriptor) {
    free(descriptor);
    return CUSPARSE_SUCCESS;
}

MAYA_API int cusparseSpSV_createDescr(void **descriptor) { return create_empty(descriptor); }

MAYA_API int cusparseSpSV_destroyDescr(void *descriptor) { return destroy_empty(descriptor); }

MAYA_API int cusparseSpSM_createDescr(void **descriptor) { return create_empty(descriptor); }

MAYA_API int cusparseSpSM_destroyDescr(void *descriptor) { return destroy_empty(descriptor); }

static int triangular_solve(cusparse_handle *handle, const char *call, int transa, int transb, const sparse_matrix *a,
                            const dense_matrix *b, const dense_matrix *c, int compute, const void *descriptor) {
    if (handle == NULL) return CUSPARSE_NOT_INITIALIZED;
    if (a == NULL || b == NULL || c == NULL || descriptor == NULL) return CUSPARSE_INVALID_VALUE;
    return record(handle, &(sparse_problem){.call = call,
                                            .sparse = a,
                                            .transa = transa,
                                            .transb = transb,
                                            .n = c->columns,
                                            .batch = c->batch,
                                            .compute = compute,
                                            .b = b,
                                            .c = c,
                                            .triangular = true});
}

MAYA_API int cusparseSpSV_bufferSize(cusparse_handle *handle, int transa, const void *alpha, const sparse_matrix *a,
                                     const dense_matrix *x, dense_matrix *y, int compute, int algorithm, void *descriptor,
                                     size_t *bytes) {
    return buffer_size(handle, a, x, y, bytes);
}

MAYA_API int cusparseSpSV_analysis(cusparse_handle *handle, int transa, const void *alpha, const sparse_matrix *a,
                                   const dense_matrix *x, dense_matrix *y, int compute, int algorithm, void *descriptor,
                                   void *buffer) {
    return triangular_solve(handle, "cusparseSpSV_analysis", transa, OPERATION_NONE, a, x, y, compute, descriptor);
}

MAYA_API int cusparseSpSV_solve(cusparse_handle *handle, int transa, const void *alpha, const sparse_matrix *a,
                                const dense_matrix *x, dense_matrix *y, int compute, int algorithm, void *descriptor) {
    return triangular_solve(handle, "cusparseSpSV_solve", transa, OPERATION_NONE, a, x, y, compute, descriptor);
}

MAYA_API int cusparseSpSM_bufferSize(cusparse_handle *handle, int transa, int transb, const void *alpha, const sparse_matrix *a,
                                     const dense_matrix *b, dense_matrix *c, int compute, int algorithm, void *descriptor,
                                     size_t *bytes) {
    return buffer_size(handle, a, b, c, bytes);
}

MAYA_API int cusparseSpSM_analysis(cusparse_handle *handle, int transa, int transb, const void *alpha, const sparse_matrix *a,
                                   const dense_matrix *b, dense_matrix *c, int compute, int algorithm, void *descriptor,
                                   void *buffer) {
    return triangular_solve(handle, "cusparseSpSM_analysis", transa, transb, a, b, c, compute, descriptor);
}

MAYA_API int cusparseSpSM_solve(cusparse_handle *handle, int transa, int transb, const void *alpha, const sparse_matrix *a,
                                const dense_matrix *b, dense_matrix *c, int compute, int algorithm, void *descriptor) {
    return triangular_solve(handle, "cusparseSpSM_solve", transa, transb, a, b, c, compute, descriptor);
}
