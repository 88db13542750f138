/* cuSPARSE's functions on index arrays: identity permutation, row indices to offsets, sorting.
 *
 * In: index arrays in device memory. Out: records, and the real result, in stream order, when the input is known and
 * not too long; programs read these back. Otherwise the result is a placeholder.
 */
#include "cublas_signature.h"
#include "cusparse_pattern.h"

typedef struct {
    int rows, nonzeros;
    int *row_indices; /* one a value; CSR sorting has offsets instead */
    int *offsets;
    int *column_indices;
    int *permutation; /* may be NULL */
    int index_base;
} index_task;

static bool is_known(const int *array, int64_t count) {
    return count == 0 || maya_values_are_known(array, (size_t)count * sizeof *array);
}

static void mark(const int *array, int64_t count, bool known) {
    if (array == NULL || count == 0) return;
    if (known) maya_values_known(array, (size_t)count * sizeof *array);
    else maya_values_set_placeholder(array, (size_t)count * sizeof *array);
}

static int submit(cusparse_handle *handle, const char *call, int columns, void (*run)(void *), index_task task) {
    more_keys keys = {.used = 0};
    add_number(&keys, "rows", task.rows);
    add_number(&keys, "cols", columns);
    int error = maya_library_call(handle->stream, "{\"call\":\"%s\"%s,\"nnz\":%d}", call, keys.text, task.nonzeros);
    if (error != 0) return CUSPARSE_EXECUTION_FAILED;
    index_task *kept = malloc(sizeof *kept);
    if (kept == NULL) return CUSPARSE_ALLOC_FAILED;
    *kept = task;
    return cusparse_status(maya_submit(
        handle->stream,
        &(maya_command){.run = run, .release = free, .argument = kept, .kind = MAYA_RECORD_LIBRARY, .unrecorded = true}));
}

/* ---- 0, 1, 2, ... ---- */

static void run_identity(void *argument) {
    const index_task *task = argument;
    bool short_enough = task->nonzeros <= PATTERN_LIMIT;
    for (int i = 0; short_enough && i < task->nonzeros; i++) task->permutation[i] = i;
    mark(task->permutation, task->nonzeros, short_enough);
}

MAYA_API int cusparseCreateIdentityPermutation(cusparse_handle *handle, int n, int *permutation) {
    if (handle == NULL) return CUSPARSE_NOT_INITIALIZED;
    if (n < 0 || (permutation == NULL && n > 0)) return CUSPARSE_INVALID_VALUE;
    return submit(handle, "cusparseCreateIdentityPermutation", 0, run_identity,
                  (index_task){.nonzeros = n, .permutation = permutation});
}

/* ---- sorted row indices to row offsets ---- */

static void run_compress(void *argument) {
    const index_task *task = argument;
    bool known = task->nonzeros <= PATTERN_LIMIT && task->rows <= PATTERN_LIMIT && is_known(task->row_indices, task->nonzeros);
    int next = 0;
    for (int row = 0; known && row <= task->rows; row++) {
        while (next < task->nonzeros && task->row_indices[next] - task->index_base < row) next++;
        task->offsets[row] = next + task->index_base;
    }
    mark(task->offsets, (int64_t)task->rows + 1, known);
}

MAYA_API int cusparseXcoo2csr(cusparse_handle *handle, const int *row_indices, int nonzeros, int rows, int *offsets,
                              int index_base) {
    if (handle == NULL) return CUSPARSE_NOT_INITIALIZED;
    if (nonzeros < 0 || rows < 0 || offsets == NULL || index_base < 0 || index_base > 1) return CUSPARSE_INVALID_VALUE;
    return submit(handle, "cusparseXcoo2csr", 0, run_compress,
                  (index_task){.rows = rows,
                               .nonzeros = nonzeros,
                               .row_indices = (int *)row_indices,
                               .offsets = offsets,
                               .index_base = index_base});
}

/* ---- sorting by row and column ---- */

typedef struct {
    int row, column, permutation, position;
} entry;

/* Equal entries keep their order. */
static int compare_entries(const void *left, const void *right) {
    const entry *a = left, *b = right;
    if (a->row != b->row) return a->row < b->row ? -1 : 1;
    if (a->column != b->column) return a->column < b->column ? -1 : 1;
    return a->position < b->position ? -1 : 1;
}

/* Fills in every entry's row; false when the arrays do not make sense. */
static bool read_rows(const index_task *task, entry *entries) {
    if (task->offsets == NULL) {
        for (int i = 0; i < task->nonzeros; i++) entries[i].row = task->row_indices[i];
        return true;
    }
    int next = 0;
    for (int row = 0; row < task->rows; row++) {
        int end = task->offsets[row + 1] - task->index_base;
        if (end < next || end > task->nonzeros) return false;
        while (next < end) entries[next++].row = row;
    }
    return next == task->nonzeros;
}

static bool sort_entries(const index_task *task) {
    const int *rows = task->offsets != NULL ? task->offsets : task->row_indices;
    int64_t row_words = task->offsets != NULL ? (int64_t)task->rows + 1 : task->nonzeros;
    if (task->nonzeros > PATTERN_LIMIT || !is_known(rows, row_words) || !is_known(task->column_indices, task->nonzeros))
        return false;
    entry *entries = calloc((size_t)task->nonzeros + 1, sizeof *entries);
    if (entries == NULL) return false;
    bool sensible = read_rows(task, entries);
    for (int i = 0; sensible && i < task->nonzeros; i++) {
        entries[i].column = task->column_indices[i];
        entries[i].permutation = task->permutation != NULL ? task->permutation[i] : 0;
        entries[i].position = i;
    }
    if (sensible) qsort(entries, (size_t)task->nonzeros, sizeof *entries, compare_entries);
    for (int i = 0; sensible && i < task->nonzeros; i++) {
        if (task->row_indices != NULL) task->row_indices[i] = entries[i].row;
        task->column_indices[i] = entries[i].column;
        if (task->permutation != NULL) task->permutation[i] = entries[i].permutation;
    }
    free(entries);
    return sensible;
}

static void run_sort(void *argument) {
    const index_task *task = argument;
    bool permutation_known = task->permutation != NULL && is_known(task->permutation, task->nonzeros);
    bool sorted = sort_entries(task);
    mark(task->row_indices, task->nonzeros, sorted);
    mark(task->column_indices, task->nonzeros, sorted);
    mark(task->permutation, task->nonzeros, sorted && permutation_known);
}

/* An estimate: two copies of keys and permutation, for a radix sort. */
static int sort_buffer_size(const cusparse_handle *handle, int nonzeros, size_t *bytes) {
    if (handle == NULL) return CUSPARSE_NOT_INITIALIZED;
    if (nonzeros < 0 || bytes == NULL) return CUSPARSE_INVALID_VALUE;
    *bytes = 1024 + 16 * (size_t)nonzeros;
    return CUSPARSE_SUCCESS;
}

MAYA_API int cusparseXcoosort_bufferSizeExt(cusparse_handle *handle, int m, int n, int nonzeros, const int *rows,
                                            const int *columns, size_t *bytes) {
    return sort_buffer_size(handle, nonzeros, bytes);
}

MAYA_API int cusparseXcoosortByRow(cusparse_handle *handle, int m, int n, int nonzeros, int *rows, int *columns,
                                   int *permutation, void *buffer) {
    if (handle == NULL) return CUSPARSE_NOT_INITIALIZED;
    if (m < 0 || n < 0 || nonzeros < 0) return CUSPARSE_INVALID_VALUE;
    return submit(
        handle, "cusparseXcoosortByRow", n, run_sort,
        (index_task){
            .rows = m, .nonzeros = nonzeros, .row_indices = rows, .column_indices = columns, .permutation = permutation});
}

MAYA_API int cusparseXcsrsort_bufferSizeExt(cusparse_handle *handle, int m, int n, int nonzeros, const int *offsets,
                                            const int *columns, size_t *bytes) {
    return sort_buffer_size(handle, nonzeros, bytes);
}

MAYA_API int cusparseXcsrsort(cusparse_handle *handle, int m, int n, int nonzeros, const legacy_descriptor *descriptor,
                              const int *offsets, int *columns, int *permutation, void *buffer) {
    if (handle == NULL) return CUSPARSE_NOT_INITIALIZED;
    if (m < 0 || n < 0 || nonzeros < 0 || descriptor == NULL) return CUSPARSE_INVALID_VALUE;
    return submit(handle, "cusparseXcsrsort", n, run_sort,
                  (index_task){.rows = m,
                               .nonzeros = nonzeros,
                               .offsets = (int *)offsets,
                               .column_indices = columns,
                               .permutation = permutation,
                               .index_base = descriptor->index_base});
}
