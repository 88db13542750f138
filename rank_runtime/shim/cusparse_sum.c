/* cuSPARSE's sum of two CSR matrices (csrgeam2), in its three steps: workspace, number of values, the sum itself.
 *
 * In: two patterns. Out: records, and the real pattern of the sum when both are known; otherwise the number of values
 * is the largest possible one and the pattern is a placeholder.
 */
#include "cublas_signature.h"
#include "cusparse_pattern.h"

typedef struct {
    csr_indices a, b, sum;
    int *total;   /* on host or device: where the number of values goes; NULL in the last step */
    void *values; /* of the sum; NULL before the last step */
    size_t value_bytes;
} sum_task;

/* The number of values that the program has allocated: the result of the previous step. */
static int64_t told_values(const sum_task *task) {
    const int *offsets = task->sum.offsets;
    if (offsets != NULL && maya_values_are_known(offsets, (size_t)(task->sum.rows + 1) * sizeof *offsets))
        return offsets[task->sum.rows] - task->sum.index_base;
    return expected_in_sum(&task->a, &task->b);
}

static void run_count(void *argument) {
    const sum_task *task = argument;
    sparse_pattern *pattern = pattern_of_sum(&task->a, &task->b);
    pattern_write_offsets(pattern, &task->sum);
    *task->total = (int)(pattern != NULL ? pattern->nonzeros : expected_in_sum(&task->a, &task->b));
    if (pattern != NULL) maya_values_known(task->total, sizeof *task->total);
    pattern_free(pattern);
}

static void run_sum(void *argument) {
    sum_task *task = argument;
    task->sum.nonzeros = told_values(task);
    sparse_pattern *pattern = pattern_of_sum(&task->a, &task->b);
    pattern_write_columns(pattern, &task->sum);
    maya_values_set_placeholder(task->values, (size_t)task->sum.nonzeros * task->value_bytes);
    pattern_free(pattern);
}

static csr_indices legacy_indices(int rows, int columns, int nonzeros, const int *offsets, const int *column_indices,
                                  const legacy_descriptor *descriptor) {
    return (csr_indices){
        rows, columns, nonzeros, (void *)offsets, (void *)column_indices, INDEX_32, INDEX_32, descriptor->index_base};
}

/* type is NULL for the step that looks at patterns only. */
static int submit_sum(cusparse_handle *handle, const char *call, const char *type, void (*run)(void *), sum_task task) {
    more_keys keys = {.used = 0};
    add_word(&keys, "type", type);
    int error = maya_library_call(handle->stream,
                                  "{\"call\":\"%s\",\"format\":\"csr\",\"rows\":%lld,\"cols\":%lld,\"nnz_a\":%lld,"
                                  "\"nnz_b\":%lld,\"index_type\":\"int32\"%s}",
                                  call, (long long)task.a.rows, (long long)task.a.columns, (long long)task.a.nonzeros,
                                  (long long)task.b.nonzeros, keys.text);
    if (error != 0) return CUSPARSE_EXECUTION_FAILED;
    sum_task *kept = malloc(sizeof *kept);
    if (kept == NULL) return CUSPARSE_ALLOC_FAILED;
    *kept = task;
    return cusparse_status(maya_submit(
        handle->stream,
        &(maya_command){.run = run, .release = free, .argument = kept, .kind = MAYA_RECORD_LIBRARY, .unrecorded = true}));
}

MAYA_API int cusparseXcsrgeam2Nnz(cusparse_handle *handle, int m, int n, const legacy_descriptor *descriptor_a, int nnz_a,
                                  const int *offsets_a, const int *columns_a, const legacy_descriptor *descriptor_b, int nnz_b,
                                  const int *offsets_b, const int *columns_b, const legacy_descriptor *descriptor_c,
                                  int *offsets_c, int *total, void *work) {
    if (handle == NULL) return CUSPARSE_NOT_INITIALIZED;
    if (m < 0 || n < 0 || nnz_a < 0 || nnz_b < 0 || descriptor_a == NULL || descriptor_b == NULL || descriptor_c == NULL ||
        total == NULL)
        return CUSPARSE_INVALID_VALUE;
    sum_task task = {legacy_indices(m, n, nnz_a, offsets_a, columns_a, descriptor_a),
                     legacy_indices(m, n, nnz_b, offsets_b, columns_b, descriptor_b),
                     legacy_indices(m, n, 0, offsets_c, NULL, descriptor_c),
                     total,
                     NULL,
                     0};
    int status = submit_sum(handle, "cusparseXcsrgeam2Nnz", NULL, run_count, task);
    if (status != CUSPARSE_SUCCESS || handle->pointer_mode == SPARSE_POINTER_DEVICE) return status;
    return cusparse_status(maya_stream_synchronize(handle->stream));
}

enum { bytes_of_S = 4, bytes_of_D = 8, bytes_of_C = 8, bytes_of_Z = 16 };

#define SUM(letter, type) \
    MAYA_API int cusparse##letter##csrgeam2_bufferSizeExt( \
        cusparse_handle *handle, int m, int n, const void *alpha, const legacy_descriptor *descriptor_a, int nnz_a, \
        const void *values_a, const int *offsets_a, const int *columns_a, const void *beta, \
        const legacy_descriptor *descriptor_b, int nnz_b, const void *values_b, const int *offsets_b, const int *columns_b, \
        const legacy_descriptor *descriptor_c, const void *values_c, const int *offsets_c, const int *columns_c, \
        size_t *bytes) { \
        return sum_buffer_size(handle, m, bytes); \
    } \
    MAYA_API int cusparse##letter##csrgeam2( \
        cusparse_handle *handle, int m, int n, const void *alpha, const legacy_descriptor *descriptor_a, int nnz_a, \
        const void *values_a, const int *offsets_a, const int *columns_a, const void *beta, \
        const legacy_descriptor *descriptor_b, int nnz_b, const void *values_b, const int *offsets_b, const int *columns_b, \
        const legacy_descriptor *descriptor_c, void *values_c, int *offsets_c, int *columns_c, void *work) { \
        if (handle == NULL) return CUSPARSE_NOT_INITIALIZED; \
        if (m < 0 || n < 0 || nnz_a < 0 || nnz_b < 0 || descriptor_a == NULL || descriptor_b == NULL || descriptor_c == NULL) \
            return CUSPARSE_INVALID_VALUE; \
        return submit_sum( \
            handle, "cusparse" #letter "csrgeam2", type, run_sum, \
            (sum_task){legacy_indices(m, n, nnz_a, offsets_a, columns_a, descriptor_a), \
                       legacy_indices(m, n, nnz_b, offsets_b, columns_b, descriptor_b), \
                       legacy_indices(m, n, 0, offsets_c, columns_c, descriptor_c), NULL, values_c, bytes_of_##letter}); \
    }

/* An estimate: one counter a row. */
static int sum_buffer_size(const cusparse_handle *handle, int rows, size_t *bytes) {
    if (handle == NULL) return CUSPARSE_NOT_INITIALIZED;
    if (rows < 0 || bytes == NULL) return CUSPARSE_INVALID_VALUE;
    *bytes = 256 + 4 * ((size_t)rows + 1);
    return CUSPARSE_SUCCESS;
}

ALL_TYPES(SUM)
