/* Patterns of sparse matrices (the positions of their values), which are really computed.
 *
 * A program allocates by the number of values of a sum or SpGEMM and reads positions back, so these are computed
 * whenever the operands' index arrays are known and not too long. The values themselves are not computed.
 */
#pragma once

#include "cusparse_internal.h"

/* Beyond this many index entries (or products of values) a real computation would cost more than it is worth. */
enum { PATTERN_LIMIT = 1 << 20 };

/* The index arrays of a CSR matrix in device memory. */
typedef struct {
    int64_t rows, columns, nonzeros;
    void *offsets, *column_indices;
    int offset_type, column_type; /* INDEX_32 or INDEX_64 */
    int index_base;
} csr_indices;

/* A pattern on the host, counted from 0, columns in order. */
typedef struct {
    int64_t rows, nonzeros;
    int64_t *offsets, *columns;
} sparse_pattern;

/* NULL when the operands are not known, too large, or not well formed. */
sparse_pattern *pattern_of_sum(const csr_indices *a, const csr_indices *b);
sparse_pattern *pattern_of_spgemm(const csr_indices *a, const csr_indices *b);
void pattern_free(sparse_pattern *pattern);

/* How many values to expect when the patterns are not known. */
int64_t expected_in_sum(const csr_indices *a, const csr_indices *b);
int64_t expected_in_spgemm(const csr_indices *a, const csr_indices *b);
/* How many pairs of values are multiplied in an SpGEMM. */
int64_t expected_products(const csr_indices *a, const csr_indices *b);

/* Writes the pattern to the arrays of `into`, or marks these as placeholders if there is no pattern. */
void pattern_write_offsets(const sparse_pattern *pattern, const csr_indices *into);
void pattern_write_columns(const sparse_pattern *pattern, const csr_indices *into);

static inline size_t index_bytes(int type) { return type == INDEX_64 ? 8 : 4; }

static inline csr_indices csr_indices_of(const sparse_matrix *matrix) {
    return (csr_indices){matrix->rows,           matrix->columns,        matrix->nonzeros,          matrix->row_data,
                         matrix->column_indices, matrix->row_index_type, matrix->column_index_type, matrix->index_base};
}
