/* Pooling, dropout and spatial transformers: one function each, one record each. */
#include "cudnn_descriptors.h"

/* ---- pooling ---- */

MAYA_API dnn_status cudnnPoolingForward(dnn_handle *handle, const dnn_pooling *pooling, const void *alpha, const dnn_tensor *x,
                                        const void *x_data, const void *beta, const dnn_tensor *y, void *y_data) {
    static const char *const modes[] = {"max", "average_include_padding", "average_exclude_padding", "max_deterministic"};
    if (!handle || !pooling || !x || !y)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: the handle or a descriptor is missing", __func__);
    dnn_text text = {0};
    dnn_text_append(&text, "{\"call\":\"%s\",\"mode\":\"%s\"", __func__, modes[pooling->mode]);
    dnn_text_tensor(&text, "x", x);
    dnn_text_tensor(&text, "y", y);
    dnn_text_list32(&text, "window", pooling->window, 2);
    dnn_text_list32(&text, "padding", pooling->padding, 2);
    dnn_text_list32(&text, "stride", pooling->stride, 2);
    dnn_text_append(&text, "}");
    return dnn_record(handle, &text);
}

/* ---- dropout: torch uses it for the states of RNN dropout only ---- */

/* One random generator of 24 bytes for every thread that the device can hold: an estimate. */
MAYA_API dnn_status cudnnDropoutGetStatesSize(dnn_handle *handle, size_t *size) {
    if (!handle || !size)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: no handle, or no place for the size", __func__);
    const maya_device_properties *device = &maya_get_settings()->device;
    *size = (size_t)device->sm_count * (size_t)device->max_threads_per_sm * 24;
    return CUDNN_STATUS_SUCCESS;
}

static dnn_status keep_dropout(dnn_dropout *dropout, float probability, const char *call) {
    if (!dropout || !(probability >= 0 && probability <= 1))
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "%s: probability %g", call, probability);
    dropout->probability = probability;
    return CUDNN_STATUS_SUCCESS;
}

/* With states, the generators are started by a kernel. */
MAYA_API dnn_status cudnnSetDropoutDescriptor(dnn_dropout *dropout, dnn_handle *handle, float probability, void *states,
                                              size_t states_size, unsigned long long seed) {
    dnn_status status = keep_dropout(dropout, probability, __func__);
    if (status != CUDNN_STATUS_SUCCESS || !states) return status;
    if (!handle) return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: no handle", __func__);
    dnn_text text = {0};
    dnn_text_append(&text, "{\"call\":\"%s\",\"bytes\":%zu}", __func__, states_size);
    return dnn_record(handle, &text);
}

MAYA_API dnn_status cudnnRestoreDropoutDescriptor(dnn_dropout *dropout, dnn_handle *handle, float probability, void *states,
                                                  size_t states_size, unsigned long long seed) {
    return keep_dropout(dropout, probability, __func__);
}

/* ---- spatial transformers ---- */

static dnn_status record_grid(dnn_handle *handle, const char *call, const dnn_spatial_transformer *transformer) {
    if (!handle || !transformer)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: the handle or the descriptor is missing", call);
    dnn_text text = {0};
    dnn_text_append(&text, "{\"call\":\"%s\",\"type\":\"%s\"", call, dnn_type_name(transformer->type));
    dnn_text_list32(&text, "dims", transformer->dims, transformer->rank);
    dnn_text_append(&text, "}");
    return dnn_record(handle, &text);
}

static dnn_status record_sampler(dnn_handle *handle, const char *call, const dnn_tensor *x, const dnn_tensor *y) {
    if (!handle || !x || !y)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: the handle or a descriptor is missing", call);
    dnn_text text = {0};
    dnn_text_append(&text, "{\"call\":\"%s\"", call);
    dnn_text_tensor(&text, "x", x);
    dnn_text_tensor(&text, "y", y);
    dnn_text_append(&text, "}");
    return dnn_record(handle, &text);
}

MAYA_API dnn_status cudnnSpatialTfGridGeneratorForward(dnn_handle *handle, const dnn_spatial_transformer *transformer,
                                                       const void *theta, void *grid) {
    return record_grid(handle, __func__, transformer);
}

MAYA_API dnn_status cudnnSpatialTfGridGeneratorBackward(dnn_handle *handle, const dnn_spatial_transformer *transformer,
                                                        const void *grid_gradient, void *theta_gradient) {
    return record_grid(handle, __func__, transformer);
}

MAYA_API dnn_status cudnnSpatialTfSamplerForward(dnn_handle *handle, const dnn_spatial_transformer *transformer,
                                                 const void *alpha, const dnn_tensor *x, const void *x_data, const void *grid,
                                                 const void *beta, const dnn_tensor *y, void *y_data) {
    return record_sampler(handle, __func__, x, y);
}

MAYA_API dnn_status cudnnSpatialTfSamplerBackward(dnn_handle *handle, const dnn_spatial_transformer *transformer,
                                                  const void *alpha, const dnn_tensor *x, const void *x_data, const void *beta,
                                                  const dnn_tensor *dx, void *dx_data, const void *alpha_grid,
                                                  const dnn_tensor *dy, const void *dy_data, const void *grid,
                                                  const void *beta_grid, void *grid_gradient) {
    return record_sampler(handle, __func__, x, dy);
}
