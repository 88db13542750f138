/* The signature of a graph of operations.
 *
 * "operations" lists them in the order given, each an object whose "op" is the operation's name and whose other keys
 * are those of cudnn_kinds.c; parameters kept in a descriptor of their own (a convolution's padding) stand beside its
 * tensors. A virtual tensor only exists between two operations of the graph and touches no memory. Attention, which
 * consists of some thirty operations, is written as one.
 */
#include "cudnn_backend.h"

/* cudnnPointwiseMode_t */
static const struct {
    int mode;
    const char *name;
} pointwise_modes[] = {
    {0, "add"},
    {1, "mul"},
    {2, "min"},
    {3, "max"},
    {4, "sqrt"},
    {5, "add_square"},
    {6, "div"},
    {7, "mod"},
    {8, "pow"},
    {9, "sub"},
    {10, "abs"},
    {11, "ceil"},
    {12, "cos"},
    {13, "exp"},
    {14, "floor"},
    {15, "log"},
    {16, "neg"},
    {17, "rsqrt"},
    {18, "sin"},
    {19, "tan"},
    {20, "erf"},
    {21, "identity"},
    {22, "reciprocal"},
    {23, "atan2"},
    {24, "floor_mod"},
    {100, "relu"},
    {101, "tanh"},
    {102, "sigmoid"},
    {103, "elu"},
    {104, "gelu"},
    {105, "softplus"},
    {106, "swish"},
    {107, "gelu_tanh"},
    {200, "relu_backward"},
    {201, "tanh_backward"},
    {202, "sigmoid_backward"},
    {203, "elu_backward"},
    {204, "gelu_backward"},
    {205, "softplus_backward"},
    {206, "swish_backward"},
    {207, "gelu_tanh_backward"},
    {300, "equal"},
    {301, "not_equal"},
    {302, "greater"},
    {303, "greater_equal"},
    {304, "less"},
    {305, "less_equal"},
    {400, "and"},
    {401, "or"},
    {402, "not"},
    {501, "index"},
    {601, "select"},
};

static const char *const reductions[] = {"add", "mul", "min", "max", "amax", "avg", "norm1", "norm2", "mul_no_zeros"};
static const char *const norm_modes[] = {"layer", "instance", "batch", "group", "rms", "adaptive_layer"};
static const char *const norm_phases[] = {"inference", "training"};
static const char *const resample_modes[] = {"nearest", "bilinear", "average_include_padding", "max",
                                             "average_exclude_padding"};
static const char *const distributions[] = {"bernoulli", "uniform", "normal"};
static const char *const grouped_matmul_modes[] = {"none", "gather", "scatter"};

#define NAME_AT(names, index) ((index) >= 0 && (size_t)(index) < sizeof(names) / sizeof *(names) ? (names)[index] : NULL)

static const char *pointwise_name(int mode) {
    for (size_t index = 0; index < sizeof pointwise_modes / sizeof *pointwise_modes; index++)
        if (pointwise_modes[index].mode == mode) return pointwise_modes[index].name;
    return NULL;
}

static const char *enum_name(int type, int value) {
    switch (type) {
        case TYPE_DATA_TYPE: return dnn_type_name(value);
        case TYPE_POINTWISE_MODE: return pointwise_name(value);
        case TYPE_REDUCTION: return NAME_AT(reductions, value);
        case TYPE_NORM_MODE: return NAME_AT(norm_modes, value);
        case TYPE_NORM_PHASE: return NAME_AT(norm_phases, value);
        case TYPE_RESAMPLE_MODE: return NAME_AT(resample_modes, value);
        case TYPE_RANDOM_DISTRIBUTION: return NAME_AT(distributions, value);
        case TYPE_GROUPED_MATMUL_MODE: return NAME_AT(grouped_matmul_modes, value);
        default: return NULL;
    }
}

static void describe_tensor(dnn_text *text, const backend_body *body) {
    dnn_tensor tensor;
    if (!backend_tensor(body, &tensor)) {
        text->failed = true;
        return;
    }
    dnn_text_append(text, "{\"type\":\"%s\"", dnn_type_name(tensor.type));
    if (backend_flag(body, ATTRIBUTE_TENSOR_IS_BY_VALUE)) {
        dnn_text_append(text, ",\"scalar\":true}");
        return;
    }
    dnn_text_list(text, "dims", tensor.dims, tensor.rank);
    if (backend_flag(body, ATTRIBUTE_TENSOR_IS_VIRTUAL)) dnn_text_append(text, ",\"virtual\":true");
    else dnn_text_list(text, "strides", tensor.strides, tensor.rank);
    if (backend_count(body, ATTRIBUTE_TENSOR_RAGGED_OFFSET)) dnn_text_append(text, ",\"ragged\":true");
    dnn_text_append(text, "}");
}

static void describe_tensors(dnn_text *text, const backend_body *body, const backend_rule *rule) {
    dnn_text_append(text, ",\"%s\":%s", rule->key, rule->flags & LIST ? "[" : "");
    for (int64_t index = 0; index < backend_count(body, rule->name); index++) {
        dnn_text_append(text, "%s", index ? "," : "");
        describe_tensor(text, backend_child_at(body, rule->name, index));
    }
    dnn_text_append(text, "%s", rule->flags & LIST ? "]" : "");
}

static void describe_fractions(dnn_text *text, const char *key, const backend_attribute *attribute) {
    const int64_t *values = attribute->values; /* numerator, denominator, numerator, ... */
    dnn_text_append(text, ",\"%s\":[", key);
    for (int64_t index = 0; index < attribute->count; index++)
        dnn_text_append(text, "%s%g", index ? "," : "", (double)values[2 * index] / (double)values[2 * index + 1]);
    dnn_text_append(text, "]");
}

static void describe_int32s(dnn_text *text, const backend_rule *rule, const backend_attribute *attribute) {
    const int32_t *values = attribute->values;
    if (rule->flags & LIST)
        dnn_text_list32(text, rule->key, values, attribute->count < DNN_MAX_DIMS ? attribute->count : DNN_MAX_DIMS);
    else dnn_text_append(text, ",\"%s\":%d", rule->key, values[0]);
}

static void describe_fields(dnn_text *text, const backend_body *body);

static void describe_field(dnn_text *text, const backend_body *body, const backend_rule *rule) {
    const backend_attribute *attribute = backend_find(body, rule->name);
    if (!attribute || attribute->count < 1 || rule->flags & UNSAID) return;
    switch (attribute->type) {
        case TYPE_DESCRIPTOR:
            if (backend_child(body, rule->name)->kind == KIND_TENSOR) describe_tensors(text, body, rule);
            else describe_fields(text, backend_child(body, rule->name));
            break;
        case TYPE_INT64:
            if (rule->flags & LIST) dnn_text_list(text, rule->key, attribute->values, attribute->count);
            else dnn_text_append(text, ",\"%s\":%lld", rule->key, (long long)backend_int64(body, rule->name));
            break;
        case TYPE_INT32: describe_int32s(text, rule, attribute); break;
        case TYPE_FLOAT:
        case TYPE_DOUBLE: dnn_text_append(text, ",\"%s\":%g", rule->key, backend_number(body, rule->name)); break;
        case TYPE_BOOLEAN:
            dnn_text_append(text, ",\"%s\":%s", rule->key, backend_flag(body, rule->name) ? "true" : "false");
            break;
        case TYPE_FRACTION: describe_fractions(text, rule->key, attribute); break;
        default: {
            int value = backend_enum(body, rule->name);
            const char *name = enum_name(attribute->type, value);
            if (name) dnn_text_append(text, ",\"%s\":\"%s\"", rule->key, name);
            else dnn_text_append(text, ",\"%s\":%d", rule->key, value);
        }
    }
}

static void describe_fields(dnn_text *text, const backend_body *body) {
    const backend_kind *kind = backend_find_kind(body->kind);
    for (int index = 0; index < kind->rule_count; index++) describe_field(text, body, &kind->rules[index]);
}

static void describe_operation(dnn_text *text, const backend_body *operation) {
    dnn_text_append(text, "{\"op\":\"%s\"", backend_find_kind(operation->kind)->name);
    describe_fields(text, operation);
    dnn_convolution_shape shape;
    if (backend_convolution(operation, &shape))
        dnn_text_append(text, ",\"groups\":%lld", (long long)dnn_convolution_groups(&shape));
    dnn_text_append(text, "}");
}

static const char *truth(bool value) { return value ? "true" : "false"; }

static void describe_attention(dnn_text *text, const attention_problem *problem) {
    const dnn_tensor *q = &problem->q, *k = &problem->k, *v = &problem->v;
    dnn_text_append(text, "{\"op\":\"%s\",\"type\":\"%s\"", problem->backward ? "attention_backward" : "attention_forward",
                    dnn_type_name(q->type));
    dnn_text_append(text, ",\"batch\":%lld,\"heads\":%lld,\"kv_heads\":%lld,\"sequence_q\":%lld,\"sequence_kv\":%lld",
                    (long long)q->dims[0], (long long)q->dims[1], (long long)k->dims[1], (long long)q->dims[2],
                    (long long)v->dims[2]);
    dnn_text_append(text, ",\"head_size_qk\":%lld,\"head_size_v\":%lld", (long long)q->dims[3], (long long)v->dims[3]);
    dnn_text_append(text, ",\"causal\":%s,\"window\":%s,\"bias\":%s,\"dropout\":%.6g", truth(problem->causal),
                    truth(problem->window), truth(problem->bias), problem->dropout);
    dnn_text_append(text, ",\"padding\":%s,\"ragged\":%s,\"paged\":%s,\"stats\":%s", truth(problem->padding),
                    truth(problem->ragged), truth(problem->paged), truth(problem->stats));
    dnn_text_list(text, "q_strides", q->strides, q->rank);
    dnn_text_list(text, "k_strides", k->strides, k->rank);
    dnn_text_list(text, "v_strides", v->strides, v->rank);
    dnn_text_append(text, "}");
}

void backend_describe_graph(dnn_text *text, const backend_body *graph) {
    attention_problem problem;
    dnn_text_append(text, ",\"operations\":[");
    if (backend_find_attention(graph, &problem)) {
        describe_attention(text, &problem);
    } else {
        for (int64_t index = 0; index < backend_count(graph, ATTRIBUTE_GRAPH_OPERATIONS); index++) {
            dnn_text_append(text, "%s", index ? "," : "");
            describe_operation(text, backend_child_at(graph, ATTRIBUTE_GRAPH_OPERATIONS, index));
        }
    }
    dnn_text_append(text, "]");
}
