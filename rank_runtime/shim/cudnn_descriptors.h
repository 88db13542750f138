/* The descriptors of cuDNN's one-function-per-operation interface. */
#pragma once

#include "cudnn_common.h"

typedef struct {
    dnn_tensor tensor; /* strides follow from the format */
    int format;        /* cudnnTensorFormat_t */
} dnn_filter;

typedef struct {
    int spatial_dims;
    int padding[DNN_MAX_DIMS], stride[DNN_MAX_DIMS], dilation[DNN_MAX_DIMS];
    int mode;         /* cudnnConvolutionMode_t */
    int compute_type; /* cudnnDataType_t */
    int math_type;    /* cudnnMathType_t */
    int groups;
} dnn_convolution;

typedef struct {
    int mode; /* cudnnActivationMode_t */
    double coefficient;
} dnn_activation;

typedef struct {
    int mode; /* cudnnPoolingMode_t */
    int window[2], padding[2], stride[2];
} dnn_pooling;

typedef struct {
    float probability;
} dnn_dropout;

typedef struct {
    int type;
    int rank;
    int dims[DNN_MAX_DIMS];
} dnn_spatial_transformer;

typedef struct {
    int compute_type;
    int normalization;    /* cudnnLossNormalizationMode_t */
    int max_label_length; /* 0: not given */
} dnn_ctc_loss;

/* The name a signature uses for a cudnnActivationMode_t, or NULL. */
const char *dnn_activation_name(int mode);
