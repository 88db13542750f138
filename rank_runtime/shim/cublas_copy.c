/* cuBLAS's copies of vectors and matrices between host and device, which are strided copies.
 *
 * In: element counts and strides in elements. Out: the same record and effect as cudaMemcpy2DAsync.
 */
#include "cublas_handle.h"
#include "device/internal.h"

/* Copies `columns` columns of `rows` elements each; column starts are ld elements apart. */
static int copy_matrix(void *stream, int rows, int columns, int element_bytes, const void *source, int source_ld,
                       void *destination, int destination_ld, bool blocking) {
    if (rows < 0 || columns < 0 || element_bytes <= 0 || source_ld <= 0 || destination_ld <= 0) return CUBLAS_INVALID_VALUE;
    if (rows == 0 || columns == 0) return CUBLAS_SUCCESS;
    size_t bytes = (size_t)element_bytes;
    int error = maya_copy_submit(stream, &(maya_copy){.destination = destination,
                                                      .source = source,
                                                      .width = (size_t)rows * bytes,
                                                      .rows = (size_t)columns,
                                                      .destination_pitch = (size_t)destination_ld * bytes,
                                                      .source_pitch = (size_t)source_ld * bytes,
                                                      .blocking = blocking});
    return error == 0 ? CUBLAS_SUCCESS : CUBLAS_MAPPING_ERROR;
}

MAYA_API int cublasSetMatrixAsync(int rows, int columns, int element_bytes, const void *a, int lda, void *b, int ldb,
                                  void *stream) {
    return copy_matrix(stream, rows, columns, element_bytes, a, lda, b, ldb, false);
}

MAYA_API int cublasGetMatrixAsync(int rows, int columns, int element_bytes, const void *a, int lda, void *b, int ldb,
                                  void *stream) {
    return copy_matrix(stream, rows, columns, element_bytes, a, lda, b, ldb, false);
}

MAYA_API int cublasSetMatrix(int rows, int columns, int element_bytes, const void *a, int lda, void *b, int ldb) {
    return copy_matrix(NULL, rows, columns, element_bytes, a, lda, b, ldb, true);
}

MAYA_API int cublasGetMatrix(int rows, int columns, int element_bytes, const void *a, int lda, void *b, int ldb) {
    return copy_matrix(NULL, rows, columns, element_bytes, a, lda, b, ldb, true);
}

/* A vector with stride s is a matrix of one row with leading dimension s. */

MAYA_API int cublasSetVectorAsync(int n, int element_bytes, const void *x, int incx, void *y, int incy, void *stream) {
    return copy_matrix(stream, 1, n, element_bytes, x, incx, y, incy, false);
}

MAYA_API int cublasGetVectorAsync(int n, int element_bytes, const void *x, int incx, void *y, int incy, void *stream) {
    return copy_matrix(stream, 1, n, element_bytes, x, incx, y, incy, false);
}

MAYA_API int cublasSetVector(int n, int element_bytes, const void *x, int incx, void *y, int incy) {
    return copy_matrix(NULL, 1, n, element_bytes, x, incx, y, incy, true);
}

MAYA_API int cublasGetVector(int n, int element_bytes, const void *x, int incx, void *y, int incy) {
    return copy_matrix(NULL, 1, n, element_bytes, x, incx, y, incy, true);
}
