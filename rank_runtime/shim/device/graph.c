/* CUDA graphs: captured work, which runs at every launch.
 *
 * A graph is the list of its work in submission order, which is one valid order. A node's branch is the stream it was captured
 * on; captured event records and waits keep the order between branches. A launch runs the list in the launching stream and
 * records it with the streams of the capture: first one GRAPH_LAUNCH record, whose signature tells how many records follow,
 * then those, flagged. If the graph was captured on another stream than it is launched on, two events of its own order it after
 * the launching stream's earlier work and before its later work. */

#include "engine.h"
#include "vector.h"

#include <stdio.h>
#include <stdlib.h>

struct maya_graph_node {
    maya_command command;
    uint32_t stream_number;
    maya_graph_node *before; /* the previous node of the same branch */
};

struct maya_graph {
    uint32_t number;
    int references;
    uint32_t begins, ends; /* numbers of the events around a launch; 0: none was needed */
    MAYA_VECTOR(maya_graph_node *) nodes;
};

struct maya_capture {
    uint64_t id;
    maya_stream *origin;
    maya_graph *graph;
    maya_capture *next;
};

static maya_capture *captures;
static uint64_t capture_count;
static uint32_t graph_count;
static __thread int thread_capture_mode;

/* ---- graphs ---- */

int maya_graph_create(maya_graph **graph) {
    maya_graph *made = calloc(1, sizeof *made);
    if (made == NULL) return CUDA_OUT_OF_MEMORY;
    made->number = __atomic_add_fetch(&graph_count, 1, __ATOMIC_RELAXED);
    made->references = 1;
    *graph = made;
    return CUDA_OK;
}

void maya_graph_retain(maya_graph *graph) { __atomic_add_fetch(&graph->references, 1, __ATOMIC_RELAXED); }

int maya_graph_release(maya_graph *graph) {
    if (graph == NULL) return CUDA_INVALID_VALUE;
    if (__atomic_sub_fetch(&graph->references, 1, __ATOMIC_ACQ_REL) > 0) return CUDA_OK;
    for (size_t i = 0; i < graph->nodes.count; i++) {
        maya_graph_node *node = graph->nodes.items[i];
        if (node->command.release) node->command.release(node->command.argument);
        free(node);
    }
    free(graph->nodes.items);
    free(graph);
    return CUDA_OK;
}

static maya_graph_node *last_node_of(const maya_graph *graph, uint32_t stream_number) {
    for (size_t i = graph->nodes.count; i > 0; i--) {
        if (graph->nodes.items[i - 1]->stream_number == stream_number) return graph->nodes.items[i - 1];
    }
    return NULL;
}

static void append(maya_graph *graph, const maya_command *command, uint32_t stream_number) {
    maya_graph_node *node = must_alloc(malloc(sizeof *node));
    maya_graph_node *before = graph->nodes.count ? graph->nodes.items[graph->nodes.count - 1] : NULL;
    if (before && before->stream_number != stream_number) before = last_node_of(graph, stream_number);
    *node = (maya_graph_node){.command = *command, .stream_number = stream_number, .before = before};
    *maya_vector_add(&graph->nodes) = node;
}

void maya_graph_keep(maya_graph *graph, void (*release)(void *), void *argument) {
    maya_command command = {.release = release, .argument = argument, .unrecorded = true};
    append(graph, &command, 0);
}

static bool is_node(const maya_graph_node *node) { return !node->command.unrecorded; }

size_t maya_graph_nodes(const maya_graph *graph, maya_graph_node **nodes, size_t room) {
    size_t count = 0;
    for (size_t i = 0; i < graph->nodes.count; i++) {
        if (!is_node(graph->nodes.items[i])) continue;
        if (nodes && count < room) nodes[count] = graph->nodes.items[i];
        count++;
    }
    return count;
}

maya_graph_node *maya_graph_node_before(const maya_graph_node *node) { return node->before; }

int maya_graph_node_kind(const maya_graph_node *node) { return (int)node->command.kind; }

/* The stream that the capture began on: every branch has come from it and goes back to it. */
static const maya_graph_node *first_node(const maya_graph *graph) {
    for (size_t i = 0; i < graph->nodes.count; i++) {
        if (is_node(graph->nodes.items[i])) return graph->nodes.items[i];
    }
    return NULL;
}

/* Records that `after` waits for an event of `before`; the launch itself runs in a single stream. */
static int record_order(maya_stream *stream, uint32_t event, uint32_t before, uint32_t after) {
    maya_command record = {.kind = MAYA_RECORD_EVENT_RECORD, .value = event, .flags = MAYA_FLAG_FROM_GRAPH};
    maya_command wait = {.kind = MAYA_RECORD_STREAM_WAIT, .value = event, .flags = MAYA_FLAG_FROM_GRAPH};
    int status = maya_submit_to(stream, &record, before);
    return status == CUDA_OK ? maya_submit_to(stream, &wait, after) : status;
}

int maya_graph_launch(maya_graph *graph, void *handle) {
    MAYA_OWN_TIME;
    maya_stream *stream = maya_stream_resolve(handle);
    const maya_graph_node *first = first_node(graph);
    bool elsewhere = first && first->stream_number != stream->number && stream->capture == NULL;
    size_t records = maya_graph_nodes(graph, NULL, 0) + (elsewhere ? 4 : 0);
    char text[64];
    int length = snprintf(text, sizeof text, "{\"graph\":%u,\"records\":%zu}", graph->number, records);
    maya_command launch = {
        .kind = MAYA_RECORD_GRAPH_LAUNCH, .signature = maya_intern(text, (size_t)length), .value = graph->number};
    int status = maya_submit_to(stream, &launch, stream->number);
    if (elsewhere && graph->begins == 0) {
        graph->begins = maya_new_event_number();
        graph->ends = maya_new_event_number();
    }
    if (elsewhere && status == CUDA_OK) status = record_order(stream, graph->begins, stream->number, first->stream_number);
    for (size_t i = 0; status == CUDA_OK && i < graph->nodes.count; i++) {
        maya_command command = graph->nodes.items[i]->command;
        command.release = NULL; /* the graph keeps it for the next launch */
        command.flags |= MAYA_FLAG_FROM_GRAPH;
        if (command.renew) command.renew(&command);
        status = maya_submit_to(stream, &command, graph->nodes.items[i]->stream_number);
    }
    if (elsewhere && status == CUDA_OK) status = record_order(stream, graph->ends, first->stream_number, stream->number);
    return status;
}

/* ---- capture ---- */

bool maya_captures_exist(void) { return __atomic_load_n(&captures, __ATOMIC_RELAXED) != NULL; }

uint64_t maya_capture_id(const maya_capture *capture) { return capture->id; }

bool maya_capture_is_alive(const maya_capture *capture, uint64_t id) {
    for (const maya_capture *alive = captures; alive; alive = alive->next) {
        if (alive == capture) return alive->id == id;
    }
    return false;
}

void maya_capture_append(maya_stream *stream, const maya_command *command, uint32_t record_as) {
    append(stream->capture->graph, command, record_as);
}

void maya_capture_join(maya_stream *stream, maya_capture *capture) {
    if (stream->capture == NULL) stream->capture = capture;
}

int maya_capture_begin(void *handle, int mode, maya_graph *into) {
    if (mode < MAYA_CAPTURE_GLOBAL || mode > MAYA_CAPTURE_RELAXED) return CUDA_INVALID_VALUE;
    if ((uintptr_t)handle <= 1) return CUDA_CAPTURE_UNSUPPORTED; /* the legacy stream cannot be captured */
    maya_stream *stream = maya_stream_resolve(handle);
    if (stream->capture) return CUDA_CAPTURE_UNSUPPORTED;
    maya_capture *capture = calloc(1, sizeof *capture);
    maya_graph *graph = into;
    if (capture == NULL || (graph == NULL && maya_graph_create(&graph) != CUDA_OK)) {
        free(capture);
        return CUDA_OUT_OF_MEMORY;
    }
    if (into) maya_graph_retain(into);
    pthread_mutex_lock(&maya_engine_lock);
    *capture = (maya_capture){.id = ++capture_count, .origin = stream, .graph = graph, .next = captures};
    captures = capture;
    stream->capture = capture;
    pthread_mutex_unlock(&maya_engine_lock);
    return CUDA_OK;
}

int maya_capture_end(void *handle, maya_graph **graph) {
    maya_stream *stream = maya_stream_resolve(handle);
    pthread_mutex_lock(&maya_engine_lock);
    maya_capture *capture = stream->capture;
    if (capture == NULL || capture->origin != stream) {
        pthread_mutex_unlock(&maya_engine_lock);
        return CUDA_INVALID_VALUE;
    }
    for (maya_capture **link = &captures; *link; link = &(*link)->next) {
        if (*link != capture) continue;
        *link = capture->next;
        break;
    }
    maya_streams_leave_capture(capture);
    pthread_mutex_unlock(&maya_engine_lock);
    *graph = capture->graph;
    free(capture);
    return CUDA_OK;
}

int maya_capture_info_of(void *handle, maya_capture_info *info) {
    static __thread maya_graph_node *last;
    *info = (maya_capture_info){.status = MAYA_CAPTURE_NONE};
    maya_stream *stream = maya_stream_resolve(handle);
    pthread_mutex_lock(&maya_engine_lock);
    if (stream->capture) {
        last = last_node_of(stream->capture->graph, stream->number);
        *info = (maya_capture_info){
            .status = MAYA_CAPTURE_ACTIVE,
            .id = stream->capture->id,
            .graph = stream->capture->graph,
            .dependencies = &last,
            .dependency_count = last ? 1 : 0,
        };
    }
    pthread_mutex_unlock(&maya_engine_lock);
    return CUDA_OK;
}

int maya_capture_exchange_mode(int *mode) {
    int before = thread_capture_mode;
    if (*mode < MAYA_CAPTURE_GLOBAL || *mode > MAYA_CAPTURE_RELAXED) return CUDA_INVALID_VALUE;
    thread_capture_mode = *mode;
    *mode = before;
    return CUDA_OK;
}
