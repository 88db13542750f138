/* cuFFT: plans and transforms.
 *
 * In: sizes, strides, types and batch of a plan. Out: one record for every execution. The program refers
 * to a plan by a small number.
 *
 * Not emulated: the older ways to make and run a plan (cufftPlan1d, cufftExecC2C, ...), which torch does not use.
 */
#include "cublas_types.h"
#include "device/vector.h"

#include <pthread.h>
#include <stdio.h>

/* cufftResult */
enum {
    CUFFT_SUCCESS = 0,
    CUFFT_INVALID_PLAN = 1,
    CUFFT_ALLOC_FAILED = 2,
    CUFFT_INVALID_TYPE = 3,
    CUFFT_INVALID_VALUE = 4,
    CUFFT_EXEC_FAILED = 6,
    CUFFT_INVALID_SIZE = 8,
    CUFFT_NOT_SUPPORTED = 16,
};

enum { MAX_RANK = 3 };

typedef struct {
    bool made;
    int rank;
    long long n[MAX_RANK];
    long long input_stride, input_distance, output_stride, output_distance;
    long long batch;
    int input_type, output_type, compute_type;
    size_t work_bytes;
    void *own_work; /* the library's own work area */
    bool allocates; /* own_work is allocated with the plan, unless the program provides a work area */
    void *stream;
} fft_plan;

/* ---- plans by number ---- */

static pthread_mutex_t plans_lock = PTHREAD_MUTEX_INITIALIZER;
static MAYA_VECTOR(fft_plan *) plans; /* NULL: destroyed, and the place is free */

/* The lock must be held. */
static size_t free_slot(void) {
    size_t slot = 0;
    while (slot < plans.count && plans.items[slot]) slot++;
    maya_vector_extend(&plans, slot + 1);
    return slot;
}

/* Numbers start at 1, so that a variable that was never set does not name a plan. */
static fft_plan *find_plan(int number) {
    pthread_mutex_lock(&plans_lock);
    fft_plan *plan = number >= 1 && (size_t)number <= plans.count ? plans.items[number - 1] : NULL;
    pthread_mutex_unlock(&plans_lock);
    return plan;
}

MAYA_API int cufftCreate(int *number) {
    if (number == NULL) return CUFFT_INVALID_VALUE;
    fft_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL) return CUFFT_ALLOC_FAILED;
    plan->allocates = true;
    pthread_mutex_lock(&plans_lock);
    size_t slot = free_slot();
    plans.items[slot] = plan;
    pthread_mutex_unlock(&plans_lock);
    *number = (int)slot + 1;
    return CUFFT_SUCCESS;
}

MAYA_API int cufftDestroy(int number) {
    fft_plan *plan = find_plan(number);
    if (plan == NULL) return CUFFT_INVALID_PLAN;
    pthread_mutex_lock(&plans_lock);
    plans.items[number - 1] = NULL;
    pthread_mutex_unlock(&plans_lock);
    if (plan->own_work != NULL) maya_device_free(plan->own_work);
    free(plan);
    return CUFFT_SUCCESS;
}

MAYA_API int cufftSetStream(int number, void *stream) {
    fft_plan *plan = find_plan(number);
    if (plan == NULL) return CUFFT_INVALID_PLAN;
    plan->stream = stream;
    return CUFFT_SUCCESS;
}

MAYA_API int cufftSetAutoAllocation(int number, int allocate) {
    fft_plan *plan = find_plan(number);
    if (plan == NULL) return CUFFT_INVALID_PLAN;
    plan->allocates = allocate != 0;
    return CUFFT_SUCCESS;
}

MAYA_API int cufftSetWorkArea(int number, void *work) {
    fft_plan *plan = find_plan(number);
    if (plan == NULL) return CUFFT_INVALID_PLAN;
    if (plan->own_work != NULL) maya_device_free(plan->own_work);
    plan->own_work = NULL;
    return CUFFT_SUCCESS;
}

MAYA_API int cufftGetSize(int number, size_t *bytes) {
    fft_plan *plan = find_plan(number);
    if (plan == NULL) return CUFFT_INVALID_PLAN;
    if (bytes == NULL) return CUFFT_INVALID_VALUE;
    *bytes = plan->work_bytes;
    return CUFFT_SUCCESS;
}

/* cuFFT's own major version runs one behind the toolkit's. */

MAYA_API int cufftGetVersion(int *version) {
    if (version == NULL) return CUFFT_INVALID_VALUE;
    *version = (TOOLKIT_MAJOR - 1) * 1000 + TOOLKIT_MINOR * 100;
    return CUFFT_SUCCESS;
}

MAYA_API int cufftGetProperty(int property, int *value) {
    return library_property(property, TOOLKIT_MAJOR - 1, TOOLKIT_MINOR, value) ? CUFFT_SUCCESS : CUFFT_INVALID_VALUE;
}

/* ---- making a plan ---- */

/* Sizes with a prime factor above 127 are transformed by convolution at a power of two of at least twice the size. */
static long long padded_size(long long n) {
    long long rest = n;
    for (long long factor = 2; factor <= 127; factor++)
        while (rest % factor == 0) rest /= factor;
    if (rest == 1) return n;
    long long padded = 1;
    while (padded < 2 * n) padded *= 2;
    return padded;
}

/* An estimate: one complex copy of the data, in the precision of the computation. */
static size_t work_estimate(const fft_plan *plan) {
    size_t bits = (size_t)data_type_bits(plan->compute_type);
    size_t bytes = (size_t)plan->batch * (data_type_is_complex(plan->compute_type) ? bits : 2 * bits) / 8;
    for (int i = 0; i < plan->rank; i++) bytes *= (size_t)padded_size(plan->n[i]);
    return bytes;
}

/* Elements of one transform on the side that has `type`; opposite a real side, half the spectrum suffices. */
static long long dense_distance(int rank, const long long *n, int type, int other_type) {
    bool half = data_type_is_complex(type) && !data_type_is_complex(other_type);
    long long elements = half ? n[rank - 1] / 2 + 1 : n[rank - 1];
    for (int i = 0; i < rank - 1; i++) elements *= n[i];
    return elements;
}

MAYA_API int cufftXtMakePlanMany(int number, int rank, long long *n, long long *input_embed, long long input_stride,
                                 long long input_distance, int input_type, long long *output_embed, long long output_stride,
                                 long long output_distance, int output_type, long long batch, size_t *work_bytes,
                                 int compute_type) {
    fft_plan *plan = find_plan(number);
    if (plan == NULL || plan->made) return CUFFT_INVALID_PLAN;
    if (rank < 1 || rank > MAX_RANK || n == NULL || work_bytes == NULL) return CUFFT_INVALID_VALUE;
    if (data_type_name(input_type) == NULL || data_type_name(output_type) == NULL || data_type_name(compute_type) == NULL ||
        (!data_type_is_complex(input_type) && !data_type_is_complex(output_type)))
        return CUFFT_INVALID_TYPE;
    if (batch < 1) return CUFFT_INVALID_SIZE;
    for (int i = 0; i < rank; i++) {
        if (n[i] < 1) return CUFFT_INVALID_SIZE;
        plan->n[i] = n[i];
    }
    /* Without embedding, data lies densely and strides are ignored, as documented. */
    bool dense = input_embed == NULL || output_embed == NULL;
    plan->rank = rank;
    plan->input_stride = dense ? 1 : input_stride;
    plan->input_distance = dense ? dense_distance(rank, n, input_type, output_type) : input_distance;
    plan->output_stride = dense ? 1 : output_stride;
    plan->output_distance = dense ? dense_distance(rank, n, output_type, input_type) : output_distance;
    plan->input_type = input_type;
    plan->output_type = output_type;
    plan->compute_type = compute_type;
    plan->batch = batch;
    plan->work_bytes = work_estimate(plan);
    if (plan->allocates && maya_device_malloc(maya_current_device(), plan->work_bytes, &plan->own_work) != 0)
        return CUFFT_ALLOC_FAILED;
    plan->made = true;
    *work_bytes = plan->work_bytes;
    return CUFFT_SUCCESS;
}

/* ---- running it ---- */

MAYA_API int cufftXtExec(int number, void *input, void *output, int direction) {
    enum { FORWARD = -1, INVERSE = 1 };
    const fft_plan *plan = find_plan(number);
    if (plan == NULL || !plan->made) return CUFFT_INVALID_PLAN;
    bool complex = data_type_is_complex(plan->input_type) && data_type_is_complex(plan->output_type);
    if (complex && direction != FORWARD && direction != INVERSE) return CUFFT_INVALID_VALUE;
    /* A transform from or to real numbers has only one direction; the argument is ignored. */
    bool forward = complex ? direction == FORWARD : data_type_is_complex(plan->output_type);
    char sizes[80];
    int used = snprintf(sizes, sizeof sizes, "%lld", plan->n[0]);
    for (int i = 1; i < plan->rank; i++) used += snprintf(sizes + used, sizeof sizes - (size_t)used, ",%lld", plan->n[i]);
    int error =
        maya_library_call(plan->stream,
                          "{\"call\":\"cufftXtExec\",\"dims\":[%s],\"batch\":%lld,\"direction\":\"%s\",\"input_type\":\"%s\","
                          "\"output_type\":\"%s\",\"compute\":\"%s\",\"input_stride\":%lld,\"input_distance\":%lld,"
                          "\"output_stride\":%lld,\"output_distance\":%lld,\"in_place\":%s}",
                          sizes, plan->batch, forward ? "forward" : "inverse", data_type_name(plan->input_type),
                          data_type_name(plan->output_type), data_type_name(plan->compute_type), plan->input_stride,
                          plan->input_distance, plan->output_stride, plan->output_distance, input == output ? "true" : "false");
    return error == 0 ? CUFFT_SUCCESS : CUFFT_EXEC_FAILED;
}
