/* Enumerations that CUDA's math libraries share: data types, compute types, operations.
 *
 * cuBLAS, cuBLASLt, cuSOLVER, cuSPARSE, cuSPARSELt and cuFFT use the same numbers for these. The functions here return
 * the name that signatures in a trace use ("bf16", "tf32", "T"), or NULL for an unknown number, for which the caller
 * returns "invalid value".
 */
#pragma once

#include "device/cuda_errors.h"
#include "device/device.h"

#include <stdlib.h>
#include <string.h>

/* Functions have the parameters of the emulated library, but most calls need only the shapes. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#ifndef MAYA_CUDA_VERSION
#define MAYA_CUDA_VERSION 13000
#endif

/* The version a library reports: the toolkit's major and minor number. The patch level differs from release to release
 * and is left at 0. */
enum {
    TOOLKIT_MAJOR = MAYA_CUDA_VERSION / 1000,
    TOOLKIT_MINOR = MAYA_CUDA_VERSION % 1000 / 10,
};

/* cudaDataType */
enum {
    TYPE_FP32 = 0,
    TYPE_FP64 = 1,
    TYPE_FP16 = 2,
    TYPE_INT8 = 3,
    TYPE_COMPLEX64 = 4,
    TYPE_COMPLEX128 = 5,
    TYPE_COMPLEX32 = 6,
    TYPE_UINT8 = 8,
    TYPE_INT32 = 10,
    TYPE_BF16 = 14,
    TYPE_COMPLEX_BF16 = 15,
    TYPE_INT64 = 24,
    TYPE_FP8_E4M3 = 28,
    TYPE_FP8_E5M2 = 29,
    TYPE_FP8_E8M0 = 30,
    TYPE_FP6_E2M3 = 31,
    TYPE_FP6_E3M2 = 32,
    TYPE_FP4_E2M1 = 33,
};

static inline const char *data_type_name(int type) {
    switch (type) {
        case TYPE_FP32: return "fp32";
        case TYPE_FP64: return "fp64";
        case TYPE_FP16: return "fp16";
        case TYPE_INT8: return "int8";
        case TYPE_COMPLEX64: return "complex64";
        case TYPE_COMPLEX128: return "complex128";
        case TYPE_COMPLEX32: return "complex32";
        case TYPE_UINT8: return "uint8";
        case TYPE_INT32: return "int32";
        case TYPE_BF16: return "bf16";
        case TYPE_COMPLEX_BF16: return "complex_bf16";
        case TYPE_INT64: return "int64";
        case TYPE_FP8_E4M3: return "fp8_e4m3";
        case TYPE_FP8_E5M2: return "fp8_e5m2";
        case TYPE_FP8_E8M0: return "fp8_e8m0";
        case TYPE_FP6_E2M3: return "fp6_e2m3";
        case TYPE_FP6_E3M2: return "fp6_e3m2";
        case TYPE_FP4_E2M1: return "fp4_e2m1";
        default: return NULL;
    }
}

/* The size in bits, because four-bit types exist; 0 for an unknown type. */
static inline int data_type_bits(int type) {
    switch (type) {
        case TYPE_FP4_E2M1: return 4;
        case TYPE_FP6_E2M3:
        case TYPE_FP6_E3M2: return 6;
        case TYPE_INT8:
        case TYPE_UINT8:
        case TYPE_FP8_E4M3:
        case TYPE_FP8_E5M2:
        case TYPE_FP8_E8M0: return 8;
        case TYPE_FP16:
        case TYPE_BF16: return 16;
        case TYPE_FP32:
        case TYPE_INT32:
        case TYPE_COMPLEX32:
        case TYPE_COMPLEX_BF16: return 32;
        case TYPE_FP64:
        case TYPE_INT64:
        case TYPE_COMPLEX64: return 64;
        case TYPE_COMPLEX128: return 128;
        default: return 0;
    }
}

static inline bool data_type_is_complex(int type) {
    return type == TYPE_COMPLEX64 || type == TYPE_COMPLEX128 || type == TYPE_COMPLEX32 || type == TYPE_COMPLEX_BF16;
}

/* cublasComputeType_t */
enum {
    COMPUTE_FP16 = 64,
    COMPUTE_FP16_PEDANTIC = 65,
    COMPUTE_FP32 = 68,
    COMPUTE_FP32_PEDANTIC = 69,
    COMPUTE_FP64 = 70,
    COMPUTE_FP64_PEDANTIC = 71,
    COMPUTE_INT32 = 72,
    COMPUTE_INT32_PEDANTIC = 73,
    COMPUTE_FP32_FAST_FP16 = 74,
    COMPUTE_FP32_FAST_BF16 = 75,
    COMPUTE_FP32_FAST_TF32 = 77,
    COMPUTE_FP32_EMULATED_BF16X9 = 78,
    COMPUTE_FP64_EMULATED = 79,
};

/* TF32 exists since compute capability 8.0; on older devices the same request runs in fp32. */
static inline bool device_has_tf32(void) { return maya_get_settings()->device.compute_major >= 8; }

static inline const char *compute_type_name(int compute) {
    switch (compute) {
        case COMPUTE_FP16: return "fp16";
        case COMPUTE_FP16_PEDANTIC: return "fp16_pedantic";
        case COMPUTE_FP32: return "fp32";
        case COMPUTE_FP32_PEDANTIC: return "fp32_pedantic";
        case COMPUTE_FP64: return "fp64";
        case COMPUTE_FP64_PEDANTIC: return "fp64_pedantic";
        case COMPUTE_INT32: return "int32";
        case COMPUTE_INT32_PEDANTIC: return "int32_pedantic";
        case COMPUTE_FP32_FAST_FP16: return "fp32_fast_fp16";
        case COMPUTE_FP32_FAST_BF16: return "fp32_fast_bf16";
        case COMPUTE_FP32_FAST_TF32: return device_has_tf32() ? "tf32" : "fp32";
        case COMPUTE_FP32_EMULATED_BF16X9: return "fp32_emulated_bf16x9";
        case COMPUTE_FP64_EMULATED: return "fp64_emulated";
        default: return NULL;
    }
}

/* cublasOperation_t, cusparseOperation_t */
enum { OPERATION_NONE = 0, OPERATION_TRANSPOSE = 1, OPERATION_CONJUGATE_TRANSPOSE = 2 };

static inline const char *operation_name(int operation) {
    switch (operation) {
        case OPERATION_NONE: return "N";
        case OPERATION_TRANSPOSE: return "T";
        case OPERATION_CONJUGATE_TRANSPOSE: return "C";
        default: return NULL;
    }
}

/* cublasFillMode_t, cusparseFillMode_t */
static inline const char *fill_name(int fill) { return fill == 0 ? "L" : fill == 1 ? "U" : NULL; }

/* cublasSideMode_t */
static inline const char *side_name(int side) { return side == 0 ? "L" : side == 1 ? "R" : NULL; }

/* cublasDiagType_t, cusparseDiagType_t: non-unit or unit diagonal */
static inline const char *diagonal_name(int diagonal) { return diagonal == 0 ? "N" : diagonal == 1 ? "U" : NULL; }

/* The typed functions of these libraries (cublasSgemm, ...) come in up to four variants that differ in the element type
 * only. */
#define REAL_TYPES(DEFINE) DEFINE(S, "fp32") DEFINE(D, "fp64")
#define COMPLEX_TYPES(DEFINE) DEFINE(C, "complex64") DEFINE(Z, "complex128")
#define ALL_TYPES(DEFINE) REAL_TYPES(DEFINE) COMPLEX_TYPES(DEFINE)

/* libraryPropertyType: major, minor, patch. */
static inline bool library_property(int property, int major, int minor, int *value) {
    if (value == NULL || property < 0 || property > 2) return false;
    *value = property == 0 ? major : property == 1 ? minor : 0;
    return true;
}

/* ---- info words, which tell the program whether a factorisation succeeded ---- */

typedef struct {
    int *info;
    size_t bytes;
} info_words;

static inline void write_success(void *argument) {
    const info_words *words = argument;
    memset(words->info, 0, words->bytes);
    maya_values_known(words->info, words->bytes);
}

/* Writes 0 (success) to `count` info words in device memory, in stream order. 0 or a cudaError_t. */
static inline int info_success(void *stream, int *info, int64_t count) {
    if (info == NULL || count <= 0) return CUDA_OK;
    info_words *words = malloc(sizeof *words);
    if (words == NULL) return CUDA_OUT_OF_MEMORY;
    *words = (info_words){info, (size_t)count * sizeof(int)};
    return maya_submit(
        stream, &(maya_command){
                    .run = write_success, .release = free, .argument = words, .kind = MAYA_RECORD_LIBRARY, .unrecorded = true});
}
