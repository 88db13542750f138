/* The text of signatures: pieces of JSON go in, a record on a stream comes out. */
#include "cudnn_common.h"

#include <stdio.h>

static bool reserve(dnn_text *text, size_t more) {
    if (text->failed) return false;
    size_t needed = text->length + more + 1;
    if (needed <= text->capacity) return true;
    size_t capacity = text->capacity ? text->capacity : 256;
    while (capacity < needed) capacity *= 2;
    char *data = realloc(text->data, capacity);
    if (!data) {
        text->failed = true;
        return false;
    }
    text->data = data;
    text->capacity = capacity;
    return true;
}

void dnn_text_append(dnn_text *text, const char *format, ...) {
    char piece[512];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(piece, sizeof piece, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= sizeof piece) {
        text->failed = true; /* no caller appends more than a name and a few numbers at once */
        return;
    }
    if (!reserve(text, (size_t)length)) return;
    memcpy(text->data + text->length, piece, (size_t)length + 1);
    text->length += (size_t)length;
}

void dnn_text_list(dnn_text *text, const char *key, const int64_t *values, int64_t count) {
    dnn_text_append(text, ",\"%s\":[", key);
    for (int64_t index = 0; index < count; index++) dnn_text_append(text, "%s%lld", index ? "," : "", (long long)values[index]);
    dnn_text_append(text, "]");
}

void dnn_text_list32(dnn_text *text, const char *key, const int *values, int64_t count) {
    int64_t wide[DNN_MAX_DIMS];
    for (int64_t index = 0; index < count; index++) wide[index] = values[index];
    dnn_text_list(text, key, wide, count);
}

void dnn_text_tensor(dnn_text *text, const char *key, const dnn_tensor *tensor) {
    dnn_text_append(text, ",\"%s\":{\"type\":\"%s\"", key, dnn_type_name(tensor->type));
    dnn_text_list(text, "dims", tensor->dims, tensor->rank);
    dnn_text_list(text, "strides", tensor->strides, tensor->rank);
    dnn_text_append(text, "}");
}

dnn_status dnn_record_number(dnn_handle *handle, uint32_t signature) {
    maya_command command = {.kind = MAYA_RECORD_LIBRARY, .signature = signature};
    int error = maya_submit(handle->stream, &command);
    if (error) return dnn_fail(CUDNN_STATUS_EXECUTION_FAILED_CUDART, "the stream refused the work with cudaError_t %d", error);
    return CUDNN_STATUS_SUCCESS;
}

dnn_status dnn_record(dnn_handle *handle, dnn_text *text) {
    dnn_status status;
    if (text->failed || !text->data) status = dnn_fail(CUDNN_STATUS_HOST_ALLOCATION_FAILED, "no memory for the text of a call");
    else status = dnn_record_number(handle, maya_intern(text->data, text->length));
    free(text->data);
    *text = (dnn_text){0};
    return status;
}
