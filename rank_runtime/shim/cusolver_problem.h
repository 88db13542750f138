/* The arguments that cuSOLVER's functions have in common: one structure holds them, and one function records them. */
#pragma once

#include "cublas_types.h"

/* cusolverStatus_t */
enum {
    CUSOLVER_SUCCESS = 0,
    CUSOLVER_NOT_INITIALIZED = 1,
    CUSOLVER_ALLOC_FAILED = 2,
    CUSOLVER_INVALID_VALUE = 3,
    CUSOLVER_EXECUTION_FAILED = 6,
};

typedef struct {
    void *stream;
} cusolver_handle;

/* Arguments that a function does not have are 0 or NULL and are left out of the signature. A letter is "?" if the
 * program's value is invalid. */
typedef struct {
    const char *call, *type;
    int64_t m, n;    /* rows and columns; a square matrix has both */
    int64_t k, nrhs; /* reflectors, right-hand sides */
    int64_t batch;   /* 0: one matrix */
    int64_t lda;
    const char *uplo, *side, *trans, *job;
    int *info; /* device memory: one word per matrix, set to 0 (success) in stream order */
} dense_problem;

int cusolver_record(cusolver_handle *handle, const dense_problem *problem);

/* Workspace sizes. All formulas are estimates in the shape of LAPACK's; cuSOLVER does not publish its own. The first
 * form counts elements, the second bytes on the device and on the host. */
int cusolver_workspace(cusolver_handle *handle, int64_t elements, int *result);
int cusolver_workspace_bytes(cusolver_handle *handle, int64_t elements, int type, size_t *device_bytes, size_t *host_bytes);

enum { PANEL = 64 }; /* block size of a blocked factorisation, in columns */

static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static inline const char *valid_or_question(const char *letter) { return letter == NULL ? "?" : letter; }

/* cusolverEigMode_t: values only ("N"), or vectors as well ("V") */
static inline const char *job_name(int job) { return job == 0 ? "N" : job == 1 ? "V" : NULL; }
