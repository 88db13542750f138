/* Engines, heuristics and execution plans.
 *
 * cuDNN offers dozens of engines for a graph, each a family of kernels. Here a graph has one or two: engine 0 uses
 * tensor cores where the virtual GPU has them for the graph's operands, and engine 1, for convolutions and matmuls
 * in fp32, does not. Callers act on this difference only: torch drops tensor-core engines for fp32
 * unless TF32 is allowed. Engines have no knobs, no preferred layouts and no intermediates.
 */
#include "cudnn_backend.h"

enum { NOTE_TENSOR_CORE = 0 };         /* cudnnBackendNumericalNote_t */
enum { HEURISTICS_MODE_FALLBACK = 2 }; /* cudnnBackendHeurMode_t */

/* The properties of a graph that determine its engines. */
typedef struct {
    int operand_type;      /* type of the operands of its convolution, matmul or attention; -1: it has none */
    bool has_plain_engine; /* engine 1 */
} graph_profile;

static bool is_matmul(const backend_body *operation, dnn_tensor *a) {
    return operation->kind == KIND_OPERATION_MATMUL && backend_tensor(backend_child(operation, ATTRIBUTE_MATMUL_A), a);
}

static graph_profile profile_of(const backend_body *graph) {
    attention_problem attention;
    if (backend_find_attention(graph, &attention)) return (graph_profile){.operand_type = attention.q.type};
    for (int64_t index = 0; index < backend_count(graph, ATTRIBUTE_GRAPH_OPERATIONS); index++) {
        const backend_body *operation = backend_child_at(graph, ATTRIBUTE_GRAPH_OPERATIONS, index);
        dnn_convolution_shape shape;
        dnn_tensor a;
        int type = backend_convolution(operation, &shape) ? shape.x.type : is_matmul(operation, &a) ? a.type : -1;
        if (type >= 0)
            return (graph_profile){.operand_type = type,
                                   .has_plain_engine = type == CUDNN_DATA_FLOAT && dnn_device_has_tensor_cores_for(type)};
    }
    return (graph_profile){.operand_type = -1};
}

int64_t backend_engine_count(const backend_body *graph) { return profile_of(graph).has_plain_engine ? 2 : 1; }

static bool uses_tensor_cores(const graph_profile *profile, int64_t engine) {
    return engine == 0 && dnn_device_has_tensor_cores_for(profile->operand_type);
}

/* Estimates: see dnn_convolution_workspace(); the backward pass of attention adds up dQ in fp32. */
static int64_t workspace_of(const backend_body *graph, bool tensor_cores) {
    attention_problem attention;
    if (backend_find_attention(graph, &attention))
        return attention.backward ? dnn_tensor_elements(&attention.q) * (int64_t)sizeof(float) : 0;
    int64_t bytes = 0;
    for (int64_t index = 0; index < backend_count(graph, ATTRIBUTE_GRAPH_OPERATIONS); index++) {
        dnn_convolution_shape shape;
        if (backend_convolution(backend_child_at(graph, ATTRIBUTE_GRAPH_OPERATIONS, index), &shape))
            bytes += dnn_convolution_workspace(&shape, tensor_cores);
    }
    return bytes;
}

static int64_t config_workspace(const backend_body *config) {
    const backend_body *engine = backend_child(config, ATTRIBUTE_CONFIG_ENGINE);
    const backend_body *graph = backend_child(engine, ATTRIBUTE_ENGINE_GRAPH);
    graph_profile profile = profile_of(graph);
    return workspace_of(graph, uses_tensor_cores(&profile, backend_int64(engine, ATTRIBUTE_ENGINE_INDEX)));
}

/* ---- plans ---- */

static void add_tensor_id(backend_plan *plan, const backend_body *tensor) {
    if (tensor->kind != KIND_TENSOR || backend_flag(tensor, ATTRIBUTE_TENSOR_IS_VIRTUAL) ||
        backend_flag(tensor, ATTRIBUTE_TENSOR_IS_BY_VALUE))
        return;
    int64_t id = backend_int64(tensor, ATTRIBUTE_TENSOR_ID);
    for (size_t index = 0; index < plan->tensor_ids.count; index++)
        if (plan->tensor_ids.items[index] == id) return;
    *maya_vector_add(&plan->tensor_ids) = id;
}

/* The tensors in memory that the graph's operations read or write. */
static void collect_tensor_ids(backend_plan *plan, const backend_body *graph) {
    for (int64_t index = 0; index < backend_count(graph, ATTRIBUTE_GRAPH_OPERATIONS); index++) {
        const backend_body *operation = backend_child_at(graph, ATTRIBUTE_GRAPH_OPERATIONS, index);
        for (size_t place = 0; place < operation->attributes.count; place++) {
            const backend_body *child = backend_child(operation, operation->attributes.items[place].name);
            if (child) add_tensor_id(plan, child);
        }
    }
}

dnn_status backend_prepare_plan(backend_body *body) {
    const backend_body *config = backend_child(body, ATTRIBUTE_PLAN_CONFIG);
    const backend_body *engine = backend_child(config, ATTRIBUTE_CONFIG_ENGINE);
    const backend_body *graph = backend_child(engine, ATTRIBUTE_ENGINE_GRAPH);
    graph_profile profile = profile_of(graph);
    bool tensor_cores = uses_tensor_cores(&profile, backend_int64(engine, ATTRIBUTE_ENGINE_INDEX));
    backend_plan *plan = &body->plan;
    plan->workspace = config_workspace(config);

    dnn_text text = {0};
    dnn_text_append(&text, "{\"call\":\"cudnnBackendExecute\"");
    backend_describe_graph(&text, graph);
    if (profile.operand_type >= 0)
        dnn_text_append(&text, ",\"math\":\"%s\",\"tensor_cores\":%s", dnn_math_name(profile.operand_type, tensor_cores),
                        tensor_cores ? "true" : "false");
    dnn_text_append(&text, "}");
    bool complete = !text.failed;
    if (complete) plan->signature = maya_intern(text.data, text.length);
    free(text.data);
    collect_tensor_ids(plan, graph);
    return complete ? CUDNN_STATUS_SUCCESS : dnn_fail(CUDNN_STATUS_HOST_ALLOCATION_FAILED, "no memory for an execution plan");
}

/* ---- computed attributes ---- */

/* A finalized engine config for engine `index` of the graph; NULL: out of memory. */
static backend_body *make_config(const backend_body *graph, int64_t index) {
    backend_body *engine = backend_body_create(KIND_ENGINE);
    backend_body *config = backend_body_create(KIND_ENGINE_CONFIG);
    bool made = engine && config &&
                backend_set(engine, ATTRIBUTE_ENGINE_GRAPH, TYPE_DESCRIPTOR, 1, &graph) == CUDNN_STATUS_SUCCESS &&
                backend_set(engine, ATTRIBUTE_ENGINE_INDEX, TYPE_INT64, 1, &index) == CUDNN_STATUS_SUCCESS &&
                backend_set(config, ATTRIBUTE_CONFIG_ENGINE, TYPE_DESCRIPTOR, 1, &engine) == CUDNN_STATUS_SUCCESS;
    if (made) engine->finalized = config->finalized = true;
    backend_body_release(engine);
    if (made) return config;
    backend_body_release(config);
    return NULL;
}

/* The fallback is the engine that works everywhere; all other modes rank all engines, the fastest first. */
static dnn_status tell_heuristics(const backend_body *heuristics, int64_t requested, int64_t *count, void **descriptors) {
    const backend_body *graph = backend_child(heuristics, ATTRIBUTE_HEURISTICS_GRAPH);
    int64_t engines = backend_engine_count(graph);
    bool fallback = backend_enum(heuristics, ATTRIBUTE_HEURISTICS_MODE) == HEURISTICS_MODE_FALLBACK;
    int64_t first = fallback ? engines - 1 : 0;
    int64_t available = engines - first;
    int64_t written = requested < available ? requested : available;
    if (count) *count = descriptors ? written : available;
    for (int64_t index = 0; descriptors && index < written; index++) {
        backend_body *config = make_config(graph, first + index);
        if (!config) return dnn_fail(CUDNN_STATUS_HOST_ALLOCATION_FAILED, "no memory for an engine config");
        dnn_status status = backend_fill(descriptors[index], config);
        backend_body_release(config);
        if (status != CUDNN_STATUS_SUCCESS) return status;
    }
    return CUDNN_STATUS_SUCCESS;
}

static dnn_status tell_notes(const backend_body *engine, int64_t requested, int64_t *count, void *values) {
    graph_profile profile = profile_of(backend_child(engine, ATTRIBUTE_ENGINE_GRAPH));
    int note = NOTE_TENSOR_CORE;
    bool noted = uses_tensor_cores(&profile, backend_int64(engine, ATTRIBUTE_ENGINE_INDEX));
    return backend_answer(&note, TYPE_NUMERICAL_NOTE, noted ? 1 : 0, requested, count, values);
}

/* cuDNN's text is not documented; callers only compare it and pass it back. */
static dnn_status tell_device(int64_t requested, int64_t *count, void *values) {
    const maya_device_properties *device = &maya_get_settings()->device;
    dnn_text text = {0};
    dnn_text_append(&text, "{\"name\":\"%s\",\"compute_capability\":%d,\"sm_count\":%d}", device->name,
                    device->compute_major * 10 + device->compute_minor, device->sm_count);
    dnn_status status = backend_answer(text.data, TYPE_CHAR, (int64_t)text.length, requested, count, values);
    free(text.data);
    return text.failed ? dnn_fail(CUDNN_STATUS_HOST_ALLOCATION_FAILED, "no memory for a device's text") : status;
}

static int expected_type(int kind, int name) {
    switch (name) {
        case ATTRIBUTE_GRAPH_ENGINE_COUNT: return kind == KIND_OPERATION_GRAPH ? TYPE_INT64 : -1;
        case ATTRIBUTE_HEURISTICS_RESULTS: return kind == KIND_ENGINE_HEURISTICS ? TYPE_DESCRIPTOR : -1;
        case ATTRIBUTE_CONFIG_INTERMEDIATES: return kind == KIND_ENGINE_CONFIG ? TYPE_DESCRIPTOR : -1;
        case ATTRIBUTE_CONFIG_WORKSPACE: return kind == KIND_ENGINE_CONFIG ? TYPE_INT64 : -1;
        case ATTRIBUTE_CONFIG_SHARED_MEMORY: return kind == KIND_ENGINE_CONFIG ? TYPE_INT32 : -1;
        case ATTRIBUTE_PLAN_WORKSPACE:
        case ATTRIBUTE_PLAN_COMPUTED_INTERMEDIATES:
        case ATTRIBUTE_PLAN_RUN_ONLY_INTERMEDIATES: return kind == KIND_EXECUTION_PLAN ? TYPE_INT64 : -1;
        case ATTRIBUTE_ENGINE_KNOBS:
        case ATTRIBUTE_ENGINE_LAYOUTS: return kind == KIND_ENGINE ? TYPE_DESCRIPTOR : -1;
        case ATTRIBUTE_ENGINE_NUMERICAL_NOTES: return kind == KIND_ENGINE ? TYPE_NUMERICAL_NOTE : -1;
        case ATTRIBUTE_ENGINE_BEHAVIOR_NOTES: return kind == KIND_ENGINE ? TYPE_BEHAVIOR_NOTE : -1;
        case ATTRIBUTE_DEVICE_TEXT: return kind == KIND_DEVICE_PROPERTIES ? TYPE_CHAR : -1;
        default: return -1;
    }
}

dnn_status backend_get_computed(const backend_body *body, int name, int type, int64_t requested, int64_t *count, void *values,
                                bool *answered) {
    int expected = expected_type(body->kind, name);
    *answered = expected >= 0;
    if (!*answered) return CUDNN_STATUS_SUCCESS;
    if (type != expected)
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "attribute %d has type %d, asked for as %d", name, expected,
                        type);
    int64_t number = 0;
    switch (name) {
        case ATTRIBUTE_HEURISTICS_RESULTS: return tell_heuristics(body, requested, count, values);
        case ATTRIBUTE_ENGINE_NUMERICAL_NOTES: return tell_notes(body, requested, count, values);
        case ATTRIBUTE_DEVICE_TEXT: return tell_device(requested, count, values);
        case ATTRIBUTE_GRAPH_ENGINE_COUNT: number = backend_engine_count(body); break;
        case ATTRIBUTE_CONFIG_WORKSPACE: number = config_workspace(body); break;
        case ATTRIBUTE_PLAN_WORKSPACE: number = body->plan.workspace; break;
        case ATTRIBUTE_CONFIG_SHARED_MEMORY: {
            int32_t shared_memory = (int32_t)maya_get_settings()->device.shared_per_block;
            return backend_answer(&shared_memory, type, 1, requested, count, values);
        }
        default: return backend_answer(NULL, type, 0, requested, count, values); /* knobs, layouts, intermediates: none */
    }
    return backend_answer(&number, type, 1, requested, count, values);
}
