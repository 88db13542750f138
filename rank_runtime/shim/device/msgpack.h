/* The subset of msgpack that the messages between ranks and the coordinator use (rank_runtime/messages.py): integers, true
 * and false, texts, bytes, and arrays.
 *
 * Writing: values are appended to a growing buffer. Reading: every function returns true if the next value has its type, and
 * then skips it; none reads beyond the end, whatever the bytes are. Results point into the input, except arrays of numbers,
 * which are allocated. The functions for whole messages are generated from their declarations ("messages.h"). */
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
