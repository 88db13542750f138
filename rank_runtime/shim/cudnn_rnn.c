/* Recurrent networks: where their weights lie, the space they need, and the forward and backward calls.
 *
 * The weight space holds, without gaps, the matrices of every pseudo-layer (a layer, or one direction of one) and then
 * their biases. Per pseudo-layer: the gates' input matrices, the gates' recurrent matrices, the projection (LSTM only).
 * A linear layer is numbered as cuDNN does: gate g of the input is g, gate g of the recurrence is gates + g, and the
 * projection of an LSTM is 8. torch copies its parameters to the addresses returned here.
 */
#include "cudnn_descriptors.h"

enum { CELL_RELU, CELL_TANH, CELL_LSTM, CELL_GRU };                            /* cudnnRNNMode_t */
enum { NO_BIAS, SINGLE_INPUT_BIAS, DOUBLE_BIAS, SINGLE_RECURRENT_BIAS };       /* cudnnRNNBiasMode_t */
enum { LINEAR_INPUT, SKIP_INPUT };                                             /* cudnnRNNInputMode_t */
enum { SEQUENCE_MAJOR_UNPACKED, SEQUENCE_MAJOR_PACKED, BATCH_MAJOR_UNPACKED }; /* cudnnRNNDataLayout_t */
enum { PROJECTION = 8 };

typedef struct {
    int algorithm, cell, bias_mode, input_mode;
    int directions; /* 1 or 2 */
    int type, compute_type, math_type;
    int64_t input_size, hidden_size, layers;
    int64_t projection_size; /* the hidden size where there is no projection */
    float dropout;
} rnn;

typedef struct {
    int type, layout;
    int64_t max_sequence, batch, vector_size;
    int64_t tokens; /* sum of the sequence lengths */
} rnn_data;

/* A matrix or bias in the weight space; rows == 0: this network has none there. */
typedef struct {
    int64_t offset, rows, columns; /* in elements */
} rnn_weight;

static int gates_of(const rnn *network) { return network->cell == CELL_LSTM ? 4 : network->cell == CELL_GRU ? 3 : 1; }

static bool has_projection(const rnn *network) { return network->projection_size != network->hidden_size; }

static int64_t pseudo_layers(const rnn *network) { return network->layers * network->directions; }

/* Columns of an input matrix; 0 if the first layer has none (skip input). */
static int64_t input_columns(const rnn *network, int64_t pseudo_layer) {
    if (pseudo_layer >= network->directions) return network->projection_size * network->directions;
    return network->input_mode == SKIP_INPUT ? 0 : network->input_size;
}

static int64_t matrix_elements(const rnn *network, int64_t pseudo_layer) {
    int64_t columns = input_columns(network, pseudo_layer) + network->projection_size;
    int64_t projection = has_projection(network) ? network->projection_size * network->hidden_size : 0;
    return gates_of(network) * network->hidden_size * columns + projection;
}

static int64_t all_matrix_elements(const rnn *network, int64_t pseudo_layer_count) {
    int64_t elements = 0;
    for (int64_t pseudo_layer = 0; pseudo_layer < pseudo_layer_count; pseudo_layer++)
        elements += matrix_elements(network, pseudo_layer);
    return elements;
}

static bool has_input_bias(const rnn *network) {
    return network->bias_mode == SINGLE_INPUT_BIAS || network->bias_mode == DOUBLE_BIAS;
}

static bool has_recurrent_bias(const rnn *network) {
    return network->bias_mode == SINGLE_RECURRENT_BIAS || network->bias_mode == DOUBLE_BIAS;
}

static int64_t bias_elements(const rnn *network) {
    return gates_of(network) * network->hidden_size * (has_input_bias(network) + has_recurrent_bias(network));
}

static int64_t weight_elements(const rnn *network) {
    return all_matrix_elements(network, pseudo_layers(network)) + pseudo_layers(network) * bias_elements(network);
}

static rnn_weight find_matrix(const rnn *network, int64_t pseudo_layer, int linear) {
    int64_t gates = gates_of(network), hidden = network->hidden_size;
    int64_t columns = input_columns(network, pseudo_layer);
    int64_t start = all_matrix_elements(network, pseudo_layer);
    int64_t recurrent = start + gates * hidden * columns;
    if (linear == PROJECTION)
        return has_projection(network)
                   ? (rnn_weight){recurrent + gates * hidden * network->projection_size, network->projection_size, hidden}
                   : (rnn_weight){0};
    if (linear >= gates)
        return (rnn_weight){recurrent + (linear - gates) * hidden * network->projection_size, hidden, network->projection_size};
    return columns ? (rnn_weight){start + linear * hidden * columns, hidden, columns} : (rnn_weight){0};
}

static rnn_weight find_bias(const rnn *network, int64_t pseudo_layer, int linear) {
    int64_t gates = gates_of(network), hidden = network->hidden_size;
    bool recurrent = linear >= gates;
    if (linear == PROJECTION || !(recurrent ? has_recurrent_bias(network) : has_input_bias(network))) return (rnn_weight){0};
    int64_t index = recurrent && !has_input_bias(network) ? linear - gates : linear;
    int64_t start = all_matrix_elements(network, pseudo_layers(network)) + pseudo_layer * bias_elements(network);
    return (rnn_weight){start + index * hidden, hidden, 1};
}

/* ---- descriptors ---- */

MAYA_API dnn_status cudnnCreateRNNDescriptor(rnn **network) {
    if (!network) return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: no place for the descriptor", __func__);
    *network = calloc(1, sizeof **network);
    return *network ? CUDNN_STATUS_SUCCESS : dnn_fail(CUDNN_STATUS_HOST_ALLOCATION_FAILED, "%s: no memory", __func__);
}

MAYA_API dnn_status cudnnDestroyRNNDescriptor(rnn *network) {
    free(network);
    return CUDNN_STATUS_SUCCESS;
}

MAYA_API dnn_status cudnnSetRNNDescriptor_v8(rnn *network, int algorithm, int cell, int bias_mode, int direction,
                                             int input_mode, int type, int compute_type, int math_type, int32_t input_size,
                                             int32_t hidden_size, int32_t projection_size, int32_t layers,
                                             const dnn_dropout *dropout, uint32_t flags) {
    if (!network) return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: no descriptor", __func__);
    if (cell < CELL_RELU || cell > CELL_GRU || bias_mode < NO_BIAS || bias_mode > SINGLE_RECURRENT_BIAS ||
        !dnn_type_name(type) || !dnn_type_name(compute_type))
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "%s: cell %d, bias mode %d, data type %d, compute type %d", __func__, cell,
                        bias_mode, type, compute_type);
    if (input_size < 0 || hidden_size < 1 || layers < 1 || projection_size < 0 || projection_size > hidden_size)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "%s: input %d, hidden %d, projection %d, %d layers", __func__, input_size,
                        hidden_size, projection_size, layers);
    if (projection_size && projection_size != hidden_size && cell != CELL_LSTM)
        return dnn_fail(CUDNN_STATUS_NOT_SUPPORTED, "%s: only an LSTM can have a projection", __func__);
    *network = (rnn){
        .algorithm = algorithm,
        .cell = cell,
        .bias_mode = bias_mode,
        .input_mode = input_mode,
        .directions = direction ? 2 : 1,
        .type = type,
        .compute_type = compute_type,
        .math_type = math_type,
        .input_size = input_size,
        .hidden_size = hidden_size,
        .projection_size = projection_size ? projection_size : hidden_size,
        .layers = layers,
        .dropout = dropout ? dropout->probability : 0,
    };
    return CUDNN_STATUS_SUCCESS;
}

MAYA_API dnn_status cudnnCreateRNNDataDescriptor(rnn_data **data) {
    if (!data) return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: no place for the descriptor", __func__);
    *data = calloc(1, sizeof **data);
    return *data ? CUDNN_STATUS_SUCCESS : dnn_fail(CUDNN_STATUS_HOST_ALLOCATION_FAILED, "%s: no memory", __func__);
}

MAYA_API dnn_status cudnnDestroyRNNDataDescriptor(rnn_data *data) {
    free(data);
    return CUDNN_STATUS_SUCCESS;
}

MAYA_API dnn_status cudnnSetRNNDataDescriptor(rnn_data *data, int type, int layout, int max_sequence, int batch,
                                              int vector_size, const int *sequence_lengths, void *padding_fill) {
    if (!data || !sequence_lengths)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: the descriptor or the lengths are missing", __func__);
    if (!dnn_type_name(type) || layout < SEQUENCE_MAJOR_UNPACKED || layout > BATCH_MAJOR_UNPACKED || max_sequence < 1 ||
        batch < 1 || vector_size < 1)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "%s: data type %d, layout %d, sequence %d, batch %d, vectors of %d", __func__,
                        type, layout, max_sequence, batch, vector_size);
    *data =
        (rnn_data){.type = type, .layout = layout, .max_sequence = max_sequence, .batch = batch, .vector_size = vector_size};
    for (int index = 0; index < batch; index++) {
        if (sequence_lengths[index] < 0 || sequence_lengths[index] > max_sequence)
            return dnn_fail(CUDNN_STATUS_BAD_PARAM, "%s: sequence %d has length %d, the maximum is %d", __func__, index,
                            sequence_lengths[index], max_sequence);
        data->tokens += sequence_lengths[index];
    }
    return CUDNN_STATUS_SUCCESS;
}

/* ---- sizes and addresses ---- */

MAYA_API dnn_status cudnnGetRNNWeightSpaceSize(dnn_handle *handle, const rnn *network, size_t *size) {
    if (!handle || !network || !size)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: an argument is missing", __func__);
    *size = (size_t)dnn_type_bytes(network->type, weight_elements(network));
    return CUDNN_STATUS_SUCCESS;
}

static void tell_weight(const rnn *network, const void *weight_space, rnn_weight weight, dnn_tensor *descriptor,
                        void **address) {
    if (address) *address = weight.rows ? (char *)weight_space + dnn_type_bytes(network->type, weight.offset) : NULL;
    if (!descriptor) return;
    *descriptor = (dnn_tensor){.type = network->type}; /* of no dimensions: there is none */
    if (weight.rows)
        *descriptor = (dnn_tensor){.type = network->type,
                                   .rank = 3,
                                   .dims = {1, weight.rows, weight.columns},
                                   .strides = {weight.rows * weight.columns, weight.columns, 1}};
}

MAYA_API dnn_status cudnnGetRNNWeightParams(dnn_handle *handle, const rnn *network, int32_t pseudo_layer,
                                            size_t weight_space_size, const void *weight_space, int32_t linear,
                                            dnn_tensor *matrix, void **matrix_address, dnn_tensor *bias, void **bias_address) {
    if (!handle || !network)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: the handle or the descriptor is missing", __func__);
    bool is_projection = linear == PROJECTION && network->cell == CELL_LSTM;
    if (pseudo_layer < 0 || pseudo_layer >= pseudo_layers(network) ||
        !(is_projection || (linear >= 0 && linear < 2 * gates_of(network))))
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "%s: pseudo-layer %d, linear layer %d", __func__, pseudo_layer, linear);
    int64_t needed = dnn_type_bytes(network->type, weight_elements(network));
    if (weight_space_size < (size_t)needed)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, "%s: weight space of %zu bytes, needed %lld", __func__,
                        weight_space_size, (long long)needed);
    tell_weight(network, weight_space, find_matrix(network, pseudo_layer, linear), matrix, matrix_address);
    tell_weight(network, weight_space, find_bias(network, pseudo_layer, linear), bias, bias_address);
    return CUDNN_STATUS_SUCCESS;
}

/* Estimates. Workspace: the gates' inputs of one layer. Reserve, in training: per layer and token the gates, the LSTM's
 * cell state and its tanh (GRU: the recurrent part of the new gate), the output handed to the next layer, and a dropout
 * mask for it. */
MAYA_API dnn_status cudnnGetRNNTempSpaceSizes(dnn_handle *handle, const rnn *network, int training, const rnn_data *x,
                                              size_t *workspace_size, size_t *reserve_size) {
    if (!handle || !network || !x)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: the handle or a descriptor is missing", __func__);
    int64_t tokens = x->layout == SEQUENCE_MAJOR_PACKED ? x->tokens : x->max_sequence * x->batch;
    int64_t gates = gates_of(network) * network->hidden_size * network->directions;
    int64_t states = network->cell == CELL_LSTM ? 2 : network->cell == CELL_GRU ? 1 : 0;
    int64_t kept = gates + states * network->hidden_size * network->directions;
    int64_t output = network->projection_size * network->directions;
    int64_t between = output * (network->dropout > 0 ? 2 : 1);
    if (workspace_size) *workspace_size = (size_t)dnn_type_bytes(network->type, tokens * gates);
    if (reserve_size)
        *reserve_size = training ? (size_t)dnn_type_bytes(network->type,
                                                          tokens * (network->layers * kept + (network->layers - 1) * between))
                                 : 0;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- the calls ---- */

/* Default math lets fp32 run as TF32. */
static const char *math_name(const rnn *network) {
    bool tensor_cores = network->math_type != CUDNN_FMA_MATH && dnn_device_has_tensor_cores_for(network->type);
    return dnn_math_name(network->type, tensor_cores);
}

static dnn_status record(dnn_handle *handle, const char *call, const rnn *network, const rnn_data *x, bool training,
                         size_t weight_space_size) {
    static const char *const cells[] = {"rnn_relu", "rnn_tanh", "lstm", "gru"};
    static const char *const biases[] = {"none", "input", "both", "recurrent"};
    static const char *const algorithms[] = {"standard", "persist_static", "persist_dynamic", "persist_static_small_hidden"};
    if (!handle || !network || !x)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: the handle or a descriptor is missing", call);
    if (network->algorithm < 0 || (size_t)network->algorithm >= sizeof algorithms / sizeof *algorithms)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "%s: algorithm %d", call, network->algorithm);
    int64_t needed = dnn_type_bytes(network->type, weight_elements(network));
    if (weight_space_size < (size_t)needed)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, "%s: weight space of %zu bytes, needed %lld", call,
                        weight_space_size, (long long)needed);
    dnn_text text = {0};
    dnn_text_append(&text, "{\"call\":\"%s\",\"cell\":\"%s\",\"layers\":%lld,\"directions\":%d,\"batch\":%lld", call,
                    cells[network->cell], (long long)network->layers, network->directions, (long long)x->batch);
    dnn_text_append(&text, ",\"sequence\":%lld,\"tokens\":%lld,\"packed\":%s,\"input_size\":%lld", (long long)x->max_sequence,
                    (long long)x->tokens, x->layout == SEQUENCE_MAJOR_PACKED ? "true" : "false",
                    (long long)network->input_size);
    dnn_text_append(&text, ",\"hidden_size\":%lld,\"projection_size\":%lld,\"bias\":\"%s\",\"dropout\":%g",
                    (long long)network->hidden_size, (long long)(has_projection(network) ? network->projection_size : 0),
                    biases[network->bias_mode], network->dropout);
    dnn_text_append(&text, ",\"type\":\"%s\",\"compute\":\"%s\",\"math\":\"%s\",\"algorithm\":\"%s\",\"training\":%s}",
                    dnn_type_name(network->type), dnn_type_name(network->compute_type), math_name(network),
                    algorithms[network->algorithm], training ? "true" : "false");
    return dnn_record(handle, &text);
}

MAYA_API dnn_status cudnnRNNForward(dnn_handle *handle, const rnn *network, int training, const int32_t *sequence_lengths,
                                    const rnn_data *x, const void *x_data, const rnn_data *y, void *y_data, const dnn_tensor *h,
                                    const void *hx, void *hy, const dnn_tensor *c, const void *cx, void *cy,
                                    size_t weight_space_size, const void *weight_space, size_t workspace_size, void *workspace,
                                    size_t reserve_size, void *reserve) {
    return record(handle, __func__, network, x, training, weight_space_size);
}

MAYA_API dnn_status cudnnRNNBackwardData_v8(dnn_handle *handle, const rnn *network, const int32_t *sequence_lengths,
                                            const rnn_data *y, const void *y_data, const void *dy_data, const rnn_data *x,
                                            void *dx_data, const dnn_tensor *h, const void *hx, const void *dhy, void *dhx,
                                            const dnn_tensor *c, const void *cx, const void *dcy, void *dcx,
                                            size_t weight_space_size, const void *weight_space, size_t workspace_size,
                                            void *workspace, size_t reserve_size, void *reserve) {
    return record(handle, __func__, network, x, true, weight_space_size);
}

MAYA_API dnn_status cudnnRNNBackwardWeights_v8(dnn_handle *handle, const rnn *network, int add_gradients,
                                               const int32_t *sequence_lengths, const rnn_data *x, const void *x_data,
                                               const dnn_tensor *h, const void *hx, const rnn_data *y, const void *y_data,
                                               size_t weight_space_size, void *weight_gradients, size_t workspace_size,
                                               void *workspace, size_t reserve_size, void *reserve) {
    return record(handle, __func__, network, x, true, weight_space_size);
}
