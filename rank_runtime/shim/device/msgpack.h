/* msgpack, as far as the messages between ranks and the coordinator use it (rank_runtime/messages.py): whole numbers, true
 * and false, texts, bytes, and arrays.
 *
 * Writing: values are appended to a buffer that grows. Reading: every function is true if the next value is of its kind, and
 * then steps over it; none reads beyond the end, whatever the bytes are. What is read points into the input, except numbers,
 * which are allocated. The functions for whole messages are made from their declarations at build time ("messages.h"). */
#pragma once

#include "device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    uint8_t *bytes;
    size_t size, capacity;
} maya_packer;

typedef struct {
    const uint8_t *at, *end;
} maya_unpacker;

typedef struct {
    const char *bytes; /* not terminated */
    size_t size;
} maya_bytes;

typedef struct {
    int64_t *items;
    size_t count;
} maya_numbers;

MAYA_API void maya_pack_array(maya_packer *packer, size_t count);
MAYA_API void maya_pack_number(maya_packer *packer, int64_t number);
MAYA_API void maya_pack_bool(maya_packer *packer, bool value);
MAYA_API void maya_pack_text(maya_packer *packer, maya_bytes text);
MAYA_API void maya_pack_bytes(maya_packer *packer, maya_bytes bytes);
MAYA_API void maya_pack_numbers(maya_packer *packer, maya_numbers numbers);

MAYA_API bool maya_unpack_array(maya_unpacker *unpacker, size_t *count);
MAYA_API bool maya_unpack_number(maya_unpacker *unpacker, int64_t *number);
MAYA_API bool maya_unpack_bool(maya_unpacker *unpacker, bool *value);
MAYA_API bool maya_unpack_text(maya_unpacker *unpacker, maya_bytes *text);
MAYA_API bool maya_unpack_bytes(maya_unpacker *unpacker, maya_bytes *bytes);
/* Frees what `numbers` had before: a message may be read into again and again. */
MAYA_API bool maya_unpack_numbers(maya_unpacker *unpacker, maya_numbers *numbers);

#ifdef __cplusplus
}
#endif
