/* Descriptors of cuBLASLt are sets of numbered attributes; a table gives each attribute's offset in the descriptor. */
#pragma once

#include "cublas_types.h"

typedef struct {
    int attribute;
    uint16_t offset, bytes;
} attribute_field;

#define ATTRIBUTE(number, structure, member) {number, offsetof(structure, member), sizeof(((structure *)NULL)->member)}

static inline const attribute_field *find_attribute(const attribute_field *fields, size_t count, int attribute) {
    for (size_t i = 0; i < count; i++)
        if (fields[i].attribute == attribute) return &fields[i];
    return NULL;
}

/* Both return false where the library returns "invalid value": for an unknown attribute or a wrong size. */

static inline bool set_attribute(void *object, const attribute_field *field, const void *value, size_t bytes) {
    if (object == NULL || field == NULL || value == NULL || bytes != field->bytes) return false;
    memcpy((char *)object + field->offset, value, bytes);
    return true;
}

/* With no room given, only the size is asked for. */
static inline bool get_attribute(const void *object, const attribute_field *field, void *value, size_t bytes, size_t *written) {
    if (object == NULL || field == NULL || (bytes == 0 && written == NULL)) return false;
    if (bytes != 0 && (value == NULL || bytes != field->bytes)) return false;
    if (bytes != 0) memcpy(value, (const char *)object + field->offset, bytes);
    if (written != NULL) *written = field->bytes;
    return true;
}
