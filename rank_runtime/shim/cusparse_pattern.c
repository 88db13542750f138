/* Patterns of sums and SpGEMMs of sparse matrices; see cusparse_pattern.h. */
#include "cusparse_pattern.h"

/* ---- reading index arrays ---- */

static int64_t index_at(const void *array, int type, int64_t i) {
    return type == INDEX_64 ? ((const int64_t *)array)[i] : ((const int32_t *)array)[i];
}

static int64_t row_start(const csr_indices *m, int64_t row) {
    return index_at(m->offsets, m->offset_type, row) - m->index_base;
}

static int64_t column_at(const csr_indices *m, int64_t i) {
    return index_at(m->column_indices, m->column_type, i) - m->index_base;
}

/* Known, and such that following the indices stays inside the arrays. */
static bool is_usable(const csr_indices *m) {
    if (m->rows > PATTERN_LIMIT || m->columns > PATTERN_LIMIT || m->nonzeros > PATTERN_LIMIT) return false;
    size_t offset_bytes = (size_t)(m->rows + 1) * index_bytes(m->offset_type);
    size_t column_bytes = (size_t)m->nonzeros * index_bytes(m->column_type);
    if (!maya_values_are_known(m->offsets, offset_bytes)) return false;
    if (m->nonzeros > 0 && !maya_values_are_known(m->column_indices, column_bytes)) return false;
    if (row_start(m, 0) != 0 || row_start(m, m->rows) != m->nonzeros) return false;
    for (int64_t row = 0; row < m->rows; row++)
        if (row_start(m, row + 1) < row_start(m, row)) return false;
    for (int64_t i = 0; i < m->nonzeros; i++)
        if (column_at(m, i) < 0 || column_at(m, i) >= m->columns) return false;
    return true;
}

/* ---- building a pattern row by row ---- */

typedef struct {
    sparse_pattern *pattern;
    int64_t room;       /* for columns */
    int64_t *last_seen; /* per column: the last row (counted from 1) that has it */
} builder;

static void builder_discard(builder *b) {
    pattern_free(b->pattern);
    free(b->last_seen);
}

static bool builder_start(builder *b, int64_t rows, int64_t columns, int64_t room) {
    *b = (builder){
        .pattern = calloc(1, sizeof *b->pattern), .room = room, .last_seen = calloc((size_t)columns + 1, sizeof *b->last_seen)};
    if (b->pattern != NULL) {
        b->pattern->rows = rows;
        b->pattern->offsets = calloc((size_t)rows + 1, sizeof *b->pattern->offsets);
        b->pattern->columns = malloc(((size_t)room + 1) * sizeof *b->pattern->columns);
    }
    if (b->pattern != NULL && b->last_seen != NULL && b->pattern->offsets != NULL && b->pattern->columns != NULL) return true;
    builder_discard(b);
    return false;
}

/* The columns of `m`'s row `source` become part of row `row`. */
static void builder_add_row(builder *b, int64_t row, const csr_indices *m, int64_t source) {
    sparse_pattern *pattern = b->pattern;
    for (int64_t i = row_start(m, source); i < row_start(m, source + 1); i++) {
        int64_t column = column_at(m, i);
        if (b->last_seen[column] == row + 1 || pattern->nonzeros == b->room) continue;
        b->last_seen[column] = row + 1;
        pattern->columns[pattern->nonzeros++] = column;
    }
}

static int compare_columns(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

static void builder_end_row(builder *b, int64_t row) {
    sparse_pattern *pattern = b->pattern;
    int64_t start = pattern->offsets[row];
    qsort(pattern->columns + start, (size_t)(pattern->nonzeros - start), sizeof *pattern->columns, compare_columns);
    pattern->offsets[row + 1] = pattern->nonzeros;
}

static sparse_pattern *builder_finish(builder *b) {
    free(b->last_seen);
    return b->pattern;
}

void pattern_free(sparse_pattern *pattern) {
    if (pattern == NULL) return;
    free(pattern->offsets);
    free(pattern->columns);
    free(pattern);
}

sparse_pattern *pattern_of_sum(const csr_indices *a, const csr_indices *b) {
    builder result;
    if (!is_usable(a) || !is_usable(b) || !builder_start(&result, a->rows, a->columns, a->nonzeros + b->nonzeros)) return NULL;
    for (int64_t row = 0; row < a->rows; row++) {
        builder_add_row(&result, row, a, row);
        builder_add_row(&result, row, b, row);
        builder_end_row(&result, row);
    }
    return builder_finish(&result);
}

/* The number of pairs of values that are multiplied; -1: more than PATTERN_LIMIT. */
static int64_t count_products(const csr_indices *a, const csr_indices *b) {
    int64_t products = 0;
    for (int64_t i = 0; i < a->nonzeros; i++) {
        int64_t row = column_at(a, i);
        products += row_start(b, row + 1) - row_start(b, row);
        if (products > PATTERN_LIMIT) return -1;
    }
    return products;
}

sparse_pattern *pattern_of_spgemm(const csr_indices *a, const csr_indices *b) {
    if (a->columns != b->rows || !is_usable(a) || !is_usable(b)) return NULL;
    int64_t products = count_products(a, b);
    builder result;
    if (products < 0 || !builder_start(&result, a->rows, b->columns, products)) return NULL;
    for (int64_t row = 0; row < a->rows; row++) {
        for (int64_t i = row_start(a, row); i < row_start(a, row + 1); i++) builder_add_row(&result, row, b, column_at(a, i));
        builder_end_row(&result, row);
    }
    return builder_finish(&result);
}

/* ---- without patterns: values spread evenly ---- */

int64_t expected_in_sum(const csr_indices *a, const csr_indices *b) {
    double cells = (double)a->rows * (double)a->columns, most = (double)a->nonzeros + (double)b->nonzeros;
    return (int64_t)(most < cells ? most : cells);
}

int64_t expected_products(const csr_indices *a, const csr_indices *b) {
    return a->columns == 0 ? 0 : (int64_t)((double)a->nonzeros * (double)b->nonzeros / (double)a->columns);
}

/* Products of values fall on random cells of the result: the number of filled cells is close to the number of products
 * while they are few, and to the number of cells when they are many. */
int64_t expected_in_spgemm(const csr_indices *a, const csr_indices *b) {
    double cells = (double)a->rows * (double)b->columns, products = (double)expected_products(a, b);
    return products == 0 || cells == 0 ? 0 : (int64_t)(products * cells / (products + cells));
}

/* ---- writing ---- */

static void write_indices(void *array, int type, const int64_t *indices, int64_t count, int base) {
    for (int64_t i = 0; i < count; i++) {
        if (type == INDEX_64) ((int64_t *)array)[i] = indices[i] + base;
        else ((int32_t *)array)[i] = (int32_t)(indices[i] + base);
    }
    if (count > 0) maya_values_known(array, (size_t)count * index_bytes(type));
}

void pattern_write_offsets(const sparse_pattern *pattern, const csr_indices *into) {
    if (into->offsets == NULL) return;
    if (pattern != NULL) write_indices(into->offsets, into->offset_type, pattern->offsets, into->rows + 1, into->index_base);
    else maya_values_set_placeholder(into->offsets, (size_t)(into->rows + 1) * index_bytes(into->offset_type));
}

void pattern_write_columns(const sparse_pattern *pattern, const csr_indices *into) {
    if (into->column_indices == NULL) return;
    if (pattern != NULL)
        write_indices(into->column_indices, into->column_type, pattern->columns, pattern->nonzeros, into->index_base);
    else if (into->nonzeros > 0)
        maya_values_set_placeholder(into->column_indices, (size_t)into->nonzeros * index_bytes(into->column_type));
}
