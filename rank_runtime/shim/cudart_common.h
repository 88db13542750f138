/* Declarations shared by the files of the fake libcudart. */
#pragma once

#include "device/internal.h"

/* The version of the CUDA toolkit that torch was built with, e.g. 13000; struct layouts and a few signatures depend on it. */
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

/* Stores `status` as the thread's last error, unless it is success, and returns it. */
cudaError_t cudart_result(int status);
