/* Declarations shared by the files of the fake cuDNN: status codes, data types, handles, tensors, signatures.
 *
 * cuDNN has two interfaces, and both end here: one function per operation (cudnn_convolution.c, cudnn_rnn.c, ...), and
 * graphs of operations built from typed attributes (cudnn_backend.h). Either way a call becomes one JSON
 * signature, which dnn_record() submits to the handle's stream.
 *
 * In a signature a tensor is {"dims":[...],"strides":[...],"type":"bf16"}, whichever interface it came through.
 */
#pragma once

#include "device/device.h"

#include <stdlib.h>
#include <string.h>

/* Functions have the parameters of the emulated library, but most calls need only the shapes. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* The version torch was built with: major * 10000 + minor * 100 + patch. */
#ifndef MAYA_CUDNN_VERSION
#define MAYA_CUDNN_VERSION 92000
#endif
#ifndef MAYA_CUDA_VERSION
#define MAYA_CUDA_VERSION 13000
#endif

/* cudnnStatus_t: the thousands are the category */
typedef enum {
    CUDNN_STATUS_SUCCESS = 0,
    CUDNN_STATUS_BAD_PARAM = 2000,
    CUDNN_STATUS_BAD_PARAM_NULL_POINTER = 2002,
    CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED = 2004,
    CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT = 2006,
    CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH = 2008,
    CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE = 2010,
    CUDNN_STATUS_NOT_SUPPORTED = 3000,
    CUDNN_STATUS_HOST_ALLOCATION_FAILED = 4003,
    CUDNN_STATUS_EXECUTION_FAILED_CUDART = 5003,
} dnn_status;

/* cudnnDataType_t */
enum {
    CUDNN_DATA_FLOAT = 0,
    CUDNN_DATA_DOUBLE = 1,
    CUDNN_DATA_HALF = 2,
    CUDNN_DATA_INT8 = 3,
    CUDNN_DATA_INT32 = 4,
    CUDNN_DATA_INT8x4 = 5,
    CUDNN_DATA_UINT8 = 6,
    CUDNN_DATA_UINT8x4 = 7,
    CUDNN_DATA_INT8x32 = 8,
    CUDNN_DATA_BFLOAT16 = 9,
    CUDNN_DATA_INT64 = 10,
    CUDNN_DATA_BOOLEAN = 11,
    CUDNN_DATA_FP8_E4M3 = 12,
    CUDNN_DATA_FP8_E5M2 = 13,
    CUDNN_DATA_FAST_FLOAT_FOR_FP8 = 14,
    CUDNN_DATA_FP8_E8M0 = 15,
    CUDNN_DATA_FP4_E2M1 = 16,
    CUDNN_DATA_INT4 = 17,
    CUDNN_DATA_UINT4 = 18,
    CUDNN_DATA_UINT32 = 19,
    CUDNN_DATA_COMPLEX_FP32 = 20,
    CUDNN_DATA_COMPLEX_FP64 = 21,
    CUDNN_DATA_BYTE_BOOLEAN = 22,
    CUDNN_DATA_FP8_E5M3 = 23,
};

/* cudnnMathType_t */
enum { CUDNN_DEFAULT_MATH = 0, CUDNN_TENSOR_OP_MATH = 1, CUDNN_FMA_MATH = 3 };

enum { DNN_MAX_DIMS = 8 };

typedef struct {
    void *stream;
} dnn_handle;

typedef struct {
    int type; /* cudnnDataType_t */
    int rank;
    int64_t dims[DNN_MAX_DIMS];
    int64_t strides[DNN_MAX_DIMS]; /* in elements */
} dnn_tensor;

/* ---- cudnn.c ---- */

/* Keeps a message for cudnnGetLastErrorString() and returns `status`. */
dnn_status dnn_fail(dnn_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- cudnn_tensor.c ---- */

/* The name a signature uses ("bf16"), or NULL for a number that is no data type. */
const char *dnn_type_name(int type);
/* Bytes that `elements` elements take; 0 for a number that is no data type. */
int64_t dnn_type_bytes(int type, int64_t elements);
int64_t dnn_tensor_elements(const dnn_tensor *tensor);
int64_t dnn_tensor_bytes(const dnn_tensor *tensor);
/* Whether the channels (dimension 1) lie next to each other in memory, as in NHWC. */
bool dnn_tensor_channels_last(const dnn_tensor *tensor);
/* The precision of a convolution or matmul with operands of `type`: "tf32" for fp32 on tensor cores, otherwise the name
 * of the type. */
const char *dnn_math_name(int type, bool tensor_cores);
/* Whether tensor cores of the virtual GPU multiply operands of `type` (fp32: as TF32). */
bool dnn_device_has_tensor_cores_for(int type);

/* ---- cudnn_text.c: a growing text, for signatures ---- */

typedef struct {
    char *data;
    size_t length, capacity;
    bool failed; /* out of memory: the text is not complete */
} dnn_text;

void dnn_text_append(dnn_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void dnn_text_list(dnn_text *text, const char *key, const int64_t *values, int64_t count); /* ,"key":[1,2] */
void dnn_text_list32(dnn_text *text, const char *key, const int *values, int64_t count);
void dnn_text_tensor(dnn_text *text, const char *key, const dnn_tensor *tensor); /* ,"key":{...} */

/* Submits the call that `text` describes to the handle's stream; frees the text. */
dnn_status dnn_record(dnn_handle *handle, dnn_text *text);
/* Submits a call whose signature is already interned. */
dnn_status dnn_record_number(dnn_handle *handle, uint32_t signature);
