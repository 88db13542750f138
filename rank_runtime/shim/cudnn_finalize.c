/* The checks of cudnnBackendFinalize: required attributes are set, and sizes match. */
#include "cudnn_backend.h"

bool backend_tensor(const backend_body *body, dnn_tensor *tensor) {
    if (!body || body->kind != KIND_TENSOR) return false;
    int64_t rank, stride_count;
    const int64_t *dims = backend_int64s(body, ATTRIBUTE_TENSOR_DIMS, &rank);
    const int64_t *strides = backend_int64s(body, ATTRIBUTE_TENSOR_STRIDES, &stride_count);
    if (rank < 1 || rank > DNN_MAX_DIMS || stride_count != rank) return false;
    *tensor = (dnn_tensor){.type = backend_enum(body, ATTRIBUTE_TENSOR_TYPE), .rank = (int)rank};
    memcpy(tensor->dims, dims, (size_t)rank * sizeof *dims);
    memcpy(tensor->strides, strides, (size_t)rank * sizeof *strides);
    return true;
}

typedef struct {
    int kind;
    dnn_direction direction;
    int x, w, y, convolution; /* attributes */
} convolution_attributes;

static const convolution_attributes convolutions[] = {
    {KIND_CONVOLUTION_FORWARD, DNN_FORWARD, ATTRIBUTE_FORWARD_X, ATTRIBUTE_FORWARD_W, ATTRIBUTE_FORWARD_Y,
     ATTRIBUTE_FORWARD_CONVOLUTION},
    {KIND_CONVOLUTION_BACKWARD_DATA, DNN_BACKWARD_DATA, ATTRIBUTE_BACKWARD_DATA_X, ATTRIBUTE_BACKWARD_DATA_W,
     ATTRIBUTE_BACKWARD_DATA_Y, ATTRIBUTE_BACKWARD_DATA_CONVOLUTION},
    {KIND_CONVOLUTION_BACKWARD_FILTER, DNN_BACKWARD_FILTER, ATTRIBUTE_BACKWARD_FILTER_X, ATTRIBUTE_BACKWARD_FILTER_W,
     ATTRIBUTE_BACKWARD_FILTER_Y, ATTRIBUTE_BACKWARD_FILTER_CONVOLUTION},
};

static void copy_list(int64_t *to, const backend_body *body, int name) {
    int64_t count;
    const int64_t *values = backend_int64s(body, name, &count);
    if (values) memcpy(to, values, (size_t)count * sizeof *values);
}

bool backend_convolution(const backend_body *operation, dnn_convolution_shape *shape) {
    for (size_t index = 0; index < sizeof convolutions / sizeof *convolutions; index++) {
        const convolution_attributes *attributes = &convolutions[index];
        if (operation->kind != attributes->kind) continue;
        const backend_body *parameters = backend_child(operation, attributes->convolution);
        *shape = (dnn_convolution_shape){.direction = attributes->direction,
                                         .spatial_dims = (int)backend_int64(parameters, ATTRIBUTE_CONVOLUTION_SPATIAL_DIMS)};
        copy_list(shape->padding, parameters, ATTRIBUTE_CONVOLUTION_PADDINGS);
        copy_list(shape->post_padding, parameters, ATTRIBUTE_CONVOLUTION_POST_PADDINGS);
        copy_list(shape->stride, parameters, ATTRIBUTE_CONVOLUTION_STRIDES);
        copy_list(shape->dilation, parameters, ATTRIBUTE_CONVOLUTION_DILATIONS);
        return parameters && backend_tensor(backend_child(operation, attributes->x), &shape->x) &&
               backend_tensor(backend_child(operation, attributes->w), &shape->w) &&
               backend_tensor(backend_child(operation, attributes->y), &shape->y);
    }
    return false;
}

/* ---- checks by kind ---- */

static dnn_status check_required(const backend_body *body) {
    const backend_kind *kind = backend_find_kind(body->kind);
    for (int index = 0; index < kind->rule_count; index++) {
        const backend_rule *rule = &kind->rules[index];
        if (rule->flags & REQUIRED && !backend_find(body, rule->name))
            return dnn_fail(CUDNN_STATUS_BAD_PARAM, "cudnnBackendFinalize: %s lacks its %s (attribute %d)", kind->name,
                            rule->key, rule->name);
    }
    return CUDNN_STATUS_SUCCESS;
}

static dnn_status check_tensor(const backend_body *body) {
    dnn_tensor tensor;
    if (!backend_tensor(body, &tensor) || !dnn_type_name(tensor.type))
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "tensor: data type %d, %lld sizes, %lld strides",
                        backend_enum(body, ATTRIBUTE_TENSOR_TYPE), (long long)backend_count(body, ATTRIBUTE_TENSOR_DIMS),
                        (long long)backend_count(body, ATTRIBUTE_TENSOR_STRIDES));
    for (int index = 0; index < tensor.rank; index++)
        if (tensor.dims[index] < 1)
            return dnn_fail(CUDNN_STATUS_BAD_PARAM, "tensor: dimension %d is %lld", index, (long long)tensor.dims[index]);
    return CUDNN_STATUS_SUCCESS;
}

static dnn_status check_convolution_parameters(const backend_body *body) {
    static const int lists[] = {ATTRIBUTE_CONVOLUTION_PADDINGS, ATTRIBUTE_CONVOLUTION_POST_PADDINGS,
                                ATTRIBUTE_CONVOLUTION_STRIDES, ATTRIBUTE_CONVOLUTION_DILATIONS};
    int64_t spatial_dims = backend_int64(body, ATTRIBUTE_CONVOLUTION_SPATIAL_DIMS);
    if (spatial_dims < 1 || spatial_dims > DNN_MAX_DIMS - 2)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "convolution: %lld spatial dimensions", (long long)spatial_dims);
    for (size_t index = 0; index < sizeof lists / sizeof *lists; index++)
        if (backend_count(body, lists[index]) != spatial_dims)
            return dnn_fail(CUDNN_STATUS_BAD_PARAM, "convolution: attribute %d has %lld values for %lld dimensions",
                            lists[index], (long long)backend_count(body, lists[index]), (long long)spatial_dims);
    int64_t count;
    const int64_t *strides = backend_int64s(body, ATTRIBUTE_CONVOLUTION_STRIDES, &count);
    const int64_t *dilations = backend_int64s(body, ATTRIBUTE_CONVOLUTION_DILATIONS, &count);
    for (int64_t index = 0; index < spatial_dims; index++)
        if (strides[index] < 1 || dilations[index] < 1)
            return dnn_fail(CUDNN_STATUS_BAD_PARAM, "convolution: stride %lld, dilation %lld", (long long)strides[index],
                            (long long)dilations[index]);
    return CUDNN_STATUS_SUCCESS;
}

static dnn_status check_convolution(const backend_body *body) {
    dnn_convolution_shape shape;
    if (!backend_convolution(body, &shape)) return dnn_fail(CUDNN_STATUS_BAD_PARAM, "convolution: x, w and y must be tensors");
    return dnn_convolution_check(&shape);
}

static dnn_status check_matmul(const backend_body *body) {
    dnn_tensor a, b, c;
    if (!backend_tensor(backend_child(body, ATTRIBUTE_MATMUL_A), &a) ||
        !backend_tensor(backend_child(body, ATTRIBUTE_MATMUL_B), &b) ||
        !backend_tensor(backend_child(body, ATTRIBUTE_MATMUL_C), &c) || a.rank < 2 || a.rank != b.rank || a.rank != c.rank)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "matmul: a, b and c must be tensors of as many dimensions, at least 2");
    int rows = a.rank - 2, columns = a.rank - 1;
    if (a.dims[columns] != b.dims[rows] || a.dims[rows] != c.dims[rows] || b.dims[columns] != c.dims[columns])
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "matmul: %lldx%lld times %lldx%lld is not %lldx%lld",
                        (long long)a.dims[rows], (long long)a.dims[columns], (long long)b.dims[rows],
                        (long long)b.dims[columns], (long long)c.dims[rows], (long long)c.dims[columns]);
    return CUDNN_STATUS_SUCCESS;
}

static dnn_status check_graph(const backend_body *body) {
    int64_t count = backend_count(body, ATTRIBUTE_GRAPH_OPERATIONS);
    if (count < 1) return dnn_fail(CUDNN_STATUS_BAD_PARAM, "operation graph: no operations");
    for (int64_t index = 0; index < count; index++) {
        const backend_body *operation = backend_child_at(body, ATTRIBUTE_GRAPH_OPERATIONS, index);
        if (!backend_find_kind(operation->kind)->is_operation)
            return dnn_fail(CUDNN_STATUS_BAD_PARAM, "operation graph: descriptor %lld is of type %d and no operation",
                            (long long)index, operation->kind);
    }
    return CUDNN_STATUS_SUCCESS;
}

static dnn_status check_child(const backend_body *body, int name, int kind) {
    const backend_body *child = backend_child(body, name);
    if (!child || child->kind != kind)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "attribute %d must be a descriptor of type %d", name, kind);
    return CUDNN_STATUS_SUCCESS;
}

static dnn_status check_engine(const backend_body *body) {
    dnn_status status = check_child(body, ATTRIBUTE_ENGINE_GRAPH, KIND_OPERATION_GRAPH);
    if (status != CUDNN_STATUS_SUCCESS) return status;
    int64_t index = backend_int64(body, ATTRIBUTE_ENGINE_INDEX);
    int64_t count = backend_engine_count(backend_child(body, ATTRIBUTE_ENGINE_GRAPH));
    if (index < 0 || index >= count)
        return dnn_fail(CUDNN_STATUS_NOT_SUPPORTED, "engine %lld: the graph has %lld", (long long)index, (long long)count);
    return CUDNN_STATUS_SUCCESS;
}

static dnn_status check_variant_pack(const backend_body *body) {
    int64_t ids = backend_count(body, ATTRIBUTE_PACK_IDS), pointers = backend_count(body, ATTRIBUTE_PACK_POINTERS);
    if (ids != pointers)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "variant pack: %lld pointers for %lld tensors", (long long)pointers,
                        (long long)ids);
    return CUDNN_STATUS_SUCCESS;
}

dnn_status backend_check(const backend_body *body) {
    dnn_status status = check_required(body);
    if (status != CUDNN_STATUS_SUCCESS) return status;
    switch (body->kind) {
        case KIND_TENSOR: return check_tensor(body);
        case KIND_CONVOLUTION: return check_convolution_parameters(body);
        case KIND_CONVOLUTION_FORWARD:
        case KIND_CONVOLUTION_BACKWARD_DATA:
        case KIND_CONVOLUTION_BACKWARD_FILTER: return check_convolution(body);
        case KIND_OPERATION_MATMUL: return check_matmul(body);
        case KIND_OPERATION_GRAPH: return check_graph(body);
        case KIND_ENGINE: return check_engine(body);
        case KIND_ENGINE_CONFIG: return check_child(body, ATTRIBUTE_CONFIG_ENGINE, KIND_ENGINE);
        case KIND_ENGINE_HEURISTICS: return check_child(body, ATTRIBUTE_HEURISTICS_GRAPH, KIND_OPERATION_GRAPH);
        case KIND_EXECUTION_PLAN: return check_child(body, ATTRIBUTE_PLAN_CONFIG, KIND_ENGINE_CONFIG);
        case KIND_VARIANT_PACK: return check_variant_pack(body);
        default: return CUDNN_STATUS_SUCCESS;
    }
}
