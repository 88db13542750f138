/* Shape computations of a convolution: whether its sizes match, its groups, its workspace. */
#include "cudnn_convolution.h"

static int64_t output_size(const dnn_convolution_shape *shape, int axis) {
    int64_t reach = shape->dilation[axis] * (shape->w.dims[axis + 2] - 1) + 1;
    int64_t room = shape->x.dims[axis + 2] + shape->padding[axis] + shape->post_padding[axis] - reach;
    return room < 0 ? 0 : room / shape->stride[axis] + 1;
}

dnn_status dnn_convolution_check(const dnn_convolution_shape *shape) {
    const dnn_tensor *x = &shape->x, *w = &shape->w, *y = &shape->y;
    int rank = shape->spatial_dims + 2;
    if (x->rank != rank || w->rank != rank || y->rank != rank)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "convolution: x, w and y have %d, %d and %d dimensions, expected %d", x->rank,
                        w->rank, y->rank, rank);
    if (x->dims[0] != y->dims[0])
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "convolution: batch %lld of x, %lld of y", (long long)x->dims[0],
                        (long long)y->dims[0]);
    if (w->dims[0] != y->dims[1] || x->dims[1] % w->dims[1] != 0)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                        "convolution: %lld channels of x and %lld of y for a filter of %lld x %lld", (long long)x->dims[1],
                        (long long)y->dims[1], (long long)w->dims[0], (long long)w->dims[1]);
    for (int axis = 0; axis < shape->spatial_dims; axis++)
        if (y->dims[axis + 2] != output_size(shape, axis))
            return dnn_fail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "convolution: %lld on axis %d of y, expected %lld",
                            (long long)y->dims[axis + 2], axis, (long long)output_size(shape, axis));
    return CUDNN_STATUS_SUCCESS;
}

int64_t dnn_convolution_groups(const dnn_convolution_shape *shape) { return shape->x.dims[1] / shape->w.dims[1]; }

/* Tensor-core kernels read and write NHWC, so an operand in another layout is converted into (or out of) workspace. A
 * filter gradient in 16 bits is summed up in fp32 there. cuDNN's sizes depend on the chosen kernel; these are
 * the minimum for such a kernel. */
int64_t dnn_convolution_workspace(const dnn_convolution_shape *shape, bool tensor_cores) {
    int64_t bytes = 0;
    if (tensor_cores && !dnn_tensor_channels_last(&shape->x) && shape->x.dims[1] > 1)
        bytes += dnn_tensor_bytes(&shape->x) + dnn_tensor_bytes(&shape->w) + dnn_tensor_bytes(&shape->y);
    if (shape->direction == DNN_BACKWARD_FILTER && dnn_type_bytes(shape->w.type, 1) < 4)
        bytes += dnn_tensor_elements(&shape->w) * (int64_t)sizeof(float);
    return bytes;
}
