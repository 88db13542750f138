/* Reading and writing msgpack (msgpack.h). Numbers are big-endian; the first byte of a value says what it is. */

#include "msgpack.h"
#include "vector.h"

#include <stdlib.h>
#include <string.h>

enum {
    FIXARRAY = 0x90, /* and the count in the low four bits */
    FIXSTR = 0xa0,   /* and the length in the low five bits */
    FALSE = 0xc2,
    TRUE = 0xc3,
    BIN8 = 0xc4,  /* BIN16, BIN32 follow */
    UINT8 = 0xcc, /* UINT16, UINT32, UINT64 follow */
    INT8 = 0xd0,  /* INT16, INT32, INT64 follow */
    STR8 = 0xd9,  /* STR16, STR32 follow */
    ARRAY16 = 0xdc,
    ARRAY32 = 0xdd,
    NEGATIVE_FIXINT = 0xe0,
};

/* ---- writing ---- */

static uint8_t *room_for(maya_packer *packer, size_t bytes) {
    if (packer->size + bytes > packer->capacity) {
        packer->capacity = (packer->size + bytes) * 2 + 256;
        packer->bytes = must_alloc(realloc(packer->bytes, packer->capacity));
    }
    packer->size += bytes;
    return packer->bytes + packer->size - bytes;
}

/* `code`, then the low `width` bytes of `number`. */
static void put(maya_packer *packer, int code, uint64_t number, int width) {
    uint8_t *to = room_for(packer, 1 + (size_t)width);
    *to++ = (uint8_t)code;
    for (int shift = 8 * (width - 1); shift >= 0; shift -= 8) *to++ = (uint8_t)(number >> shift);
}

/* The smallest of the codes that follow `smallest`, for widths of 1, 2, 4 and 8 bytes, that `number` fits in. */
static void put_sized(maya_packer *packer, int smallest, uint64_t number) {
    if (number <= UINT8_MAX) put(packer, smallest, number, 1);
    else if (number <= UINT16_MAX) put(packer, smallest + 1, number, 2);
    else if (number <= UINT32_MAX) put(packer, smallest + 2, number, 4);
    else put(packer, smallest + 3, number, 8);
}

void maya_pack_array(maya_packer *packer, size_t count) {
    if (count < 16) put(packer, FIXARRAY | (int)count, 0, 0);
    else if (count <= UINT16_MAX) put(packer, ARRAY16, count, 2);
    else put(packer, ARRAY32, count, 4);
}

void maya_pack_number(maya_packer *packer, int64_t number) {
    if (number >= -32 && number < 128) put(packer, (uint8_t)number, 0, 0);
    else if (number >= 0) put_sized(packer, UINT8, (uint64_t)number);
    else if (number >= INT8_MIN) put(packer, INT8, (uint64_t)number, 1);
    else if (number >= INT16_MIN) put(packer, INT8 + 1, (uint64_t)number, 2);
    else if (number >= INT32_MIN) put(packer, INT8 + 2, (uint64_t)number, 4);
    else put(packer, INT8 + 3, (uint64_t)number, 8);
}

void maya_pack_bool(maya_packer *packer, bool value) { put(packer, value ? TRUE : FALSE, 0, 0); }

void maya_pack_text(maya_packer *packer, maya_bytes text) {
    if (text.size < 32) put(packer, FIXSTR | (int)text.size, 0, 0);
    else put_sized(packer, STR8, text.size);
    memcpy(room_for(packer, text.size), text.bytes, text.size);
}

void maya_pack_bytes(maya_packer *packer, maya_bytes bytes) {
    put_sized(packer, BIN8, bytes.size);
    memcpy(room_for(packer, bytes.size), bytes.bytes, bytes.size);
}

void maya_pack_numbers(maya_packer *packer, maya_numbers numbers) {
    maya_pack_array(packer, numbers.count);
    for (size_t i = 0; i < numbers.count; i++) maya_pack_number(packer, numbers.items[i]);
}

/* ---- reading ---- */

/* The number in the `width` bytes after the first one. */
static bool get(const maya_unpacker *unpacker, int width, uint64_t *number) {
    if (unpacker->end - unpacker->at < 1 + width) return false;
    *number = 0;
    for (int i = 1; i <= width; i++) *number = *number << 8 | unpacker->at[i];
    return true;
}

static bool has_more(const maya_unpacker *unpacker) { return unpacker->at < unpacker->end; }

bool maya_unpack_array(maya_unpacker *unpacker, size_t *count) {
    if (!has_more(unpacker)) return false;
    int code = *unpacker->at, width;
    uint64_t number;
    if ((code & 0xf0) == FIXARRAY) width = 0;
    else if (code == ARRAY16) width = 2;
    else if (code == ARRAY32) width = 4;
    else return false;
    if (!get(unpacker, width, &number)) return false;
    unpacker->at += 1 + width;
    *count = width ? (size_t)number : (size_t)(code & 0x0f);
    return *count <= (size_t)(unpacker->end - unpacker->at); /* every element takes a byte at least */
}

bool maya_unpack_number(maya_unpacker *unpacker, int64_t *number) {
    if (!has_more(unpacker)) return false;
    int code = *unpacker->at;
    if (code < 0x80 || code >= NEGATIVE_FIXINT) {
        unpacker->at++;
        *number = (int8_t)code;
        return true;
    }
    bool is_signed = code >= INT8 && code <= INT8 + 3;
    if (!is_signed && (code < UINT8 || code > UINT8 + 3)) return false;
    int width = 1 << (code - (is_signed ? INT8 : UINT8));
    uint64_t bits;
    if (!get(unpacker, width, &bits) || (!is_signed && bits > INT64_MAX)) return false;
    unpacker->at += 1 + width;
    int unused = 64 - 8 * width;
    *number = is_signed ? (int64_t)(bits << unused) >> unused : (int64_t)bits;
    return true;
}

bool maya_unpack_bool(maya_unpacker *unpacker, bool *value) {
    if (!has_more(unpacker) || (*unpacker->at != TRUE && *unpacker->at != FALSE)) return false;
    *value = *unpacker->at++ == TRUE;
    return true;
}

/* A length of `width` bytes, then that many bytes. */
static bool take(maya_unpacker *unpacker, int width, uint64_t length, maya_bytes *bytes) {
    if (width > 0 && !get(unpacker, width, &length)) return false;
    if ((uint64_t)(unpacker->end - unpacker->at) < 1 + (uint64_t)width + length) return false;
    *bytes = (maya_bytes){(const char *)unpacker->at + 1 + width, (size_t)length};
    unpacker->at += 1 + (size_t)width + (size_t)length;
    return true;
}

bool maya_unpack_text(maya_unpacker *unpacker, maya_bytes *text) {
    if (!has_more(unpacker)) return false;
    int code = *unpacker->at;
    if ((code & 0xe0) == FIXSTR) return take(unpacker, 0, code & 0x1f, text);
    if (code < STR8 || code > STR8 + 2) return false;
    return take(unpacker, 1 << (code - STR8), 0, text);
}

bool maya_unpack_bytes(maya_unpacker *unpacker, maya_bytes *bytes) {
    if (!has_more(unpacker) || *unpacker->at < BIN8 || *unpacker->at > BIN8 + 2) return false;
    return take(unpacker, 1 << (*unpacker->at - BIN8), 0, bytes);
}

bool maya_unpack_numbers(maya_unpacker *unpacker, maya_numbers *numbers) {
    size_t count;
    free(numbers->items);
    *numbers = (maya_numbers){0};
    if (!maya_unpack_array(unpacker, &count)) return false;
    if (count == 0) return true;
    numbers->items = must_alloc(malloc(count * sizeof *numbers->items));
    while (numbers->count < count) {
        if (!maya_unpack_number(unpacker, &numbers->items[numbers->count])) return false;
        numbers->count++;
    }
    return true;
}
