/* Descriptors of the one-function-per-operation interface: created, set, read and destroyed. They launch nothing. */
#include "cudnn_descriptors.h"

enum { CUDNN_TENSOR_NCHW, CUDNN_TENSOR_NHWC, CUDNN_TENSOR_NCHW_VECT_C };

static dnn_status create(void **descriptor, size_t size, const char *function) {
    if (!descriptor) return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: no place for the descriptor", function);
    *descriptor = calloc(1, size);
    if (!*descriptor) return dnn_fail(CUDNN_STATUS_HOST_ALLOCATION_FAILED, "%s: no memory", function);
    return CUDNN_STATUS_SUCCESS;
}

static dnn_status destroy(void *descriptor) {
    free(descriptor);
    return CUDNN_STATUS_SUCCESS;
}

/* ---- tensors ---- */

MAYA_API dnn_status cudnnCreateTensorDescriptor(void **descriptor) { return create(descriptor, sizeof(dnn_tensor), __func__); }

MAYA_API dnn_status cudnnDestroyTensorDescriptor(void *descriptor) { return destroy(descriptor); }

MAYA_API dnn_status cudnnSetTensorNdDescriptor(dnn_tensor *tensor, int type, int rank, const int *dims, const int *strides) {
    if (!tensor || !dims || !strides)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: a descriptor or an array is missing", __func__);
    if (!dnn_type_name(type) || rank < 1 || rank > DNN_MAX_DIMS)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "%s: data type %d, %d dimensions", __func__, type, rank);
    *tensor = (dnn_tensor){.type = type, .rank = rank};
    for (int index = 0; index < rank; index++) {
        if (dims[index] <= 0) return dnn_fail(CUDNN_STATUS_BAD_PARAM, "%s: dimension %d is %d", __func__, index, dims[index]);
        tensor->dims[index] = dims[index];
        tensor->strides[index] = strides[index];
    }
    return CUDNN_STATUS_SUCCESS;
}

/* Returns the number of dimensions, and as many of the first ones as requested. */
MAYA_API dnn_status cudnnGetTensorNdDescriptor(const dnn_tensor *tensor, int requested, int *type, int *rank, int *dims,
                                               int *strides) {
    if (!tensor) return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: no descriptor", __func__);
    if (type) *type = tensor->type;
    if (rank) *rank = tensor->rank;
    for (int index = 0; index < requested && index < tensor->rank; index++) {
        if (dims) dims[index] = (int)tensor->dims[index];
        if (strides) strides[index] = (int)tensor->strides[index];
    }
    return CUDNN_STATUS_SUCCESS;
}

/* ---- filters ---- */

MAYA_API dnn_status cudnnCreateFilterDescriptor(void **descriptor) { return create(descriptor, sizeof(dnn_filter), __func__); }

MAYA_API dnn_status cudnnDestroyFilterDescriptor(void *descriptor) { return destroy(descriptor); }

/* A filter is dense: NCHW keeps the order of its dimensions, NHWC puts the channels (dimension 1) innermost. */
static void set_dense_strides(dnn_tensor *tensor, bool channels_last) {
    int64_t stride = 1;
    if (channels_last) {
        tensor->strides[1] = 1;
        stride = tensor->dims[1];
    }
    for (int index = tensor->rank - 1; index >= 0; index--) {
        if (channels_last && index == 1) continue;
        tensor->strides[index] = stride;
        stride *= tensor->dims[index];
    }
}

MAYA_API dnn_status cudnnSetFilterNdDescriptor(dnn_filter *filter, int type, int format, int rank, const int *dims) {
    if (!filter || !dims)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: the descriptor or the array is missing", __func__);
    if (!dnn_type_name(type) || rank < 2 || rank > DNN_MAX_DIMS || format < 0 || format > CUDNN_TENSOR_NCHW_VECT_C)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "%s: data type %d, format %d, %d dimensions", __func__, type, format, rank);
    *filter = (dnn_filter){.tensor = {.type = type, .rank = rank}, .format = format};
    for (int index = 0; index < rank; index++) {
        if (dims[index] <= 0) return dnn_fail(CUDNN_STATUS_BAD_PARAM, "%s: dimension %d is %d", __func__, index, dims[index]);
        filter->tensor.dims[index] = dims[index];
    }
    set_dense_strides(&filter->tensor, format == CUDNN_TENSOR_NHWC);
    return CUDNN_STATUS_SUCCESS;
}

MAYA_API dnn_status cudnnGetFilterNdDescriptor(const dnn_filter *filter, int requested, int *type, int *format, int *rank,
                                               int *dims) {
    if (!filter) return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: no descriptor", __func__);
    if (format) *format = filter->format;
    return cudnnGetTensorNdDescriptor(&filter->tensor, requested, type, rank, dims, NULL);
}

/* ---- convolutions ---- */

MAYA_API dnn_status cudnnCreateConvolutionDescriptor(void **descriptor) {
    return create(descriptor, sizeof(dnn_convolution), __func__);
}

MAYA_API dnn_status cudnnDestroyConvolutionDescriptor(void *descriptor) { return destroy(descriptor); }

MAYA_API dnn_status cudnnSetConvolutionNdDescriptor(dnn_convolution *convolution, int spatial_dims, const int *padding,
                                                    const int *stride, const int *dilation, int mode, int compute_type) {
    if (!convolution || !padding || !stride || !dilation)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: a descriptor or an array is missing", __func__);
    if (spatial_dims < 1 || spatial_dims > DNN_MAX_DIMS - 2 || !dnn_type_name(compute_type))
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "%s: %d spatial dimensions, compute type %d", __func__, spatial_dims,
                        compute_type);
    *convolution = (dnn_convolution){.spatial_dims = spatial_dims, .mode = mode, .compute_type = compute_type, .groups = 1};
    for (int index = 0; index < spatial_dims; index++) {
        if (padding[index] < 0 || stride[index] < 1 || dilation[index] < 1)
            return dnn_fail(CUDNN_STATUS_BAD_PARAM, "%s: padding %d, stride %d, dilation %d", __func__, padding[index],
                            stride[index], dilation[index]);
        convolution->padding[index] = padding[index];
        convolution->stride[index] = stride[index];
        convolution->dilation[index] = dilation[index];
    }
    return CUDNN_STATUS_SUCCESS;
}

MAYA_API dnn_status cudnnSetConvolutionGroupCount(dnn_convolution *convolution, int groups) {
    if (!convolution || groups < 1) return dnn_fail(CUDNN_STATUS_BAD_PARAM, "%s: %d groups", __func__, groups);
    convolution->groups = groups;
    return CUDNN_STATUS_SUCCESS;
}

MAYA_API dnn_status cudnnSetConvolutionMathType(dnn_convolution *convolution, int math_type) {
    if (!convolution || math_type < CUDNN_DEFAULT_MATH || math_type > CUDNN_FMA_MATH)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "%s: math type %d", __func__, math_type);
    convolution->math_type = math_type;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- activations ---- */

const char *dnn_activation_name(int mode) {
    static const char *const names[] = {"sigmoid", "relu", "tanh", "clipped_relu", "elu", "identity", "swish"};
    return mode >= 0 && (size_t)mode < sizeof names / sizeof *names ? names[mode] : NULL;
}

MAYA_API dnn_status cudnnCreateActivationDescriptor(void **descriptor) {
    return create(descriptor, sizeof(dnn_activation), __func__);
}

MAYA_API dnn_status cudnnDestroyActivationDescriptor(void *descriptor) { return destroy(descriptor); }

MAYA_API dnn_status cudnnSetActivationDescriptor(dnn_activation *activation, int mode, int propagate_nan, double coefficient) {
    if (!activation || !dnn_activation_name(mode)) return dnn_fail(CUDNN_STATUS_BAD_PARAM, "%s: mode %d", __func__, mode);
    *activation = (dnn_activation){.mode = mode, .coefficient = coefficient};
    return CUDNN_STATUS_SUCCESS;
}

/* ---- pooling ---- */

MAYA_API dnn_status cudnnCreatePoolingDescriptor(void **descriptor) {
    return create(descriptor, sizeof(dnn_pooling), __func__);
}

MAYA_API dnn_status cudnnDestroyPoolingDescriptor(void *descriptor) { return destroy(descriptor); }

MAYA_API dnn_status cudnnSetPooling2dDescriptor(dnn_pooling *pooling, int mode, int propagate_nan, int window_height,
                                                int window_width, int padding_height, int padding_width, int stride_height,
                                                int stride_width) {
    if (!pooling || mode < 0 || mode > 3 || window_height < 1 || window_width < 1 || stride_height < 1 || stride_width < 1)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "%s: mode %d, window %dx%d, stride %dx%d", __func__, mode, window_height,
                        window_width, stride_height, stride_width);
    *pooling = (dnn_pooling){.mode = mode,
                             .window = {window_height, window_width},
                             .padding = {padding_height, padding_width},
                             .stride = {stride_height, stride_width}};
    return CUDNN_STATUS_SUCCESS;
}

/* ---- dropout ---- */

MAYA_API dnn_status cudnnCreateDropoutDescriptor(void **descriptor) {
    return create(descriptor, sizeof(dnn_dropout), __func__);
}

MAYA_API dnn_status cudnnDestroyDropoutDescriptor(void *descriptor) { return destroy(descriptor); }

/* ---- spatial transformers ---- */

MAYA_API dnn_status cudnnCreateSpatialTransformerDescriptor(void **descriptor) {
    return create(descriptor, sizeof(dnn_spatial_transformer), __func__);
}

MAYA_API dnn_status cudnnDestroySpatialTransformerDescriptor(void *descriptor) { return destroy(descriptor); }

MAYA_API dnn_status cudnnSetSpatialTransformerNdDescriptor(dnn_spatial_transformer *transformer, int sampler, int type,
                                                           int rank, const int *dims) {
    if (!transformer || !dims || !dnn_type_name(type) || rank < 1 || rank > DNN_MAX_DIMS)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "%s: data type %d, %d dimensions", __func__, type, rank);
    *transformer = (dnn_spatial_transformer){.type = type, .rank = rank};
    memcpy(transformer->dims, dims, (size_t)rank * sizeof *dims);
    return CUDNN_STATUS_SUCCESS;
}

/* ---- CTC loss ---- */

MAYA_API dnn_status cudnnCreateCTCLossDescriptor(void **descriptor) {
    return create(descriptor, sizeof(dnn_ctc_loss), __func__);
}

MAYA_API dnn_status cudnnDestroyCTCLossDescriptor(void *descriptor) { return destroy(descriptor); }

MAYA_API dnn_status cudnnSetCTCLossDescriptor_v9(dnn_ctc_loss *loss, int compute_type, int normalization, int gradient_mode,
                                                 int max_label_length) {
    if (!loss || !dnn_type_name(compute_type))
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "%s: compute type %d", __func__, compute_type);
    *loss = (dnn_ctc_loss){.compute_type = compute_type, .normalization = normalization, .max_label_length = max_label_length};
    return CUDNN_STATUS_SUCCESS;
}

MAYA_API dnn_status cudnnSetCTCLossDescriptorEx(dnn_ctc_loss *loss, int compute_type, int normalization, int gradient_mode) {
    return cudnnSetCTCLossDescriptor_v9(loss, compute_type, normalization, gradient_mode, 0);
}
