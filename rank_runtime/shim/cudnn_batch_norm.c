/* Batch normalization: the space it needs, and its calls in training, backward and inference. */
#include "cudnn_descriptors.h"

enum { CUDNN_BATCHNORM_OPS_BN = 0 }; /* cudnnBatchNormOps_t: nothing fused */

static const char *batch_norm_mode(int mode) {
    static const char *const names[] = {"per_activation", "spatial", "spatial_persistent"};
    return mode >= 0 && (size_t)mode < sizeof names / sizeof *names ? names[mode] : NULL;
}

static const char *batch_norm_operations(int operations) {
    static const char *const names[] = {"norm", "norm_activation", "norm_add_activation"};
    return operations >= 0 && (size_t)operations < sizeof names / sizeof *names ? names[operations] : NULL;
}

static dnn_status record_batch_norm(dnn_handle *handle, const char *call, int mode, int operations, const dnn_tensor *x,
                                    const dnn_tensor *parameters) {
    if (!handle || !x || !parameters)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: the handle or a descriptor is missing", call);
    if (!batch_norm_mode(mode) || !batch_norm_operations(operations))
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "%s: mode %d, operations %d", call, mode, operations);
    dnn_text text = {0};
    dnn_text_append(&text, "{\"call\":\"%s\",\"mode\":\"%s\",\"fused\":\"%s\"", call, batch_norm_mode(mode),
                    batch_norm_operations(operations));
    dnn_text_tensor(&text, "x", x);
    dnn_text_append(&text, ",\"parameter_type\":\"%s\"}", dnn_type_name(parameters->type));
    return dnn_record(handle, &text);
}

/* Partial sums of the two statistics, for every channel and multiprocessor: an estimate. */
static dnn_status batch_norm_workspace(const dnn_tensor *x, size_t *size, const char *call) {
    if (!x || !size)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: a descriptor or the place for the size is missing", call);
    bool channels_last = dnn_tensor_channels_last(x);
    int64_t blocks = channels_last ? maya_get_settings()->device.sm_count : 1;
    *size = (size_t)(2 * x->dims[1] * blocks) * sizeof(float);
    return CUDNN_STATUS_SUCCESS;
}

MAYA_API dnn_status cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(dnn_handle *handle, int mode, int operations,
                                                                             const dnn_tensor *x, const dnn_tensor *z,
                                                                             const dnn_tensor *y, const dnn_tensor *parameters,
                                                                             const dnn_activation *activation, size_t *size) {
    return batch_norm_workspace(x, size, __func__);
}

MAYA_API dnn_status cudnnGetBatchNormalizationBackwardExWorkspaceSize(dnn_handle *handle, int mode, int operations,
                                                                      const dnn_tensor *x, const dnn_tensor *y,
                                                                      const dnn_tensor *dy, const dnn_tensor *dz,
                                                                      const dnn_tensor *dx, const dnn_tensor *parameters,
                                                                      const dnn_activation *activation, size_t *size) {
    return batch_norm_workspace(x, size, __func__);
}

/* A fused activation keeps one bit per element for the backward pass; plain normalization keeps nothing. */
MAYA_API dnn_status cudnnGetBatchNormalizationTrainingExReserveSpaceSize(dnn_handle *handle, int mode, int operations,
                                                                         const dnn_activation *activation, const dnn_tensor *x,
                                                                         size_t *size) {
    if (!x || !size)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: a descriptor or the place for the size is missing", __func__);
    *size = operations == CUDNN_BATCHNORM_OPS_BN ? 0 : (size_t)(dnn_tensor_elements(x) + 7) / 8;
    return CUDNN_STATUS_SUCCESS;
}

MAYA_API dnn_status cudnnBatchNormalizationForwardInference(dnn_handle *handle, int mode, const void *alpha, const void *beta,
                                                            const dnn_tensor *x, const void *x_data, const dnn_tensor *y,
                                                            void *y_data, const dnn_tensor *parameters, const void *scale,
                                                            const void *bias, const void *mean, const void *variance,
                                                            double epsilon) {
    return record_batch_norm(handle, __func__, mode, CUDNN_BATCHNORM_OPS_BN, x, parameters);
}

MAYA_API dnn_status cudnnBatchNormalizationForwardTrainingEx(
    dnn_handle *handle, int mode, int operations, const void *alpha, const void *beta, const dnn_tensor *x, const void *x_data,
    const dnn_tensor *z, const void *z_data, const dnn_tensor *y, void *y_data, const dnn_tensor *parameters, const void *scale,
    const void *bias, double average_factor, void *running_mean, void *running_variance, double epsilon, void *saved_mean,
    void *saved_inverse_variance, const dnn_activation *activation, void *workspace, size_t workspace_size, void *reserve,
    size_t reserve_size) {
    return record_batch_norm(handle, __func__, mode, operations, x, parameters);
}

MAYA_API dnn_status cudnnBatchNormalizationBackwardEx(
    dnn_handle *handle, int mode, int operations, const void *alpha_data, const void *beta_data, const void *alpha_parameters,
    const void *beta_parameters, const dnn_tensor *x, const void *x_data, const dnn_tensor *y, const void *y_data,
    const dnn_tensor *dy, const void *dy_data, const dnn_tensor *dz, void *dz_data, const dnn_tensor *dx, void *dx_data,
    const dnn_tensor *parameters, const void *scale, const void *bias, void *scale_gradient, void *bias_gradient,
    double epsilon, const void *saved_mean, const void *saved_inverse_variance, const dnn_activation *activation,
    void *workspace, size_t workspace_size, void *reserve, size_t reserve_size) {
    return record_batch_norm(handle, __func__, mode, operations, x, parameters);
}
