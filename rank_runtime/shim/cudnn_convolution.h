/* One convolution, from either of cuDNN's two interfaces. */
#pragma once

#include "cudnn_common.h"

typedef enum { DNN_FORWARD, DNN_BACKWARD_DATA, DNN_BACKWARD_FILTER } dnn_direction;

/* x, w and y play their forward roles in every direction: backward data writes x, backward filter writes w. */
typedef struct {
    dnn_direction direction;
    dnn_tensor x, w, y;
    int spatial_dims;
    int64_t padding[DNN_MAX_DIMS], post_padding[DNN_MAX_DIMS], stride[DNN_MAX_DIMS], dilation[DNN_MAX_DIMS];
} dnn_convolution_shape;

/* Success, or a status with a message if the sizes do not match. */
dnn_status dnn_convolution_check(const dnn_convolution_shape *shape);
int64_t dnn_convolution_groups(const dnn_convolution_shape *shape);
/* Bytes of workspace; an estimate, explained in the function. */
int64_t dnn_convolution_workspace(const dnn_convolution_shape *shape, bool tensor_cores);
