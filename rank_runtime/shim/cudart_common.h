/* What the files of the fake libcudart share. */
#pragma once

#include "device/internal.h"

/* Versions of the CUDA toolkit that torch was built with, e.g. 13000; layouts and a few signatures differ. */
#ifndef MAYA_CUDA_VERSION
#define MAYA_CUDA_VERSION 13000
#endif

typedef struct {
    unsigned x, y, z;
} dim3;

typedef int cudaError_t;
typedef void *cudaStream_t;
typedef maya_event *cudaEvent_t;
typedef maya_graph *cudaGraph_t;
typedef maya_graph *cudaGraphExec_t;
typedef maya_graph_node *cudaGraphNode_t;

/* Remember `status` as the thread's last error, if it is one, and return it. */
cudaError_t cudart_result(int status);
