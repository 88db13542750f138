/* cuSPARSE's objects: matrices with their sizes, types and arrays. */
#pragma once

#include "cublas_types.h"

/* cusparseStatus_t */
enum {
    CUSPARSE_SUCCESS = 0,
    CUSPARSE_NOT_INITIALIZED = 1,
    CUSPARSE_ALLOC_FAILED = 2,
    CUSPARSE_INVALID_VALUE = 3,
    CUSPARSE_ARCH_MISMATCH = 4,
    CUSPARSE_MAPPING_ERROR = 5,
    CUSPARSE_EXECUTION_FAILED = 6,
    CUSPARSE_INTERNAL_ERROR = 7,
    CUSPARSE_MATRIX_TYPE_NOT_SUPPORTED = 8,
    CUSPARSE_ZERO_PIVOT = 9,
    CUSPARSE_NOT_SUPPORTED = 10,
    CUSPARSE_INSUFFICIENT_RESOURCES = 11,
};

enum { SPARSE_POINTER_HOST = 0, SPARSE_POINTER_DEVICE = 1 };

typedef struct {
    void *stream;
    int pointer_mode; /* where scalar results are written */
} cusparse_handle;

/* cusparseMatDescr_t, of the older functions: the matrix itself comes as arguments. */
typedef struct {
    int type, fill, diagonal, index_base;
} legacy_descriptor;

/* cusparseIndexType_t */
enum { INDEX_16 = 1, INDEX_32 = 2, INDEX_64 = 3 };

typedef enum { FORMAT_CSR = 1, FORMAT_COO = 3 } sparse_format; /* the numbers are cusparseFormat_t's */

/* cusparseSpMatDescr_t */
typedef struct {
    sparse_format format;
    int64_t rows, columns, nonzeros;
    void *row_data; /* CSR: rows + 1 offsets; COO: one row index per value */
    void *column_indices;
    void *values;
    int row_index_type, column_index_type;
    int index_base;
    int type;
    int batch;
    int fill, diagonal; /* set for triangular solves */
} sparse_matrix;

/* cusparseDnMatDescr_t; a vector (cusparseDnVecDescr_t) has one column */
typedef struct {
    int64_t rows, columns, leading;
    int type;
    int order; /* 1: column-major, 2: row-major */
    int batch;
    void *values;
} dense_matrix;

static inline const char *format_name(sparse_format format) { return format == FORMAT_CSR ? "csr" : "coo"; }

static inline const char *index_type_name(int type) {
    return type == INDEX_32 ? "int32" : type == INDEX_64 ? "int64" : type == INDEX_16 ? "uint16" : NULL;
}

static inline const char *order_name(int order) { return order == 1 ? "col" : "row"; }

static inline int cusparse_status(int cuda_error) { return cuda_error == 0 ? CUSPARSE_SUCCESS : CUSPARSE_EXECUTION_FAILED; }
