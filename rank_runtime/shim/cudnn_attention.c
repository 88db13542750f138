/* Attention, recognised among the operations of a graph.
 *
 * It arrives in one of two forms. Newer versions have one operation for it, with a subgraph of pointwise operations
 * on the scores. Otherwise the graph contains the single steps: the forward pass two matmuls with a softmax between
 * them; the backward pass five matmuls, two of which multiply tensors in memory: Q by transposed K, and dO by
 * transposed V. Masks, bias and dropout are pointwise operations on the scores in between.
 */
#include "cudnn_backend.h"

/* cudnnPointwiseMode_t */
enum {
    POINTWISE_ADD = 0,
    POINTWISE_EXP = 13,
    POINTWISE_GREATER = 302,
    POINTWISE_GREATER_EQUAL = 303,
    POINTWISE_LESS = 304,
};

enum { FORWARD_MATMULS = 2, BACKWARD_MATMULS = 5 };

static bool is_virtual(const backend_body *tensor) { return backend_flag(tensor, ATTRIBUTE_TENSOR_IS_VIRTUAL); }

static bool in_memory(const backend_body *tensor) {
    return tensor && !is_virtual(tensor) && !backend_flag(tensor, ATTRIBUTE_TENSOR_IS_BY_VALUE);
}

static bool read_tensor(const backend_body *body, dnn_tensor *tensor) {
    return backend_tensor(body, tensor) && tensor->rank == 4;
}

static bool read_transposed(const backend_body *body, dnn_tensor *tensor) {
    if (!read_tensor(body, tensor)) return false;
    int64_t size = tensor->dims[2], stride = tensor->strides[2];
    tensor->dims[2] = tensor->dims[3];
    tensor->strides[2] = tensor->strides[3];
    tensor->dims[3] = size;
    tensor->strides[3] = stride;
    return true;
}

static int pointwise_mode(const backend_body *operation) {
    return backend_enum(backend_child(operation, ATTRIBUTE_OPERATION_POINTWISE), ATTRIBUTE_POINTWISE_MODE);
}

/* ---- pointwise operations on the scores ---- */

/* A bias is the only floating-point tensor in memory that is added to scores; sequence lengths are integers. */
static bool adds_bias(const backend_body *operation) {
    const backend_body *b = backend_child(operation, ATTRIBUTE_POINTWISE_B);
    int type = backend_enum(b, ATTRIBUTE_TENSOR_TYPE);
    return in_memory(b) && is_virtual(backend_child(operation, ATTRIBUTE_POINTWISE_X)) && type != CUDNN_DATA_INT32 &&
           type != CUDNN_DATA_INT64;
}

/* Row index against column index bounds the band on the right (causal) or on the left; an index against a length in
 * memory is padding. */
static void note_pointwise(attention_problem *problem, const backend_body *operation) {
    const backend_body *b = backend_child(operation, ATTRIBUTE_POINTWISE_B);
    bool compares_indices = b && is_virtual(b);
    switch (pointwise_mode(operation)) {
        case POINTWISE_GREATER_EQUAL: problem->causal |= compares_indices; break;
        case POINTWISE_GREATER: problem->window |= compares_indices; break;
        case POINTWISE_LESS:
            problem->window |= compares_indices;
            problem->padding |= in_memory(b);
            break;
        case POINTWISE_ADD: problem->bias |= adds_bias(operation); break;
    }
    if (!problem->backward && in_memory(backend_child(operation, ATTRIBUTE_POINTWISE_Y))) problem->stats = true;
}

static void note_operation(attention_problem *problem, const backend_body *operation) {
    switch (operation->kind) {
        case KIND_OPERATION_POINTWISE: note_pointwise(problem, operation); break;
        case KIND_DIAGONAL_BAND_MASK:
            if (backend_enum(operation, ATTRIBUTE_MASK_COMPARISON) == POINTWISE_GREATER_EQUAL) problem->causal = true;
            else problem->window = true;
            break;
        case KIND_OPERATION_MATMUL:
            problem->padding |=
                backend_child(operation, ATTRIBUTE_MATMUL_M_OVERRIDE) || backend_child(operation, ATTRIBUTE_MATMUL_N_OVERRIDE);
            break;
        case KIND_OPERATION_RNG:
            problem->dropout =
                1 - backend_number(backend_child(operation, ATTRIBUTE_OPERATION_RANDOM), ATTRIBUTE_RANDOM_PROBABILITY);
            break;
        case KIND_PAGED_CACHE_LOAD: problem->paged = true; break;
        case KIND_SOFTMAX: problem->stats |= backend_child(operation, ATTRIBUTE_SOFTMAX_STATS) != NULL; break;
    }
}

static void note_operations(attention_problem *problem, const backend_body *graph) {
    for (int64_t index = 0; index < backend_count(graph, ATTRIBUTE_GRAPH_OPERATIONS); index++)
        note_operation(problem, backend_child_at(graph, ATTRIBUTE_GRAPH_OPERATIONS, index));
}

/* ---- one operation ---- */

static bool find_unified(const backend_body *operation, attention_problem *problem) {
    bool backward = operation->kind == KIND_ATTENTION_BACKWARD;
    const backend_body *q = backend_child(operation, backward ? ATTRIBUTE_ATTENTION_BACKWARD_Q : ATTRIBUTE_ATTENTION_Q);
    const backend_body *k = backend_child(operation, backward ? ATTRIBUTE_ATTENTION_BACKWARD_K : ATTRIBUTE_ATTENTION_K);
    const backend_body *v = backend_child(operation, backward ? ATTRIBUTE_ATTENTION_BACKWARD_V : ATTRIBUTE_ATTENTION_V);
    *problem = (attention_problem){.backward = backward, .stats = backward};
    if (!read_tensor(q, &problem->q) || !read_tensor(k, &problem->k) || !read_tensor(v, &problem->v)) return false;
    problem->ragged = backend_count(q, ATTRIBUTE_TENSOR_RAGGED_OFFSET) > 0;
    if (backward) {
        problem->padding = backend_child(operation, ATTRIBUTE_ATTENTION_BACKWARD_LENGTH_Q) ||
                           backend_child(operation, ATTRIBUTE_ATTENTION_BACKWARD_LENGTH_KV);
        note_operations(problem, backend_child(operation, ATTRIBUTE_ATTENTION_BACKWARD_SUBGRAPH));
        return true;
    }
    const backend_body *softmax = backend_child(operation, ATTRIBUTE_ATTENTION_SOFTMAX);
    problem->stats = backend_child(operation, ATTRIBUTE_ATTENTION_STATS) || backend_child(softmax, ATTRIBUTE_SOFTMAX_STATS);
    problem->paged = backend_child(operation, ATTRIBUTE_ATTENTION_PAGE_TABLE) != NULL;
    problem->padding = backend_child(operation, ATTRIBUTE_ATTENTION_LENGTH_Q) ||
                       backend_child(operation, ATTRIBUTE_ATTENTION_LENGTH_KV) ||
                       backend_child(operation, ATTRIBUTE_ATTENTION_CUMULATIVE_LENGTH_Q) ||
                       backend_child(operation, ATTRIBUTE_ATTENTION_CUMULATIVE_LENGTH_KV);
    problem->dropout = backend_number(operation, ATTRIBUTE_ATTENTION_DROPOUT);
    note_operations(problem, backend_child(operation, ATTRIBUTE_ATTENTION_SUBGRAPH));
    return true;
}

/* ---- many operations ---- */

static bool multiplies_memory(const backend_body *matmul) {
    return in_memory(backend_child(matmul, ATTRIBUTE_MATMUL_A)) && in_memory(backend_child(matmul, ATTRIBUTE_MATMUL_B));
}

/* Finds the matmuls of a graph that also has a softmax; returns 0 for all other graphs. */
static int find_matmuls(const backend_body *graph, const backend_body *matmuls[BACKWARD_MATMULS]) {
    int count = 0;
    bool has_softmax = false;
    for (int64_t index = 0; index < backend_count(graph, ATTRIBUTE_GRAPH_OPERATIONS); index++) {
        const backend_body *operation = backend_child_at(graph, ATTRIBUTE_GRAPH_OPERATIONS, index);
        has_softmax |= operation->kind == KIND_SOFTMAX ||
                       (operation->kind == KIND_OPERATION_POINTWISE && pointwise_mode(operation) == POINTWISE_EXP);
        if (operation->kind != KIND_OPERATION_MATMUL) continue;
        if (count == BACKWARD_MATMULS) return 0;
        matmuls[count++] = operation;
    }
    return has_softmax ? count : 0;
}

static bool find_composite_forward(const backend_body *matmuls[], attention_problem *problem) {
    const backend_body *scores = matmuls[0], *values = matmuls[1];
    return is_virtual(backend_child(scores, ATTRIBUTE_MATMUL_C)) && is_virtual(backend_child(values, ATTRIBUTE_MATMUL_A)) &&
           read_tensor(backend_child(scores, ATTRIBUTE_MATMUL_A), &problem->q) &&
           read_transposed(backend_child(scores, ATTRIBUTE_MATMUL_B), &problem->k) &&
           read_tensor(backend_child(values, ATTRIBUTE_MATMUL_B), &problem->v);
}

static bool find_composite_backward(const backend_body *matmuls[], attention_problem *problem) {
    const backend_body *scores = NULL, *gradients = NULL;
    for (int index = 0; index < BACKWARD_MATMULS; index++) {
        if (!multiplies_memory(matmuls[index])) continue;
        if (!scores) scores = matmuls[index];
        else if (!gradients) gradients = matmuls[index];
    }
    problem->backward = problem->stats = true;
    return gradients && read_tensor(backend_child(scores, ATTRIBUTE_MATMUL_A), &problem->q) &&
           read_transposed(backend_child(scores, ATTRIBUTE_MATMUL_B), &problem->k) &&
           read_transposed(backend_child(gradients, ATTRIBUTE_MATMUL_B), &problem->v);
}

static bool has_ragged_input(const backend_body *matmuls[], int count) {
    for (int index = 0; index < count; index++)
        if (backend_count(backend_child(matmuls[index], ATTRIBUTE_MATMUL_A), ATTRIBUTE_TENSOR_RAGGED_OFFSET)) return true;
    return false;
}

bool backend_find_attention(const backend_body *graph, attention_problem *problem) {
    const backend_body *first = backend_child(graph, ATTRIBUTE_GRAPH_OPERATIONS);
    if (first && (first->kind == KIND_ATTENTION_FORWARD || first->kind == KIND_ATTENTION_BACKWARD))
        return find_unified(first, problem);
    const backend_body *matmuls[BACKWARD_MATMULS];
    int count = find_matmuls(graph, matmuls);
    *problem = (attention_problem){0};
    bool found = (count == FORWARD_MATMULS && find_composite_forward(matmuls, problem)) ||
                 (count == BACKWARD_MATMULS && find_composite_backward(matmuls, problem));
    if (!found) return false;
    problem->ragged = has_ragged_input(matmuls, count);
    note_operations(problem, graph);
    return true;
}
