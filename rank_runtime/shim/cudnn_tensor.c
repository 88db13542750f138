/* Facts about data types and tensors, for both of cuDNN's interfaces. */
#include "cudnn_common.h"

static const struct {
    const char *name;
    int bits;
} data_types[] = {
    [CUDNN_DATA_FLOAT] = {"fp32", 32},
    [CUDNN_DATA_DOUBLE] = {"fp64", 64},
    [CUDNN_DATA_HALF] = {"fp16", 16},
    [CUDNN_DATA_INT8] = {"int8", 8},
    [CUDNN_DATA_INT32] = {"int32", 32},
    [CUDNN_DATA_INT8x4] = {"int8x4", 32},
    [CUDNN_DATA_UINT8] = {"uint8", 8},
    [CUDNN_DATA_UINT8x4] = {"uint8x4", 32},
    [CUDNN_DATA_INT8x32] = {"int8x32", 256},
    [CUDNN_DATA_BFLOAT16] = {"bf16", 16},
    [CUDNN_DATA_INT64] = {"int64", 64},
    [CUDNN_DATA_BOOLEAN] = {"bool", 1},
    [CUDNN_DATA_FP8_E4M3] = {"fp8_e4m3", 8},
    [CUDNN_DATA_FP8_E5M2] = {"fp8_e5m2", 8},
    [CUDNN_DATA_FAST_FLOAT_FOR_FP8] = {"fast_fp32", 32},
    [CUDNN_DATA_FP8_E8M0] = {"fp8_e8m0", 8},
    [CUDNN_DATA_FP4_E2M1] = {"fp4_e2m1", 4},
    [CUDNN_DATA_INT4] = {"int4", 4},
    [CUDNN_DATA_UINT4] = {"uint4", 4},
    [CUDNN_DATA_UINT32] = {"uint32", 32},
    [CUDNN_DATA_COMPLEX_FP32] = {"complex64", 64},
    [CUDNN_DATA_COMPLEX_FP64] = {"complex128", 128},
    [CUDNN_DATA_BYTE_BOOLEAN] = {"byte_bool", 8},
    [CUDNN_DATA_FP8_E5M3] = {"fp8_e5m3", 8},
};

static bool is_data_type(int type) { return type >= 0 && (size_t)type < sizeof data_types / sizeof *data_types; }

const char *dnn_type_name(int type) { return is_data_type(type) ? data_types[type].name : NULL; }

int64_t dnn_type_bytes(int type, int64_t elements) {
    return is_data_type(type) ? (data_types[type].bits * elements + 7) / 8 : 0;
}

int64_t dnn_tensor_elements(const dnn_tensor *tensor) {
    int64_t elements = 1;
    for (int index = 0; index < tensor->rank; index++) elements *= tensor->dims[index];
    return elements;
}

int64_t dnn_tensor_bytes(const dnn_tensor *tensor) { return dnn_type_bytes(tensor->type, dnn_tensor_elements(tensor)); }

bool dnn_tensor_channels_last(const dnn_tensor *tensor) {
    return tensor->rank >= 3 && tensor->strides[1] == 1 && tensor->dims[1] > 1;
}

const char *dnn_math_name(int type, bool tensor_cores) {
    return type == CUDNN_DATA_FLOAT && tensor_cores ? "tf32" : dnn_type_name(type);
}

bool dnn_device_has_tensor_cores_for(int type) {
    const maya_device_properties *device = &maya_get_settings()->device;
    int capability = device->compute_major * 10 + device->compute_minor;
    switch (type) {
        case CUDNN_DATA_HALF: return capability >= 70;
        case CUDNN_DATA_INT8:
        case CUDNN_DATA_UINT8: return capability >= 72;
        case CUDNN_DATA_FLOAT:
        case CUDNN_DATA_BFLOAT16: return capability >= 80;
        case CUDNN_DATA_FP8_E4M3:
        case CUDNN_DATA_FP8_E5M2: return capability >= 89;
        case CUDNN_DATA_FP4_E2M1: return capability >= 100;
        default: return false;
    }
}
