/* Declarations shared by the files of the fake driver library (libcuda.so.1). */
#pragma once

#include "device/internal.h"

#ifndef MAYA_CUDA_VERSION
#define MAYA_CUDA_VERSION 13000
#endif

typedef int CUresult; /* the driver's numbers for errors are the runtime's */
typedef int CUdevice;
typedef uintptr_t CUdeviceptr;
typedef void *CUstream;
typedef maya_event *CUevent;
typedef maya_kernel *CUfunction;

/* The primary context of a device, which is only its number. */
typedef struct {
    int device;
} *CUcontext;
