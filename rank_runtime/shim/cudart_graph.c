/* libcudart: stream capture and graphs. An executable graph is a further reference to the graph it was made from. */

#include "cudart_common.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- capture ---- */

MAYA_API cudaError_t cudaStreamBeginCapture(cudaStream_t stream, int mode) {
    return cudart_result(maya_capture_begin(stream, mode, NULL));
}

MAYA_API cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                                                   const void *edges, size_t count, int mode) {
    (void)dependencies; /* new nodes are appended after all nodes of the graph */
    (void)edges;
    (void)count;
    return cudart_result(maya_capture_begin(stream, mode, graph));
}

MAYA_API cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    return cudart_result(maya_capture_end(stream, graph));
}

MAYA_API cudaError_t cudaStreamIsCapturing(cudaStream_t stream, int *status) {
    *status = maya_stream_is_capturing(stream) ? MAYA_CAPTURE_ACTIVE : MAYA_CAPTURE_NONE;
    return CUDA_OK;
}

static void capture_info(cudaStream_t stream, int *status, unsigned long long *id, cudaGraph_t *graph,
                         cudaGraphNode_t const **dependencies, size_t *count) {
    maya_capture_info info;
    maya_capture_info_of(stream, &info);
    *status = info.status;
    if (id) *id = info.id;
    if (graph) *graph = info.graph;
    if (dependencies) *dependencies = info.dependencies;
    if (count) *count = info.dependency_count;
}

MAYA_API cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, int *status, unsigned long long *id, cudaGraph_t *graph,
                                                 cudaGraphNode_t const **dependencies, size_t *count) {
    capture_info(stream, status, id, graph, dependencies, count);
    return CUDA_OK;
}

MAYA_API cudaError_t cudaStreamGetCaptureInfo_v3(cudaStream_t stream, int *status, unsigned long long *id, cudaGraph_t *graph,
                                                 cudaGraphNode_t const **dependencies, const void **edges, size_t *count) {
    capture_info(stream, status, id, graph, dependencies, count);
    if (edges) *edges = NULL;
    return CUDA_OK;
}

#if MAYA_CUDA_VERSION >= 13000
MAYA_API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, int *status, unsigned long long *id, cudaGraph_t *graph,
                                              cudaGraphNode_t const **dependencies, const void **edges, size_t *count) {
    return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, edges, count);
}
#else
MAYA_API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, int *status, unsigned long long *id) {
    capture_info(stream, status, id, NULL, NULL, NULL);
    return CUDA_OK;
}
#endif

MAYA_API cudaError_t cudaThreadExchangeStreamCaptureMode(int *mode) { return cudart_result(maya_capture_exchange_mode(mode)); }

/* ---- graphs ---- */

MAYA_API cudaError_t cudaGraphCreate(cudaGraph_t *graph, unsigned flags) {
    (void)flags;
    return cudart_result(maya_graph_create(graph));
}

MAYA_API cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return cudart_result(maya_graph_release(graph)); }

static cudaError_t instantiate(cudaGraphExec_t *executable, cudaGraph_t graph) {
    if (graph == NULL) return cudart_result(CUDA_INVALID_VALUE);
    maya_graph_retain(graph);
    *executable = graph;
    return CUDA_OK;
}

/* Since CUDA 12; torch 2.8 and later call nothing older. */
MAYA_API cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags) {
    (void)flags;
    return instantiate(executable, graph);
}

MAYA_API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags) {
    (void)flags;
    return instantiate(executable, graph);
}

MAYA_API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) { return cudart_result(maya_graph_release(executable)); }

MAYA_API cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    return cudart_result(maya_graph_launch(executable, stream));
}

MAYA_API cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream) {
    (void)executable;
    (void)stream;
    return CUDA_OK;
}

MAYA_API cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    size_t have = maya_graph_nodes(graph, nodes, nodes ? *count : 0);
    if (nodes == NULL || *count > have) *count = have;
    return CUDA_OK;
}

static void dependencies_of(cudaGraphNode_t node, cudaGraphNode_t *dependencies, size_t *count) {
    cudaGraphNode_t before = maya_graph_node_before(node);
    if (dependencies && before && *count > 0) dependencies[0] = before;
    *count = before ? 1 : 0;
}

#if MAYA_CUDA_VERSION >= 13000
MAYA_API cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *dependencies, void *edges,
                                                  size_t *count) {
    (void)edges;
    dependencies_of(node, dependencies, count);
    return CUDA_OK;
}
#else
MAYA_API cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *dependencies, size_t *count) {
    dependencies_of(node, dependencies, count);
    return CUDA_OK;
}
#endif

MAYA_API cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, int *type) {
    enum { NODE_KERNEL = 0, NODE_MEMCPY = 1, NODE_MEMSET = 2, NODE_HOST = 3, NODE_WAIT_EVENT = 6, NODE_EVENT_RECORD = 7 };
    switch (maya_graph_node_kind(node)) {
        case MAYA_RECORD_MEMCPY: *type = NODE_MEMCPY; break;
        case MAYA_RECORD_MEMSET: *type = NODE_MEMSET; break;
        case MAYA_RECORD_HOST_FUNCTION: *type = NODE_HOST; break;
        case MAYA_RECORD_STREAM_WAIT: *type = NODE_WAIT_EVENT; break;
        case MAYA_RECORD_EVENT_RECORD: *type = NODE_EVENT_RECORD; break;
        default: *type = NODE_KERNEL; break;
    }
    return CUDA_OK;
}

/* Graphviz text: one node per line, an edge to its predecessor. */
MAYA_API cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char *path, unsigned flags) {
    (void)flags;
    FILE *file = fopen(path, "w");
    if (file == NULL) return cudart_result(CUDA_INVALID_VALUE);
    size_t count = maya_graph_nodes(graph, NULL, 0);
    cudaGraphNode_t *nodes = malloc((count + 1) * sizeof *nodes);
    if (nodes == NULL) abort();
    maya_graph_nodes(graph, nodes, count);
    fprintf(file, "digraph graph_ {\n");
    for (size_t i = 0; i < count; i++) {
        fprintf(file, "  \"%p\" [label=\"%zu kind %d\"];\n", (void *)nodes[i], i, maya_graph_node_kind(nodes[i]));
        cudaGraphNode_t before = maya_graph_node_before(nodes[i]);
        if (before) fprintf(file, "  \"%p\" -> \"%p\";\n", (void *)before, (void *)nodes[i]);
    }
    fprintf(file, "}\n");
    free(nodes);
    return fclose(file) == 0 ? CUDA_OK : cudart_result(CUDA_INVALID_VALUE);
}

/* ---- user objects: destructors tied to a graph's life ---- */

typedef struct {
    void *argument;
    void (*destroy)(void *);
    int references;
} user_object;

static void release_object(void *argument) {
    user_object *object = argument;
    if (__atomic_sub_fetch(&object->references, 1, __ATOMIC_ACQ_REL) > 0) return;
    object->destroy(object->argument);
    free(object);
}

MAYA_API cudaError_t cudaUserObjectCreate(user_object **object, void *argument, void (*destroy)(void *), unsigned references,
                                          unsigned flags) {
    (void)flags;
    *object = malloc(sizeof **object);
    if (*object == NULL) return cudart_result(CUDA_OUT_OF_MEMORY);
    **object = (user_object){argument, destroy, (int)references};
    return CUDA_OK;
}

MAYA_API cudaError_t cudaUserObjectRelease(user_object *object, unsigned count) {
    for (unsigned i = 0; i < count; i++) release_object(object);
    return CUDA_OK;
}

MAYA_API cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, user_object *object, unsigned count, unsigned flags) {
    enum { MOVE = 1 };
    if (!(flags & MOVE)) __atomic_add_fetch(&object->references, (int)count, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < count; i++) maya_graph_keep(graph, release_object, object);
    return CUDA_OK;
}
