/* cuBLASLt: handles, descriptors and their attributes. The matmul itself is in cublaslt_matmul.c.
 *
 * In: the attributes that a program sets. Out: descriptors that hold them, in the layout of cublaslt_descriptors.h. A
 * handle has no state: torch passes a cuBLAS handle as a cuBLASLt handle, which is allowed.
 *
 * Not emulated: matrix transforms, grouped layouts, capabilities of algorithms.
 */
#include "cublaslt_descriptors.h"

MAYA_API int cublasLtCreate(void **handle) {
    if (handle == NULL) return LT_INVALID_VALUE;
    *handle = malloc(1);
    return *handle == NULL ? LT_ALLOC_FAILED : LT_SUCCESS;
}

MAYA_API int cublasLtDestroy(void *handle) {
    if (handle == NULL) return LT_NOT_INITIALIZED;
    free(handle);
    return LT_SUCCESS;
}

MAYA_API size_t cublasLtGetVersion(void) { return TOOLKIT_MAJOR * 10000 + TOOLKIT_MINOR * 100; }

MAYA_API size_t cublasLtGetCudartVersion(void) { return MAYA_CUDA_VERSION; }

MAYA_API int cublasLtGetProperty(int property, int *value) {
    return library_property(property, TOOLKIT_MAJOR, TOOLKIT_MINOR, value) ? LT_SUCCESS : LT_INVALID_VALUE;
}

/* ---- descriptors in general: allocated by the library, or in the program's memory ---- */

static int create_descriptor(void **descriptor, const void *initial, size_t bytes) {
    if (descriptor == NULL) return LT_INVALID_VALUE;
    void *created = malloc(bytes);
    if (created == NULL) return LT_ALLOC_FAILED;
    *descriptor = memcpy(created, initial, bytes);
    return LT_SUCCESS;
}

static int initialise_descriptor(void *descriptor, size_t room, const void *initial, size_t bytes) {
    if (descriptor == NULL) return LT_INVALID_VALUE;
    if (room < bytes) return LT_ALLOC_FAILED;
    memcpy(descriptor, initial, bytes);
    return LT_SUCCESS;
}

static int destroy_descriptor(void *descriptor) {
    free(descriptor);
    return LT_SUCCESS;
}

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* The getter and setter of one kind of descriptor. */
#define ATTRIBUTE_FUNCTIONS(kind, structure, fields) \
    MAYA_API int kind##SetAttribute(structure *object, int attribute, const void *value, size_t bytes) { \
        return set_attribute(object, find_attribute(fields, COUNT(fields), attribute), value, bytes) ? LT_SUCCESS \
                                                                                                     : LT_INVALID_VALUE; \
    } \
    MAYA_API int kind##GetAttribute(const structure *object, int attribute, void *value, size_t bytes, size_t *written) { \
        return get_attribute(object, find_attribute(fields, COUNT(fields), attribute), value, bytes, written) \
                   ? LT_SUCCESS \
                   : LT_INVALID_VALUE; \
    }

/* ---- layout of a matrix ---- */

static const attribute_field layout_fields[] = {
    ATTRIBUTE(0, matrix_layout, type),    ATTRIBUTE(1, matrix_layout, order),        ATTRIBUTE(2, matrix_layout, rows),
    ATTRIBUTE(3, matrix_layout, columns), ATTRIBUTE(4, matrix_layout, leading),      ATTRIBUTE(5, matrix_layout, batch),
    ATTRIBUTE(6, matrix_layout, stride),  ATTRIBUTE(7, matrix_layout, plane_offset), ATTRIBUTE(8, matrix_layout, batch_mode),
};
ATTRIBUTE_FUNCTIONS(cublasLtMatrixLayout, matrix_layout, layout_fields)

static matrix_layout new_layout(int type, uint64_t rows, uint64_t columns, int64_t leading) {
    return (matrix_layout){.type = (uint32_t)type, .rows = rows, .columns = columns, .leading = leading, .batch = 1};
}

MAYA_API int cublasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    matrix_layout initial = new_layout(type, rows, columns, leading);
    return create_descriptor(layout, &initial, sizeof initial);
}

MAYA_API int cublasLtMatrixLayoutInit_internal(matrix_layout *layout, size_t room, int type, uint64_t rows, uint64_t columns,
                                               int64_t leading) {
    matrix_layout initial = new_layout(type, rows, columns, leading);
    return initialise_descriptor(layout, room, &initial, sizeof initial);
}

MAYA_API int cublasLtMatrixLayoutDestroy(matrix_layout *layout) { return destroy_descriptor(layout); }

/* ---- the matmul descriptor ---- */

static const attribute_field matmul_fields[] = {
    ATTRIBUTE(0, matmul_descriptor, compute),
    ATTRIBUTE(1, matmul_descriptor, scale_type),
    ATTRIBUTE(2, matmul_descriptor, pointer_mode),
    ATTRIBUTE(3, matmul_descriptor, transa),
    ATTRIBUTE(4, matmul_descriptor, transb),
    ATTRIBUTE(5, matmul_descriptor, transc),
    ATTRIBUTE(6, matmul_descriptor, fill),
    ATTRIBUTE(7, matmul_descriptor, epilogue),
    ATTRIBUTE(8, matmul_descriptor, bias),
    ATTRIBUTE(10, matmul_descriptor, bias_stride),
    ATTRIBUTE(11, matmul_descriptor, auxiliary),
    ATTRIBUTE(12, matmul_descriptor, auxiliary_leading),
    ATTRIBUTE(13, matmul_descriptor, auxiliary_stride),
    ATTRIBUTE(14, matmul_descriptor, alpha_vector_stride),
    ATTRIBUTE(15, matmul_descriptor, sm_count_target),
    ATTRIBUTE(17, matmul_descriptor, a_scale),
    ATTRIBUTE(18, matmul_descriptor, b_scale),
    ATTRIBUTE(19, matmul_descriptor, c_scale),
    ATTRIBUTE(20, matmul_descriptor, d_scale),
    ATTRIBUTE(21, matmul_descriptor, amax),
    ATTRIBUTE(22, matmul_descriptor, auxiliary_type),
    ATTRIBUTE(23, matmul_descriptor, auxiliary_scale),
    ATTRIBUTE(24, matmul_descriptor, auxiliary_amax),
    ATTRIBUTE(25, matmul_descriptor, fast_accumulation),
    ATTRIBUTE(26, matmul_descriptor, bias_type),
    ATTRIBUTE(31, matmul_descriptor, a_scale_mode),
    ATTRIBUTE(32, matmul_descriptor, b_scale_mode),
    ATTRIBUTE(33, matmul_descriptor, c_scale_mode),
    ATTRIBUTE(34, matmul_descriptor, d_scale_mode),
    ATTRIBUTE(35, matmul_descriptor, auxiliary_scale_mode),
    ATTRIBUTE(36, matmul_descriptor, d_out_scale),
    ATTRIBUTE(37, matmul_descriptor, d_out_scale_mode),
    ATTRIBUTE(38, matmul_descriptor, emulation),
    ATTRIBUTE(39, matmul_descriptor, alpha_stride),
    ATTRIBUTE(40, matmul_descriptor, beta_stride),
    ATTRIBUTE(41, matmul_descriptor, batch_invariance),
};
ATTRIBUTE_FUNCTIONS(cublasLtMatmulDesc, matmul_descriptor, matmul_fields)

static matmul_descriptor new_matmul(int compute, int scale_type) {
    return (matmul_descriptor){.compute = compute,
                               .scale_type = scale_type,
                               .fill = 2 /* the whole matrix */,
                               .epilogue = 1 /* none */,
                               .auxiliary_type = -1,
                               .bias_type = -1};
}

MAYA_API int cublasLtMatmulDescCreate(void **descriptor, int compute, int scale_type) {
    matmul_descriptor initial = new_matmul(compute, scale_type);
    return create_descriptor(descriptor, &initial, sizeof initial);
}

MAYA_API int cublasLtMatmulDescInit_internal(matmul_descriptor *descriptor, size_t room, int compute, int scale_type) {
    matmul_descriptor initial = new_matmul(compute, scale_type);
    return initialise_descriptor(descriptor, room, &initial, sizeof initial);
}

MAYA_API int cublasLtMatmulDescDestroy(matmul_descriptor *descriptor) { return destroy_descriptor(descriptor); }

/* ---- preferences for the algorithm search ---- */

static const attribute_field preference_fields[] = {
    ATTRIBUTE(0, matmul_preference, search_mode),          ATTRIBUTE(1, matmul_preference, workspace_bytes),
    ATTRIBUTE(3, matmul_preference, reduction_mask),       ATTRIBUTE(5, matmul_preference, alignment_a),
    ATTRIBUTE(6, matmul_preference, alignment_b),          ATTRIBUTE(7, matmul_preference, alignment_c),
    ATTRIBUTE(8, matmul_preference, alignment_d),          ATTRIBUTE(9, matmul_preference, waves),
    ATTRIBUTE(12, matmul_preference, implementation_mask),
};
ATTRIBUTE_FUNCTIONS(cublasLtMatmulPreference, matmul_preference, preference_fields)

static const matmul_preference new_preference = {.reduction_mask = 7,
                                                 .alignment_a = 256,
                                                 .alignment_b = 256,
                                                 .alignment_c = 256,
                                                 .alignment_d = 256,
                                                 .implementation_mask = UINT64_MAX};

MAYA_API int cublasLtMatmulPreferenceCreate(void **preference) {
    return create_descriptor(preference, &new_preference, sizeof new_preference);
}

MAYA_API int cublasLtMatmulPreferenceInit_internal(matmul_preference *preference, size_t room) {
    return initialise_descriptor(preference, room, &new_preference, sizeof new_preference);
}

MAYA_API int cublasLtMatmulPreferenceDestroy(matmul_preference *preference) { return destroy_descriptor(preference); }

/* ---- how an algorithm is configured; the settings are kept, and change no time ---- */

static const attribute_field algorithm_fields[] = {
    ATTRIBUTE(0, matmul_algorithm, id),
    ATTRIBUTE(1, matmul_algorithm, tile),
    ATTRIBUTE(2, matmul_algorithm, split_k),
    ATTRIBUTE(3, matmul_algorithm, reduction),
    ATTRIBUTE(4, matmul_algorithm, swizzle),
    ATTRIBUTE(5, matmul_algorithm, custom),
    ATTRIBUTE(6, matmul_algorithm, stages),
    ATTRIBUTE(7, matmul_algorithm, inner_shape),
    ATTRIBUTE(8, matmul_algorithm, cluster_shape),
};
ATTRIBUTE_FUNCTIONS(cublasLtMatmulAlgoConfig, matmul_algorithm, algorithm_fields)
