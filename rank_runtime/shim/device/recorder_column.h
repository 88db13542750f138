/* One column of a block of records: the values' differences to their predecessors, as variable-length integers.
 *
 * In: values, one a record. Out: bytes for the file. The difference (modulo 2^64) is folded so that small negative ones
 * stay small too (0, -1, 1, -2 ... become 0, 1, 2, 3 ...) and written seven bits a byte, lowest first, the top bit set
 * on all but the last byte. Trailing zeros are omitted, so a constant column costs almost nothing. Columns that seldom change
 * are written in runs: a zero is followed by the number of zeros.
 * maya/trace/columns.py reads this. */
#pragma once

#include <stdint.h>

enum { MAYA_RECORDS_PER_BLOCK = 4096, MAYA_LONGEST_VARINT = 10 };

typedef struct {
    uint32_t length;
    uint32_t zeros; /* in a column of runs: zeros so far that are not in `bytes` yet */
    uint8_t bytes[MAYA_RECORDS_PER_BLOCK * MAYA_LONGEST_VARINT]; /* pages beyond `length` are never touched */
} maya_column;

/* The length without the zeros at the end: what is written. Only a zero ends with a byte of zero. */
static inline uint32_t maya_column_significant(const maya_column *column) {
    uint32_t length = column->length;
    while (length && column->bytes[length - 1] == 0) length--;
    return length;
}

static inline uint8_t *maya_varint(uint8_t *to, uint64_t value) {
    while (value >= 0x80) {
        *to++ = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    *to++ = (uint8_t)value;
    return to;
}

static inline uint64_t maya_fold(uint64_t value, uint64_t previous) {
    int64_t difference = (int64_t)(value - previous);
    return ((uint64_t)difference << 1) ^ (uint64_t)(difference >> 63);
}

/* Where a column's next byte goes. Code that appends many values keeps it in a register and returns it at the end. */
static inline uint8_t *maya_column_open(maya_column *column) { return column->bytes + column->length; }

static inline void maya_column_close(maya_column *column, const uint8_t *end) {
    column->length = (uint32_t)(end - column->bytes);
}

static inline uint8_t *maya_column_append(uint8_t *to, uint64_t value, uint64_t previous) {
    return maya_varint(to, maya_fold(value, previous));
}

static inline uint8_t *maya_column_append_in_runs(uint8_t *to, uint32_t *zeros, uint64_t value, uint64_t previous) {
    if (value == previous) {
        ++*zeros;
        return to;
    }
    if (*zeros) {
        *to++ = 0;
        to = maya_varint(to, *zeros);
        *zeros = 0;
    }
    return maya_varint(to, maya_fold(value, previous));
}
