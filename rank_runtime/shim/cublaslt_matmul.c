/* cuBLASLt's matmul, D = epilogue(scale(A B + beta C)), and the search for an algorithm.
 *
 * In: descriptors. Out: one record with everything that decides how long the matmul takes: shape, layouts, types,
 * epilogue, scaling of fp8 and fp4 operands, whether C is read. There is one algorithm; it fits every matmul that the
 * device supports. Unsupported matmuls are refused with the real library's status.
 */
#include "cublaslt_descriptors.h"

#include <stdio.h>

typedef struct {
    const char *transa, *transb;
    const char *a_type, *b_type, *c_type, *d_type, *compute, *scale_type, *epilogue;
    uint64_t m, n, k;
} problem;

static const char *epilogue_name(uint32_t epilogue) {
    enum { RELU = 2, BIAS = 4, DRELU = 8, BGRAD = 16, GELU = 32, DGELU = 64, AUX = 128 };
    switch (epilogue) {
        case 1: return "none";
        case RELU: return "relu";
        case RELU | AUX: return "relu_aux";
        case BIAS: return "bias";
        case RELU | BIAS: return "relu_bias";
        case RELU | AUX | BIAS: return "relu_aux_bias";
        case DRELU | AUX: return "drelu";
        case DRELU | AUX | BGRAD: return "drelu_bgrad";
        case GELU: return "gelu";
        case GELU | AUX: return "gelu_aux";
        case GELU | BIAS: return "gelu_bias";
        case GELU | AUX | BIAS: return "gelu_aux_bias";
        case DGELU | AUX: return "dgelu";
        case DGELU | AUX | BGRAD: return "dgelu_bgrad";
        case 256: return "bgrada";
        case 512: return "bgradb";
        default: return NULL;
    }
}

enum { SCALE_VEC16_UE4M3 = 1, SCALE_VEC32_UE8M0 = 2 };

static const char *scale_mode_name(int mode) {
    switch (mode) {
        case 0: return "tensor";
        case SCALE_VEC16_UE4M3: return "vec16_ue4m3";
        case SCALE_VEC32_UE8M0: return "vec32_ue8m0";
        case 3: return "outer_vec";
        case 4: return "vec128";
        case 5: return "block128x128";
        case 6: return "batch";
        case 12: return "vec128_mn_k4_ue8m0";
        case 13: return "vec32_mn_k4_ue8m0";
        default: return NULL;
    }
}

/* ---- capabilities of the device ---- */

static bool is_narrow_float(uint32_t type) { return data_type_bits((int)type) <= 8 && type != TYPE_INT8 && type != TYPE_UINT8; }

static bool device_at_least(int major, int minor) {
    const maya_device_properties *device = &maya_get_settings()->device;
    return device->compute_major > major || (device->compute_major == major && device->compute_minor >= minor);
}

/* fp8 needs compute capability 8.9, and before 10.0 a transposed A and an untransposed B; fp4 and block scales need 10.0. */
static bool device_can(const matmul_descriptor *d, const matrix_layout *a, const matrix_layout *b) {
    if (!is_narrow_float(a->type) && !is_narrow_float(b->type)) return true;
    bool blocks = d->a_scale_mode == SCALE_VEC16_UE4M3 || d->a_scale_mode == SCALE_VEC32_UE8M0 ||
                  data_type_bits((int)a->type) < 8 || data_type_bits((int)b->type) < 8;
    if (device_at_least(10, 0)) return true;
    return !blocks && device_at_least(8, 9) && d->transa == OPERATION_TRANSPOSE && d->transb == OPERATION_NONE;
}

/* ---- reading the descriptors ---- */

static bool leading_is_valid(const matrix_layout *layout) {
    if (layout->order != ORDER_COLUMN && layout->order != ORDER_ROW) return true;
    uint64_t run = layout->order == ORDER_COLUMN ? layout->rows : layout->columns;
    return layout->leading >= 0 && (uint64_t)layout->leading >= run;
}

/* Fills in `p` and returns LT_SUCCESS, or returns the status with which the matmul is refused. */
static int describe(const matmul_descriptor *d, const matrix_layout *a, const matrix_layout *b, const matrix_layout *c,
                    const matrix_layout *out, problem *p) {
    if (d == NULL || a == NULL || b == NULL || c == NULL || out == NULL) return LT_INVALID_VALUE;
    p->transa = operation_name(d->transa);
    p->transb = operation_name(d->transb);
    if (p->transa == NULL || p->transb == NULL || d->transc != OPERATION_NONE) return LT_INVALID_VALUE;
    bool a_plain = d->transa == OPERATION_NONE, b_plain = d->transb == OPERATION_NONE;
    p->m = a_plain ? a->rows : a->columns;
    p->k = a_plain ? a->columns : a->rows;
    p->n = b_plain ? b->columns : b->rows;
    if ((b_plain ? b->rows : b->columns) != p->k || out->rows != p->m || out->columns != p->n || c->rows != p->m ||
        c->columns != p->n || !leading_is_valid(a) || !leading_is_valid(b) || !leading_is_valid(c) || !leading_is_valid(out) ||
        a->batch != out->batch || b->batch != out->batch || c->batch != out->batch || out->batch < 1)
        return LT_INVALID_VALUE;
    p->a_type = data_type_name((int)a->type);
    p->b_type = data_type_name((int)b->type);
    p->c_type = data_type_name((int)c->type);
    p->d_type = data_type_name((int)out->type);
    p->compute = compute_type_name(d->compute);
    p->scale_type = data_type_name(d->scale_type);
    if (p->a_type == NULL || p->b_type == NULL || p->c_type == NULL || p->d_type == NULL || p->compute == NULL ||
        p->scale_type == NULL || (d->bias_type >= 0 && data_type_name(d->bias_type) == NULL) || !device_can(d, a, b))
        return LT_NOT_SUPPORTED;
    if (out->batch_mode > BATCH_POINTERS) {
        maya_unsupported_detail("cublasLtMatmul", "batch mode %u", out->batch_mode);
        return LT_NOT_SUPPORTED;
    }
    p->epilogue = epilogue_name(d->epilogue);
    if (p->epilogue == NULL) {
        maya_unsupported_detail("cublasLtMatmul", "epilogue %u", d->epilogue);
        return LT_NOT_SUPPORTED;
    }
    if (scale_mode_name(d->a_scale_mode) == NULL || scale_mode_name(d->b_scale_mode) == NULL ||
        scale_mode_name(d->d_scale_mode) == NULL || scale_mode_name(d->d_out_scale_mode) == NULL) {
        maya_unsupported_detail("cublasLtMatmul", "scale modes %d, %d, %d, %d", d->a_scale_mode, d->b_scale_mode,
                                d->d_scale_mode, d->d_out_scale_mode);
        return LT_NOT_SUPPORTED;
    }
    return LT_SUCCESS;
}

/* ---- the algorithm ---- */

/* Workspace for partial sums when k is split. An estimate: one fp32 copy of D, within the program's limit. */
static size_t workspace_estimate(const problem *p, const matrix_layout *out, size_t limit) {
    size_t bytes = (size_t)p->m * (size_t)p->n * (size_t)out->batch * sizeof(float);
    return bytes < limit ? bytes : limit;
}

/* The number of waves of 128 x 128 tiles. */
static float wave_estimate(const problem *p, const matrix_layout *out) {
    uint64_t tiles = (p->m + 127) / 128 * ((p->n + 127) / 128) * (uint64_t)out->batch;
    int sms = maya_get_settings()->device.sm_count;
    return (float)tiles / (float)(sms > 0 ? sms : 1);
}

static const matmul_algorithm the_algorithm = {.mark = ALGORITHM_MARK, .id = 66, .tile = 20, .stages = 4, .split_k = 1};

MAYA_API int cublasLtMatmulAlgoGetHeuristic(void *handle, const matmul_descriptor *descriptor, const matrix_layout *a,
                                            const matrix_layout *b, const matrix_layout *c, const matrix_layout *d,
                                            const matmul_preference *preference, int requested, heuristic_result *results,
                                            int *found) {
    if (handle == NULL) return LT_NOT_INITIALIZED;
    if (preference == NULL || requested < 1 || results == NULL || found == NULL) return LT_INVALID_VALUE;
    *found = 0;
    problem p;
    int status = describe(descriptor, a, b, c, d, &p);
    if (status != LT_SUCCESS) return status;
    results[0] = (heuristic_result){.algorithm = the_algorithm,
                                    .workspace_bytes = workspace_estimate(&p, d, preference->workspace_bytes),
                                    .state = LT_SUCCESS,
                                    .waves = wave_estimate(&p, d)};
    *found = 1;
    return LT_SUCCESS;
}

MAYA_API int cublasLtMatmulAlgoGetIds(void *handle, int compute, int scale_type, int a_type, int b_type, int c_type, int d_type,
                                      int requested, int *ids, int *found) {
    if (handle == NULL) return LT_NOT_INITIALIZED;
    if (requested < 1 || ids == NULL || found == NULL) return LT_INVALID_VALUE;
    ids[0] = the_algorithm.id;
    *found = 1;
    return LT_SUCCESS;
}

/* Accepts any id, because a tuning file made on a real device names algorithms that only the real library has. */
MAYA_API int cublasLtMatmulAlgoInit(void *handle, int compute, int scale_type, int a_type, int b_type, int c_type, int d_type,
                                    int id, matmul_algorithm *algorithm) {
    if (handle == NULL) return LT_NOT_INITIALIZED;
    if (algorithm == NULL || id < 0) return LT_INVALID_VALUE;
    *algorithm = the_algorithm;
    algorithm->id = id;
    return LT_SUCCESS;
}

MAYA_API int cublasLtMatmulAlgoCheck(void *handle, const matmul_descriptor *descriptor, const matrix_layout *a,
                                     const matrix_layout *b, const matrix_layout *c, const matrix_layout *d,
                                     const matmul_algorithm *algorithm, heuristic_result *result) {
    if (handle == NULL) return LT_NOT_INITIALIZED;
    if (algorithm == NULL || algorithm->mark != ALGORITHM_MARK || result == NULL) return LT_INVALID_VALUE;
    problem p;
    int status = describe(descriptor, a, b, c, d, &p);
    if (status != LT_SUCCESS) return status;
    *result = (heuristic_result){.algorithm = *algorithm, .state = LT_SUCCESS, .waves = wave_estimate(&p, d)};
    return LT_SUCCESS;
}

/* ---- the matmul ---- */

/* The value of a beta in device memory is unknown at the call, so C counts as read. */
static bool reads_c(const matmul_descriptor *d, const void *beta) {
    static const char zero[16];
    switch (d->pointer_mode) {
        case LT_POINTER_ALPHA_VECTOR_BETA_ZERO: return false;
        case LT_POINTER_HOST:
        case LT_POINTER_ALPHA_VECTOR_BETA_HOST:
            return beta != NULL && memcmp(beta, zero, (size_t)data_type_bits(d->scale_type) / 8) != 0;
        default: return true;
    }
}

static const char *scale_name(const void *scale, int mode) { return scale == NULL ? "none" : scale_mode_name(mode); }

MAYA_API int cublasLtMatmul(void *handle, const matmul_descriptor *descriptor, const void *alpha, const void *a_data,
                            const matrix_layout *a, const void *b_data, const matrix_layout *b, const void *beta,
                            const void *c_data, const matrix_layout *c, void *d_data, const matrix_layout *d,
                            const matmul_algorithm *algorithm, void *workspace, size_t workspace_bytes, void *stream) {
    if (handle == NULL) return LT_NOT_INITIALIZED;
    problem p;
    int status = describe(descriptor, a, b, c, d, &p);
    if (status != LT_SUCCESS) return status;
    if (alpha == NULL || (algorithm != NULL && algorithm->mark != ALGORITHM_MARK)) return LT_INVALID_VALUE;
    if (p.m == 0 || p.n == 0) return LT_SUCCESS;

    /* Optional parts of the signature are left out where they have the default. */
    char strides[128] = "", bias[48] = "", scales[224] = "", order[64] = "", sm_count[32] = "";
    if (d->batch > 1 && d->batch_mode == BATCH_STRIDED)
        snprintf(strides, sizeof strides, ",\"stridea\":%lld,\"strideb\":%lld,\"stridec\":%lld,\"strided\":%lld",
                 (long long)a->stride, (long long)b->stride, (long long)c->stride, (long long)d->stride);
    if (descriptor->bias != NULL)
        snprintf(bias, sizeof bias, ",\"bias_type\":\"%s\"",
                 descriptor->bias_type < 0 ? p.d_type : data_type_name(descriptor->bias_type));
    if (is_narrow_float(a->type) || is_narrow_float(b->type) || is_narrow_float(d->type))
        snprintf(scales, sizeof scales,
                 ",\"a_scale\":\"%s\",\"b_scale\":\"%s\",\"d_scale\":\"%s\",\"d_out_scale\":\"%s\","
                 "\"fast_accumulation\":%s,\"amax\":%s",
                 scale_name(descriptor->a_scale, descriptor->a_scale_mode),
                 scale_name(descriptor->b_scale, descriptor->b_scale_mode),
                 scale_name(descriptor->d_scale, descriptor->d_scale_mode),
                 scale_name(descriptor->d_out_scale, descriptor->d_out_scale_mode),
                 descriptor->fast_accumulation ? "true" : "false", descriptor->amax != NULL ? "true" : "false");
    if (a->order != ORDER_COLUMN || b->order != ORDER_COLUMN || d->order != ORDER_COLUMN)
        snprintf(order, sizeof order, ",\"order\":[%d,%d,%d,%d]", a->order, b->order, c->order, d->order);
    if (descriptor->sm_count_target != 0) snprintf(sm_count, sizeof sm_count, ",\"sm_count\":%d", descriptor->sm_count_target);

    int error =
        maya_library_call(stream,
                          "{\"call\":\"cublasLtMatmul\",\"m\":%llu,\"n\":%llu,\"k\":%llu,\"batch\":%d,\"transa\":\"%s\","
                          "\"transb\":\"%s\",\"lda\":%lld,\"ldb\":%lld,\"ldc\":%lld,\"ldd\":%lld%s,\"a_type\":\"%s\","
                          "\"b_type\":\"%s\",\"c_type\":\"%s\",\"d_type\":\"%s\",\"compute\":\"%s\",\"scale_type\":\"%s\","
                          "\"accumulate\":%s,\"epilogue\":\"%s\"%s%s%s%s}",
                          (unsigned long long)p.m, (unsigned long long)p.n, (unsigned long long)p.k, d->batch, p.transa,
                          p.transb, (long long)a->leading, (long long)b->leading, (long long)c->leading, (long long)d->leading,
                          strides, p.a_type, p.b_type, p.c_type, p.d_type, p.compute, p.scale_type,
                          reads_c(descriptor, beta) ? "true" : "false", p.epilogue, bias, scales, order, sm_count);
    return error == 0 ? LT_SUCCESS : LT_EXECUTION_FAILED;
}
