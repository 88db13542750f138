/* The CTC loss, with label lengths in host memory (cudnnCTCLoss) or in device memory (cudnnCTCLoss_v8). */
#include "cudnn_descriptors.h"

/* The forward and backward variables of every blank-extended label position and time step, and their sums per letter:
 * an estimate. */
static dnn_status ctc_workspace(const dnn_tensor *probabilities, int64_t max_label_length, size_t *size, const char *call) {
    if (!probabilities || !size || probabilities->rank != 3)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "%s: probabilities of [time, batch, letters] are expected", call);
    int64_t steps = probabilities->dims[0], batch = probabilities->dims[1], letters = probabilities->dims[2];
    int64_t positions = 2 * max_label_length + 1;
    *size = (size_t)(batch * steps * (2 * positions + letters)) * sizeof(float);
    return CUDNN_STATUS_SUCCESS;
}

static dnn_status record_ctc(dnn_handle *handle, const char *call, const dnn_tensor *probabilities, bool gradients,
                             int algorithm, int64_t max_label_length) {
    if (!handle || !probabilities || probabilities->rank != 3)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "%s: probabilities of [time, batch, letters] are expected", call);
    dnn_text text = {0};
    dnn_text_append(&text, "{\"call\":\"%s\"", call);
    dnn_text_tensor(&text, "probabilities", probabilities);
    dnn_text_append(&text, ",\"gradients\":%s,\"max_label_length\":%lld,\"deterministic\":%s}", gradients ? "true" : "false",
                    (long long)max_label_length, algorithm == 0 ? "true" : "false");
    return dnn_record(handle, &text);
}

static int64_t longest(const int *lengths, int64_t count) {
    int64_t result = 0;
    for (int64_t index = 0; index < count; index++)
        if (lengths[index] > result) result = lengths[index];
    return result;
}

MAYA_API dnn_status cudnnGetCTCLossWorkspaceSize(dnn_handle *handle, const dnn_tensor *probabilities,
                                                 const dnn_tensor *gradients, const int *labels, const int *label_lengths,
                                                 const int *input_lengths, int algorithm, const dnn_ctc_loss *loss,
                                                 size_t *size) {
    if (!probabilities || probabilities->rank != 3 || !label_lengths)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM,
                        "%s: probabilities of [time, batch, letters] and label lengths are "
                        "expected",
                        __func__);
    return ctc_workspace(probabilities, longest(label_lengths, probabilities->dims[1]), size, __func__);
}

/* The label lengths are in host memory, as in cuDNN. */
MAYA_API dnn_status cudnnCTCLoss(dnn_handle *handle, const dnn_tensor *probabilities, const void *probability_data,
                                 const int *labels, const int *label_lengths, const int *input_lengths, void *costs,
                                 const dnn_tensor *gradients, void *gradient_data, int algorithm, const dnn_ctc_loss *loss,
                                 void *workspace, size_t workspace_size) {
    if (!probabilities || probabilities->rank != 3 || !label_lengths)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM,
                        "%s: probabilities of [time, batch, letters] and label lengths are "
                        "expected",
                        __func__);
    return record_ctc(handle, __func__, probabilities, gradient_data != NULL, algorithm,
                      longest(label_lengths, probabilities->dims[1]));
}

MAYA_API dnn_status cudnnGetCTCLossWorkspaceSize_v8(dnn_handle *handle, int algorithm, const dnn_ctc_loss *loss,
                                                    const dnn_tensor *probabilities, const dnn_tensor *gradients,
                                                    size_t *size) {
    if (!loss) return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: no descriptor of the loss", __func__);
    return ctc_workspace(probabilities, loss->max_label_length, size, __func__);
}

/* Here the label lengths are in device memory: the descriptor's upper bound stands for them. */
MAYA_API dnn_status cudnnCTCLoss_v8(dnn_handle *handle, int algorithm, const dnn_ctc_loss *loss,
                                    const dnn_tensor *probabilities, const void *probability_data, const int *labels,
                                    const int *label_lengths, const int *input_lengths, void *costs,
                                    const dnn_tensor *gradients, void *gradient_data, size_t workspace_size, void *workspace) {
    if (!loss) return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: no descriptor of the loss", __func__);
    return record_ctc(handle, __func__, probabilities, gradient_data != NULL, algorithm, loss->max_label_length);
}
