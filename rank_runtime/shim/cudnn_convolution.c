/* Convolutions, one function per direction: the algorithms on offer, their workspace, and the calls themselves.
 *
 * torch calls these for some convolutions, and for all if TORCH_CUDNN_V8_API_DISABLED is set; otherwise it builds graphs
 * (cudnn_backend.c).
 */
#include "cudnn_convolution.h"
#include "cudnn_descriptors.h"

/* cudnnConvolution*AlgoPerf_t: one layout for all three directions */
typedef struct {
    int algorithm;
    int status;
    float milliseconds;
    size_t workspace;
    int deterministic;
    int math_type;
    int reserved[3];
} algorithm_result;

_Static_assert(sizeof(algorithm_result) == 48, "callers pass arrays of this struct");

typedef struct {
    int number; /* cudnnConvolutionFwdAlgo_t, ...BwdDataAlgo_t, ...BwdFilterAlgo_t */
    bool deterministic;
    bool tensor_cores; /* uses tensor cores, and therefore workspace */
} algorithm;

enum { ALGORITHMS = 2 };

/* Best first. Forward: implicit GEMM with precomputed indices, and without. Backward: algorithm 1 is deterministic,
 * algorithm 0 adds up with atomics. */
static const algorithm offered[][ALGORITHMS] = {
    [DNN_FORWARD] = {{1, true, true}, {0, true, false}},
    [DNN_BACKWARD_DATA] = {{1, true, true}, {0, false, false}},
    [DNN_BACKWARD_FILTER] = {{1, true, true}, {0, false, false}},
};

static dnn_status make_shape(dnn_convolution_shape *shape, dnn_direction direction, const dnn_tensor *x, const dnn_filter *w,
                             const dnn_tensor *y, const dnn_convolution *convolution) {
    if (!x || !w || !y || !convolution)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "convolution: a descriptor is missing");
    *shape = (dnn_convolution_shape){
        .direction = direction, .x = *x, .w = w->tensor, .y = *y, .spatial_dims = convolution->spatial_dims};
    for (int axis = 0; axis < convolution->spatial_dims; axis++) {
        shape->padding[axis] = shape->post_padding[axis] = convolution->padding[axis];
        shape->stride[axis] = convolution->stride[axis];
        shape->dilation[axis] = convolution->dilation[axis];
    }
    dnn_status status = dnn_convolution_check(shape);
    if (status == CUDNN_STATUS_SUCCESS && dnn_convolution_groups(shape) != convolution->groups)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "convolution: %d groups, but the channels make %lld",
                        convolution->groups, (long long)dnn_convolution_groups(shape));
    return status;
}

/* Default math lets fp32 run as TF32; FMA math forbids it. */
static bool uses_tensor_cores(const dnn_convolution_shape *shape, const dnn_convolution *convolution) {
    return convolution->math_type != CUDNN_FMA_MATH && dnn_device_has_tensor_cores_for(shape->x.type);
}

static const algorithm *find_algorithm(dnn_direction direction, int number) {
    for (int index = 0; index < ALGORITHMS; index++)
        if (offered[direction][index].number == number) return &offered[direction][index];
    return NULL;
}

static int64_t workspace_of(const algorithm *choice, const dnn_convolution_shape *shape, const dnn_convolution *convolution) {
    return choice->tensor_cores ? dnn_convolution_workspace(shape, uses_tensor_cores(shape, convolution)) : 0;
}

static dnn_status list_algorithms(const dnn_convolution_shape *shape, const dnn_convolution *convolution, int requested,
                                  int *returned, algorithm_result *results) {
    if (!returned || !results || requested < 1) return dnn_fail(CUDNN_STATUS_BAD_PARAM, "convolution: no room for algorithms");
    bool tensor_cores = uses_tensor_cores(shape, convolution);
    int math_type = !tensor_cores                       ? CUDNN_FMA_MATH
                    : shape->x.type == CUDNN_DATA_FLOAT ? CUDNN_DEFAULT_MATH
                                                        : CUDNN_TENSOR_OP_MATH;
    *returned = requested < ALGORITHMS ? requested : ALGORITHMS;
    for (int index = 0; index < *returned; index++) {
        const algorithm *choice = &offered[shape->direction][index];
        results[index] = (algorithm_result){
            .algorithm = choice->number,
            .status = CUDNN_STATUS_SUCCESS,
            .milliseconds = (float)(index + 1), /* not measured; only the order is meaningful */
            .workspace = (size_t)workspace_of(choice, shape, convolution),
            .deterministic = choice->deterministic,
            .math_type = math_type,
        };
    }
    return CUDNN_STATUS_SUCCESS;
}

static dnn_status tell_workspace(const dnn_convolution_shape *shape, const dnn_convolution *convolution, int number,
                                 size_t *size) {
    const algorithm *choice = find_algorithm(shape->direction, number);
    if (!choice) return dnn_fail(CUDNN_STATUS_NOT_SUPPORTED, "convolution: algorithm %d is not on offer", number);
    if (!size) return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "convolution: no place for the workspace size");
    *size = (size_t)workspace_of(choice, shape, convolution);
    return CUDNN_STATUS_SUCCESS;
}

static void describe(dnn_text *text, const char *call, const dnn_convolution_shape *shape, const dnn_convolution *convolution,
                     int number) {
    dnn_text_append(text, "{\"call\":\"%s\"", call);
    dnn_text_tensor(text, "x", &shape->x);
    dnn_text_tensor(text, "w", &shape->w);
    dnn_text_tensor(text, "y", &shape->y);
    dnn_text_list(text, "padding", shape->padding, shape->spatial_dims);
    dnn_text_list(text, "stride", shape->stride, shape->spatial_dims);
    dnn_text_list(text, "dilation", shape->dilation, shape->spatial_dims);
    dnn_text_append(text, ",\"groups\":%d,\"compute\":\"%s\",\"math\":\"%s\",\"algorithm\":%d", convolution->groups,
                    dnn_type_name(convolution->compute_type),
                    dnn_math_name(shape->x.type, uses_tensor_cores(shape, convolution)), number);
}

static dnn_status run(dnn_handle *handle, const char *call, const dnn_convolution_shape *shape,
                      const dnn_convolution *convolution, int number, size_t workspace, const char *epilogue) {
    if (!handle) return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: no handle", call);
    size_t needed;
    dnn_status status = tell_workspace(shape, convolution, number, &needed);
    if (status != CUDNN_STATUS_SUCCESS) return status;
    if (workspace < needed)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, "%s: workspace of %zu bytes, needed %zu", call, workspace,
                        needed);
    dnn_text text = {0};
    describe(&text, call, shape, convolution, number);
    dnn_text_append(&text, "%s}", epilogue);
    return dnn_record(handle, &text);
}

/* ---- forward ---- */

MAYA_API dnn_status cudnnGetConvolutionForwardAlgorithm_v7(dnn_handle *handle, const dnn_tensor *x, const dnn_filter *w,
                                                           const dnn_convolution *convolution, const dnn_tensor *y,
                                                           int requested, int *returned, algorithm_result *results) {
    dnn_convolution_shape shape;
    dnn_status status = make_shape(&shape, DNN_FORWARD, x, w, y, convolution);
    return status ? status : list_algorithms(&shape, convolution, requested, returned, results);
}

MAYA_API dnn_status cudnnFindConvolutionForwardAlgorithmEx(dnn_handle *handle, const dnn_tensor *x, const void *x_data,
                                                           const dnn_filter *w, const void *w_data,
                                                           const dnn_convolution *convolution, const dnn_tensor *y,
                                                           void *y_data, int requested, int *returned,
                                                           algorithm_result *results, void *workspace, size_t size) {
    return cudnnGetConvolutionForwardAlgorithm_v7(handle, x, w, convolution, y, requested, returned, results);
}

MAYA_API dnn_status cudnnGetConvolutionForwardWorkspaceSize(dnn_handle *handle, const dnn_tensor *x, const dnn_filter *w,
                                                            const dnn_convolution *convolution, const dnn_tensor *y, int number,
                                                            size_t *size) {
    dnn_convolution_shape shape;
    dnn_status status = make_shape(&shape, DNN_FORWARD, x, w, y, convolution);
    return status ? status : tell_workspace(&shape, convolution, number, size);
}

MAYA_API dnn_status cudnnConvolutionForward(dnn_handle *handle, const void *alpha, const dnn_tensor *x, const void *x_data,
                                            const dnn_filter *w, const void *w_data, const dnn_convolution *convolution,
                                            int number, void *workspace, size_t workspace_size, const void *beta,
                                            const dnn_tensor *y, void *y_data) {
    dnn_convolution_shape shape;
    dnn_status status = make_shape(&shape, DNN_FORWARD, x, w, y, convolution);
    return status ? status : run(handle, __func__, &shape, convolution, number, workspace_size, "");
}

MAYA_API dnn_status cudnnConvolutionBiasActivationForward(dnn_handle *handle, const void *alpha1, const dnn_tensor *x,
                                                          const void *x_data, const dnn_filter *w, const void *w_data,
                                                          const dnn_convolution *convolution, int number, void *workspace,
                                                          size_t workspace_size, const void *alpha2, const dnn_tensor *z,
                                                          const void *z_data, const dnn_tensor *bias, const void *bias_data,
                                                          const dnn_activation *activation, const dnn_tensor *y, void *y_data) {
    if (!activation) return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: no activation", __func__);
    dnn_convolution_shape shape;
    dnn_status status = make_shape(&shape, DNN_FORWARD, x, w, y, convolution);
    if (status != CUDNN_STATUS_SUCCESS) return status;
    dnn_text epilogue = {0};
    dnn_text_append(&epilogue, ",\"bias\":true,\"activation\":\"%s\"", dnn_activation_name(activation->mode));
    status = run(handle, __func__, &shape, convolution, number, workspace_size, epilogue.failed ? "" : epilogue.data);
    free(epilogue.data);
    return status;
}

/* ---- backward, with respect to the input ---- */

MAYA_API dnn_status cudnnGetConvolutionBackwardDataAlgorithm_v7(dnn_handle *handle, const dnn_filter *w, const dnn_tensor *dy,
                                                                const dnn_convolution *convolution, const dnn_tensor *dx,
                                                                int requested, int *returned, algorithm_result *results) {
    dnn_convolution_shape shape;
    dnn_status status = make_shape(&shape, DNN_BACKWARD_DATA, dx, w, dy, convolution);
    return status ? status : list_algorithms(&shape, convolution, requested, returned, results);
}

MAYA_API dnn_status cudnnFindConvolutionBackwardDataAlgorithmEx(dnn_handle *handle, const dnn_filter *w, const void *w_data,
                                                                const dnn_tensor *dy, const void *dy_data,
                                                                const dnn_convolution *convolution, const dnn_tensor *dx,
                                                                void *dx_data, int requested, int *returned,
                                                                algorithm_result *results, void *workspace, size_t size) {
    return cudnnGetConvolutionBackwardDataAlgorithm_v7(handle, w, dy, convolution, dx, requested, returned, results);
}

MAYA_API dnn_status cudnnGetConvolutionBackwardDataWorkspaceSize(dnn_handle *handle, const dnn_filter *w, const dnn_tensor *dy,
                                                                 const dnn_convolution *convolution, const dnn_tensor *dx,
                                                                 int number, size_t *size) {
    dnn_convolution_shape shape;
    dnn_status status = make_shape(&shape, DNN_BACKWARD_DATA, dx, w, dy, convolution);
    return status ? status : tell_workspace(&shape, convolution, number, size);
}

MAYA_API dnn_status cudnnConvolutionBackwardData(dnn_handle *handle, const void *alpha, const dnn_filter *w, const void *w_data,
                                                 const dnn_tensor *dy, const void *dy_data, const dnn_convolution *convolution,
                                                 int number, void *workspace, size_t workspace_size, const void *beta,
                                                 const dnn_tensor *dx, void *dx_data) {
    dnn_convolution_shape shape;
    dnn_status status = make_shape(&shape, DNN_BACKWARD_DATA, dx, w, dy, convolution);
    return status ? status : run(handle, __func__, &shape, convolution, number, workspace_size, "");
}

/* ---- backward, with respect to the filter ---- */

MAYA_API dnn_status cudnnGetConvolutionBackwardFilterAlgorithm_v7(dnn_handle *handle, const dnn_tensor *x, const dnn_tensor *dy,
                                                                  const dnn_convolution *convolution, const dnn_filter *dw,
                                                                  int requested, int *returned, algorithm_result *results) {
    dnn_convolution_shape shape;
    dnn_status status = make_shape(&shape, DNN_BACKWARD_FILTER, x, dw, dy, convolution);
    return status ? status : list_algorithms(&shape, convolution, requested, returned, results);
}

MAYA_API dnn_status cudnnFindConvolutionBackwardFilterAlgorithmEx(dnn_handle *handle, const dnn_tensor *x, const void *x_data,
                                                                  const dnn_tensor *dy, const void *dy_data,
                                                                  const dnn_convolution *convolution, const dnn_filter *dw,
                                                                  void *dw_data, int requested, int *returned,
                                                                  algorithm_result *results, void *workspace, size_t size) {
    return cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle, x, dy, convolution, dw, requested, returned, results);
}

MAYA_API dnn_status cudnnGetConvolutionBackwardFilterWorkspaceSize(dnn_handle *handle, const dnn_tensor *x,
                                                                   const dnn_tensor *dy, const dnn_convolution *convolution,
                                                                   const dnn_filter *dw, int number, size_t *size) {
    dnn_convolution_shape shape;
    dnn_status status = make_shape(&shape, DNN_BACKWARD_FILTER, x, dw, dy, convolution);
    return status ? status : tell_workspace(&shape, convolution, number, size);
}

MAYA_API dnn_status cudnnConvolutionBackwardFilter(dnn_handle *handle, const void *alpha, const dnn_tensor *x,
                                                   const void *x_data, const dnn_tensor *dy, const void *dy_data,
                                                   const dnn_convolution *convolution, int number, void *workspace,
                                                   size_t workspace_size, const void *beta, const dnn_filter *dw,
                                                   void *dw_data) {
    dnn_convolution_shape shape;
    dnn_status status = make_shape(&shape, DNN_BACKWARD_FILTER, x, dw, dy, convolution);
    return status ? status : run(handle, __func__, &shape, convolution, number, workspace_size, "");
}
