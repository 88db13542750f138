/* cuSPARSE: handles, descriptors, version and error texts. The computing functions are in cusparse_*.c.
 *
 * In: properties of the program's matrices. Out: descriptors that hold them, for the records of later calls.
 */
#include "cusparse_internal.h"

/* ---- handle ---- */

MAYA_API int cusparseCreate(cusparse_handle **handle) {
    if (handle == NULL) return CUSPARSE_INVALID_VALUE;
    *handle = calloc(1, sizeof **handle);
    return *handle == NULL ? CUSPARSE_ALLOC_FAILED : CUSPARSE_SUCCESS;
}

MAYA_API int cusparseDestroy(cusparse_handle *handle) {
    free(handle);
    return CUSPARSE_SUCCESS;
}

MAYA_API int cusparseSetStream(cusparse_handle *handle, void *stream) {
    if (handle == NULL) return CUSPARSE_NOT_INITIALIZED;
    handle->stream = stream;
    return CUSPARSE_SUCCESS;
}

MAYA_API int cusparseGetStream(cusparse_handle *handle, void **stream) {
    if (handle == NULL) return CUSPARSE_NOT_INITIALIZED;
    if (stream == NULL) return CUSPARSE_INVALID_VALUE;
    *stream = handle->stream;
    return CUSPARSE_SUCCESS;
}

MAYA_API int cusparseSetPointerMode(cusparse_handle *handle, int mode) {
    if (handle == NULL) return CUSPARSE_NOT_INITIALIZED;
    if (mode != SPARSE_POINTER_HOST && mode != SPARSE_POINTER_DEVICE) return CUSPARSE_INVALID_VALUE;
    handle->pointer_mode = mode;
    return CUSPARSE_SUCCESS;
}

MAYA_API int cusparseGetPointerMode(cusparse_handle *handle, int *mode) {
    if (handle == NULL) return CUSPARSE_NOT_INITIALIZED;
    if (mode == NULL) return CUSPARSE_INVALID_VALUE;
    *mode = handle->pointer_mode;
    return CUSPARSE_SUCCESS;
}

/* cuSPARSE has version numbers of its own: 12.5 in the last CUDA 12 toolkits, 12.6 since CUDA 13. */
enum { SPARSE_MAJOR = 12, SPARSE_MINOR = TOOLKIT_MAJOR >= 13 ? 6 : 5 };

MAYA_API int cusparseGetVersion(cusparse_handle *handle, int *version) {
    if (handle == NULL) return CUSPARSE_NOT_INITIALIZED;
    if (version == NULL) return CUSPARSE_INVALID_VALUE;
    *version = SPARSE_MAJOR * 1000 + SPARSE_MINOR * 100;
    return CUSPARSE_SUCCESS;
}

MAYA_API int cusparseGetProperty(int property, int *value) {
    return library_property(property, SPARSE_MAJOR, SPARSE_MINOR, value) ? CUSPARSE_SUCCESS : CUSPARSE_INVALID_VALUE;
}

MAYA_API const char *cusparseGetErrorName(int status) {
    switch (status) {
        case CUSPARSE_SUCCESS: return "CUSPARSE_STATUS_SUCCESS";
        case CUSPARSE_NOT_INITIALIZED: return "CUSPARSE_STATUS_NOT_INITIALIZED";
        case CUSPARSE_ALLOC_FAILED: return "CUSPARSE_STATUS_ALLOC_FAILED";
        case CUSPARSE_INVALID_VALUE: return "CUSPARSE_STATUS_INVALID_VALUE";
        case CUSPARSE_ARCH_MISMATCH: return "CUSPARSE_STATUS_ARCH_MISMATCH";
        case CUSPARSE_MAPPING_ERROR: return "CUSPARSE_STATUS_MAPPING_ERROR";
        case CUSPARSE_EXECUTION_FAILED: return "CUSPARSE_STATUS_EXECUTION_FAILED";
        case CUSPARSE_INTERNAL_ERROR: return "CUSPARSE_STATUS_INTERNAL_ERROR";
        case CUSPARSE_MATRIX_TYPE_NOT_SUPPORTED: return "CUSPARSE_STATUS_MATRIX_TYPE_NOT_SUPPORTED";
        case CUSPARSE_ZERO_PIVOT: return "CUSPARSE_STATUS_ZERO_PIVOT";
        case CUSPARSE_NOT_SUPPORTED: return "CUSPARSE_STATUS_NOT_SUPPORTED";
        case CUSPARSE_INSUFFICIENT_RESOURCES: return "CUSPARSE_STATUS_INSUFFICIENT_RESOURCES";
        default: return "CUSPARSE_STATUS_UNKNOWN";
    }
}

MAYA_API const char *cusparseGetErrorString(int status) {
    switch (status) {
        case CUSPARSE_SUCCESS: return "success";
        case CUSPARSE_NOT_INITIALIZED: return "initialization error";
        case CUSPARSE_ALLOC_FAILED: return "out of memory";
        case CUSPARSE_INVALID_VALUE: return "invalid value";
        case CUSPARSE_EXECUTION_FAILED: return "kernel launch failure";
        case CUSPARSE_NOT_SUPPORTED: return "operation not supported";
        default: return cusparseGetErrorName(status);
    }
}

/* ---- descriptors of the older functions ---- */

MAYA_API int cusparseCreateMatDescr(legacy_descriptor **descriptor) {
    if (descriptor == NULL) return CUSPARSE_INVALID_VALUE;
    *descriptor = calloc(1, sizeof **descriptor);
    return *descriptor == NULL ? CUSPARSE_ALLOC_FAILED : CUSPARSE_SUCCESS;
}

MAYA_API int cusparseDestroyMatDescr(legacy_descriptor *descriptor) {
    free(descriptor);
    return CUSPARSE_SUCCESS;
}

#define LEGACY_SETTER(name, field, largest) \
    MAYA_API int cusparseSetMat##name(legacy_descriptor *descriptor, int value) { \
        if (descriptor == NULL || value < 0 || value > (largest)) return CUSPARSE_INVALID_VALUE; \
        descriptor->field = value; \
        return CUSPARSE_SUCCESS; \
    }
LEGACY_SETTER(Type, type, 3)
LEGACY_SETTER(FillMode, fill, 1)
LEGACY_SETTER(DiagType, diagonal, 1)
LEGACY_SETTER(IndexBase, index_base, 1)

/* ---- sparse matrices ---- */

static int create_sparse(sparse_matrix **matrix, sparse_matrix initial) {
    if (matrix == NULL || initial.rows < 0 || initial.columns < 0 || initial.nonzeros < 0 ||
        index_type_name(initial.row_index_type) == NULL || index_type_name(initial.column_index_type) == NULL ||
        initial.index_base < 0 || initial.index_base > 1)
        return CUSPARSE_INVALID_VALUE;
    if (data_type_name(initial.type) == NULL) return CUSPARSE_NOT_SUPPORTED;
    initial.batch = 1;
    sparse_matrix *created = malloc(sizeof *created);
    if (created == NULL) return CUSPARSE_ALLOC_FAILED;
    *created = initial;
    *matrix = created;
    return CUSPARSE_SUCCESS;
}

MAYA_API int cusparseCreateCsr(sparse_matrix **matrix, int64_t rows, int64_t columns, int64_t nonzeros, void *offsets,
                               void *column_indices, void *values, int offset_type, int column_type, int index_base, int type) {
    return create_sparse(matrix, (sparse_matrix){FORMAT_CSR, rows, columns, nonzeros, offsets, column_indices, values,
                                                 offset_type, column_type, index_base, type, 1, 0, 0});
}

MAYA_API int cusparseCreateCoo(sparse_matrix **matrix, int64_t rows, int64_t columns, int64_t nonzeros, void *row_indices,
                               void *column_indices, void *values, int index_type, int index_base, int type) {
    return create_sparse(matrix, (sparse_matrix){FORMAT_COO, rows, columns, nonzeros, row_indices, column_indices, values,
                                                 index_type, index_type, index_base, type, 1, 0, 0});
}

MAYA_API int cusparseDestroySpMat(sparse_matrix *matrix) {
    free(matrix);
    return CUSPARSE_SUCCESS;
}

MAYA_API int cusparseCsrSetPointers(sparse_matrix *matrix, void *offsets, void *column_indices, void *values) {
    if (matrix == NULL || matrix->format != FORMAT_CSR) return CUSPARSE_INVALID_VALUE;
    matrix->row_data = offsets;
    matrix->column_indices = column_indices;
    matrix->values = values;
    return CUSPARSE_SUCCESS;
}

MAYA_API int cusparseCsrSetStridedBatch(sparse_matrix *matrix, int batch, int64_t offset_stride, int64_t value_stride) {
    if (matrix == NULL || batch < 1 || offset_stride < 0 || value_stride < 0) return CUSPARSE_INVALID_VALUE;
    matrix->batch = batch;
    return CUSPARSE_SUCCESS;
}

MAYA_API int cusparseSpMatGetSize(const sparse_matrix *matrix, int64_t *rows, int64_t *columns, int64_t *nonzeros) {
    if (matrix == NULL || rows == NULL || columns == NULL || nonzeros == NULL) return CUSPARSE_INVALID_VALUE;
    *rows = matrix->rows;
    *columns = matrix->columns;
    *nonzeros = matrix->nonzeros;
    return CUSPARSE_SUCCESS;
}

MAYA_API int cusparseSpMatSetAttribute(sparse_matrix *matrix, int attribute, const void *value, size_t bytes) {
    enum { FILL_MODE = 0, DIAGONAL_TYPE = 1 };
    int word;
    if (matrix == NULL || value == NULL || bytes != sizeof word || attribute < FILL_MODE || attribute > DIAGONAL_TYPE)
        return CUSPARSE_INVALID_VALUE;
    memcpy(&word, value, sizeof word);
    *(attribute == FILL_MODE ? &matrix->fill : &matrix->diagonal) = word;
    return CUSPARSE_SUCCESS;
}

/* ---- dense matrices and vectors ---- */

static int create_dense(dense_matrix **matrix, dense_matrix initial) {
    if (matrix == NULL || initial.rows < 0 || initial.columns < 0 || initial.order < 1 || initial.order > 2)
        return CUSPARSE_INVALID_VALUE;
    if (data_type_name(initial.type) == NULL) return CUSPARSE_NOT_SUPPORTED;
    dense_matrix *created = malloc(sizeof *created);
    if (created == NULL) return CUSPARSE_ALLOC_FAILED;
    *created = initial;
    *matrix = created;
    return CUSPARSE_SUCCESS;
}

MAYA_API int cusparseCreateDnMat(dense_matrix **matrix, int64_t rows, int64_t columns, int64_t leading, void *values, int type,
                                 int order) {
    return create_dense(matrix, (dense_matrix){rows, columns, leading, type, order, 1, values});
}

MAYA_API int cusparseCreateDnVec(dense_matrix **vector, int64_t size, void *values, int type) {
    return create_dense(vector, (dense_matrix){size, 1, size, type, 1, 1, values});
}

MAYA_API int cusparseDnMatSetStridedBatch(dense_matrix *matrix, int batch, int64_t stride) {
    if (matrix == NULL || batch < 1 || stride < 0) return CUSPARSE_INVALID_VALUE;
    matrix->batch = batch;
    return CUSPARSE_SUCCESS;
}

MAYA_API int cusparseDestroyDnMat(dense_matrix *matrix) {
    free(matrix);
    return CUSPARSE_SUCCESS;
}

MAYA_API int cusparseDestroyDnVec(dense_matrix *vector) {
    free(vector);
    return CUSPARSE_SUCCESS;
}
