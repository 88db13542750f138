/* cuSPARSE's multiplication of two sparse matrices (SpGEMM), in its three steps: work estimation, compute, copy.
 *
 * In: two CSR matrices. Out: records, and the real pattern of the result if both patterns are known. Otherwise the number
 * of values (cusparseSpMatGetSize) is that of evenly spread operands, and the pattern is a placeholder. The host waits
 * in the compute step, as in the real library, because the number of values is known from then on.
 */
#include "cusparse_pattern.h"

/* cusparseSpGEMMDescr_t */
typedef struct {
    sparse_pattern *pattern; /* found by the compute step, written by the copy step */
} spgemm_descriptor;

MAYA_API int cusparseSpGEMM_createDescr(spgemm_descriptor **descriptor) {
    if (descriptor == NULL) return CUSPARSE_INVALID_VALUE;
    *descriptor = calloc(1, sizeof **descriptor);
    return *descriptor == NULL ? CUSPARSE_ALLOC_FAILED : CUSPARSE_SUCCESS;
}

MAYA_API int cusparseSpGEMM_destroyDescr(spgemm_descriptor *descriptor) {
    if (descriptor != NULL) pattern_free(descriptor->pattern);
    free(descriptor);
    return CUSPARSE_SUCCESS;
}

static int check(const cusparse_handle *handle, int transa, int transb, const sparse_matrix *a, const sparse_matrix *b,
                 const sparse_matrix *c, const spgemm_descriptor *descriptor) {
    if (handle == NULL) return CUSPARSE_NOT_INITIALIZED;
    if (a == NULL || b == NULL || c == NULL || descriptor == NULL || a->columns != b->rows || a->rows != c->rows ||
        b->columns != c->columns)
        return CUSPARSE_INVALID_VALUE;
    if (transa != OPERATION_NONE || transb != OPERATION_NONE || a->format != FORMAT_CSR || b->format != FORMAT_CSR ||
        c->format != FORMAT_CSR)
        return CUSPARSE_NOT_SUPPORTED;
    return CUSPARSE_SUCCESS;
}

static int record(cusparse_handle *handle, const char *call, const sparse_matrix *a, const sparse_matrix *b,
                  const sparse_matrix *c) {
    return cusparse_status(maya_library_call(
        handle->stream,
        "{\"call\":\"%s\",\"format\":\"csr\",\"rows\":%lld,\"cols\":%lld,\"k\":%lld,\"nnz_a\":%lld,\"nnz_b\":%lld,"
        "\"nnz\":%lld,\"index_type\":\"%s\",\"type\":\"%s\"}",
        call, (long long)a->rows, (long long)b->columns, (long long)a->columns, (long long)a->nonzeros, (long long)b->nonzeros,
        (long long)c->nonzeros, index_type_name(a->column_index_type), data_type_name(a->type)));
}

MAYA_API int cusparseSpGEMM_workEstimation(cusparse_handle *handle, int transa, int transb, const void *alpha,
                                           const sparse_matrix *a, const sparse_matrix *b, const void *beta, sparse_matrix *c,
                                           int compute, int algorithm, spgemm_descriptor *descriptor, size_t *bytes,
                                           void *buffer) {
    int status = check(handle, transa, transb, a, b, c, descriptor);
    if (status != CUSPARSE_SUCCESS) return status;
    if (buffer != NULL) return record(handle, "cusparseSpGEMM_workEstimation", a, b, c);
    if (bytes == NULL) return CUSPARSE_INVALID_VALUE;
    *bytes = 1024 + 8 * ((size_t)a->rows + 1); /* an estimate: one count per row */
    return CUSPARSE_SUCCESS;
}

MAYA_API int cusparseSpGEMM_compute(cusparse_handle *handle, int transa, int transb, const void *alpha, const sparse_matrix *a,
                                    const sparse_matrix *b, const void *beta, sparse_matrix *c, int compute, int algorithm,
                                    spgemm_descriptor *descriptor, size_t *bytes, void *buffer) {
    int status = check(handle, transa, transb, a, b, c, descriptor);
    if (status != CUSPARSE_SUCCESS) return status;
    csr_indices left = csr_indices_of(a), right = csr_indices_of(b);
    if (buffer == NULL) {
        if (bytes == NULL) return CUSPARSE_INVALID_VALUE;
        size_t entry = index_bytes(a->column_index_type) + (size_t)data_type_bits(a->type) / 8;
        *bytes = 1024 + (size_t)expected_products(&left, &right) * entry; /* an estimate: every product is kept once */
        return CUSPARSE_SUCCESS;
    }
    if (maya_stream_synchronize(handle->stream) != 0) return CUSPARSE_EXECUTION_FAILED;
    pattern_free(descriptor->pattern);
    descriptor->pattern = pattern_of_spgemm(&left, &right);
    c->nonzeros = descriptor->pattern != NULL ? descriptor->pattern->nonzeros : expected_in_spgemm(&left, &right);
    return record(handle, "cusparseSpGEMM_compute", a, b, c);
}

typedef struct {
    csr_indices into;
    sparse_pattern *pattern;
    void *values;
    size_t value_bytes;
} copy_task;

static void run_copy(void *argument) {
    const copy_task *task = argument;
    pattern_write_offsets(task->pattern, &task->into);
    pattern_write_columns(task->pattern, &task->into);
    if (task->values != NULL) maya_values_set_placeholder(task->values, task->value_bytes);
}

static void release_copy(void *argument) {
    pattern_free(((copy_task *)argument)->pattern);
    free(argument);
}

MAYA_API int cusparseSpGEMM_copy(cusparse_handle *handle, int transa, int transb, const void *alpha, const sparse_matrix *a,
                                 const sparse_matrix *b, const void *beta, sparse_matrix *c, int compute, int algorithm,
                                 spgemm_descriptor *descriptor) {
    int status = check(handle, transa, transb, a, b, c, descriptor);
    if (status == CUSPARSE_SUCCESS) status = record(handle, "cusparseSpGEMM_copy", a, b, c);
    if (status != CUSPARSE_SUCCESS) return status;
    copy_task *task = malloc(sizeof *task);
    if (task == NULL) return CUSPARSE_ALLOC_FAILED;
    *task = (copy_task){csr_indices_of(c), descriptor->pattern, c->values,
                        (size_t)c->nonzeros * (size_t)data_type_bits(c->type) / 8};
    descriptor->pattern = NULL;
    return cusparse_status(maya_submit(
        handle->stream,
        &(maya_command){
            .run = run_copy, .release = release_copy, .argument = task, .kind = MAYA_RECORD_LIBRARY, .unrecorded = true}));
}
