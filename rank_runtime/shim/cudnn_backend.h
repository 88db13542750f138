/* Descriptors of cuDNN's backend (graph) interface.
 *
 * A descriptor is a set of typed attributes that is filled, finalized and then only read. The caller holds a thin
 * handle to a body; a finalized body never changes, so setting it as an attribute of another descriptor, or
 * filling one of the caller's descriptors with it, shares it and counts the reference.
 *
 *   cudnn_backend.c    the six functions of the interface, and the attribute store
 *   cudnn_kinds.c      which descriptors and attributes exist
 *   cudnn_finalize.c   checks of a descriptor when it is finalized
 *   cudnn_engine.c     engines, heuristics and plans: attributes that are computed instead of stored
 *   cudnn_graph.c      the signature of a graph of operations
 *   cudnn_attention.c  attention, recognised among a graph's operations
 */
#pragma once

#include "cudnn_convolution.h"
#include "device/vector.h"

#include <stdatomic.h>

/* cudnnBackendDescriptorType_t, as far as code refers to it by name */
enum {
    KIND_POINTWISE = 0,
    KIND_CONVOLUTION = 1,
    KIND_ENGINE = 2,
    KIND_ENGINE_CONFIG = 3,
    KIND_ENGINE_HEURISTICS = 4,
    KIND_EXECUTION_PLAN = 5,
    KIND_CONVOLUTION_FORWARD = 10,
    KIND_CONVOLUTION_BACKWARD_FILTER = 11,
    KIND_CONVOLUTION_BACKWARD_DATA = 12,
    KIND_OPERATION_POINTWISE = 13,
    KIND_OPERATION_GRAPH = 15,
    KIND_VARIANT_PACK = 16,
    KIND_TENSOR = 17,
    KIND_OPERATION_MATMUL = 19,
    KIND_OPERATION_REDUCTION = 22,
    KIND_OPERATION_RNG = 33,
    KIND_KERNEL_CACHE = 34,
    KIND_PAGED_CACHE_LOAD = 35,
    KIND_DEVICE_PROPERTIES = 38,
    KIND_ATTENTION_FORWARD = 41,
    KIND_ATTENTION_BACKWARD = 43,
    KIND_DIAGONAL_BAND_MASK = 44,
    KIND_SOFTMAX = 45,
};

/* cudnnBackendAttributeType_t */
enum {
    TYPE_HANDLE = 0,
    TYPE_DATA_TYPE = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INT64 = 3,
    TYPE_FLOAT = 4,
    TYPE_DOUBLE = 5,
    TYPE_POINTER = 6,
    TYPE_CONVOLUTION_MODE = 7,
    TYPE_HEURISTICS_MODE = 8,
    TYPE_KNOB = 9,
    TYPE_NAN_PROPAGATION = 10,
    TYPE_NUMERICAL_NOTE = 11,
    TYPE_LAYOUT = 12,
    TYPE_ATTRIBUTE_NAME = 13,
    TYPE_POINTWISE_MODE = 14,
    TYPE_DESCRIPTOR = 15,
    TYPE_STATISTICS_MODE = 16,
    TYPE_BATCH_NORM_FINALIZE_MODE = 17,
    TYPE_REDUCTION = 18,
    TYPE_BEHAVIOR_NOTE = 19,
    TYPE_REORDERING = 20,
    TYPE_RESAMPLE_MODE = 21,
    TYPE_PADDING_MODE = 22,
    TYPE_INT32 = 23,
    TYPE_CHAR = 24,
    TYPE_SIGNAL_MODE = 25,
    TYPE_FRACTION = 26,
    TYPE_NORM_MODE = 27,
    TYPE_NORM_PHASE = 28,
    TYPE_RANDOM_DISTRIBUTION = 29,
    TYPE_GROUPED_MATMUL_MODE = 30,
    TYPE_RESHAPE_MODE = 31,
    TYPE_GRAPH_MODE = 32,
};

/* cudnnBackendAttributeName_t, as far as code refers to it by name */
enum {
    ATTRIBUTE_POINTWISE_MODE = 0,
    ATTRIBUTE_CONVOLUTION_DILATIONS = 102,
    ATTRIBUTE_CONVOLUTION_STRIDES = 103,
    ATTRIBUTE_CONVOLUTION_POST_PADDINGS = 104,
    ATTRIBUTE_CONVOLUTION_PADDINGS = 105,
    ATTRIBUTE_CONVOLUTION_SPATIAL_DIMS = 106,
    ATTRIBUTE_HEURISTICS_MODE = 200,
    ATTRIBUTE_HEURISTICS_GRAPH = 201,
    ATTRIBUTE_HEURISTICS_RESULTS = 202,
    ATTRIBUTE_CONFIG_ENGINE = 300,
    ATTRIBUTE_CONFIG_INTERMEDIATES = 301,
    ATTRIBUTE_CONFIG_WORKSPACE = 303,
    ATTRIBUTE_CONFIG_SHARED_MEMORY = 304,
    ATTRIBUTE_PLAN_CONFIG = 401,
    ATTRIBUTE_PLAN_WORKSPACE = 402,
    ATTRIBUTE_PLAN_COMPUTED_INTERMEDIATES = 403,
    ATTRIBUTE_PLAN_RUN_ONLY_INTERMEDIATES = 404,
    ATTRIBUTE_FORWARD_CONVOLUTION = 702,
    ATTRIBUTE_FORWARD_W = 703,
    ATTRIBUTE_FORWARD_X = 704,
    ATTRIBUTE_FORWARD_Y = 705,
    ATTRIBUTE_BACKWARD_DATA_CONVOLUTION = 708,
    ATTRIBUTE_BACKWARD_DATA_W = 709,
    ATTRIBUTE_BACKWARD_DATA_X = 710,
    ATTRIBUTE_BACKWARD_DATA_Y = 711,
    ATTRIBUTE_BACKWARD_FILTER_CONVOLUTION = 714,
    ATTRIBUTE_BACKWARD_FILTER_W = 715,
    ATTRIBUTE_BACKWARD_FILTER_X = 716,
    ATTRIBUTE_BACKWARD_FILTER_Y = 717,
    ATTRIBUTE_OPERATION_POINTWISE = 750,
    ATTRIBUTE_POINTWISE_X = 751,
    ATTRIBUTE_POINTWISE_B = 752,
    ATTRIBUTE_POINTWISE_Y = 753,
    ATTRIBUTE_GRAPH_OPERATIONS = 801,
    ATTRIBUTE_GRAPH_ENGINE_COUNT = 802,
    ATTRIBUTE_TENSOR_TYPE = 901,
    ATTRIBUTE_TENSOR_DIMS = 902,
    ATTRIBUTE_TENSOR_STRIDES = 903,
    ATTRIBUTE_TENSOR_ID = 906,
    ATTRIBUTE_TENSOR_IS_VIRTUAL = 907,
    ATTRIBUTE_TENSOR_IS_BY_VALUE = 908,
    ATTRIBUTE_TENSOR_RAGGED_OFFSET = 913,
    ATTRIBUTE_PACK_IDS = 1000,
    ATTRIBUTE_PACK_POINTERS = 1001,
    ATTRIBUTE_PACK_WORKSPACE = 1003,
    ATTRIBUTE_ENGINE_GRAPH = 1300,
    ATTRIBUTE_ENGINE_INDEX = 1301,
    ATTRIBUTE_ENGINE_KNOBS = 1302,
    ATTRIBUTE_ENGINE_NUMERICAL_NOTES = 1303,
    ATTRIBUTE_ENGINE_LAYOUTS = 1304,
    ATTRIBUTE_ENGINE_BEHAVIOR_NOTES = 1305,
    ATTRIBUTE_MATMUL_A = 1520,
    ATTRIBUTE_MATMUL_B = 1521,
    ATTRIBUTE_MATMUL_C = 1522,
    ATTRIBUTE_MATMUL_M_OVERRIDE = 1525,
    ATTRIBUTE_MATMUL_N_OVERRIDE = 1526,
    ATTRIBUTE_REDUCTION_Y = 1611,
    ATTRIBUTE_RANDOM_PROBABILITY = 2305,
    ATTRIBUTE_OPERATION_RANDOM = 2312,
    ATTRIBUTE_DEVICE_TEXT = 2702,
    ATTRIBUTE_ATTENTION_Q = 2800,
    ATTRIBUTE_ATTENTION_K = 2801,
    ATTRIBUTE_ATTENTION_V = 2802,
    ATTRIBUTE_ATTENTION_STATS = 2804,
    ATTRIBUTE_ATTENTION_PAGE_TABLE = 2807,
    ATTRIBUTE_ATTENTION_LENGTH_Q = 2809,
    ATTRIBUTE_ATTENTION_LENGTH_KV = 2810,
    ATTRIBUTE_ATTENTION_SUBGRAPH = 2811,
    ATTRIBUTE_ATTENTION_SOFTMAX = 2814,
    ATTRIBUTE_ATTENTION_DROPOUT = 2818,
    ATTRIBUTE_ATTENTION_CUMULATIVE_LENGTH_Q = 2820,
    ATTRIBUTE_ATTENTION_CUMULATIVE_LENGTH_KV = 2821,
    ATTRIBUTE_ATTENTION_BACKWARD_Q = 2851,
    ATTRIBUTE_ATTENTION_BACKWARD_K = 2852,
    ATTRIBUTE_ATTENTION_BACKWARD_V = 2853,
    ATTRIBUTE_ATTENTION_BACKWARD_LENGTH_Q = 2857,
    ATTRIBUTE_ATTENTION_BACKWARD_LENGTH_KV = 2858,
    ATTRIBUTE_ATTENTION_BACKWARD_SUBGRAPH = 2867,
    ATTRIBUTE_MASK_COMPARISON = 3007,
    ATTRIBUTE_SOFTMAX_STATS = 3102,
};

/* ---- cudnn_kinds.c ---- */

enum {
    REQUIRED = 1,  /* finalizing without it fails */
    LIST = 2,      /* any number of values; none means an empty list */
    UNSAID = 4,    /* not part of the signature */
    NUMBER = 8,    /* float or double, as the caller chooses */
    OR_INT64 = 16, /* an integer may stand for the tensor */
};

typedef struct {
    int name; /* cudnnBackendAttributeName_t */
    const char *key;
    int type; /* cudnnBackendAttributeType_t */
    int flags;
} backend_rule;

typedef struct {
    const char *name;
    bool is_operation;
    int since; /* the first cuDNN version that has it */
    const backend_rule *rules;
    int rule_count;
} backend_kind;

/* NULL for a number that is no descriptor type of this version. */
const backend_kind *backend_find_kind(int kind);
const backend_rule *backend_find_rule(int kind, int attribute);

/* ---- cudnn_backend.c ---- */

typedef struct backend_body backend_body;

typedef struct {
    int name, type;
    int64_t count;
    void *values; /* descriptors are kept as bodies, each with a reference of its own */
} backend_attribute;

/* The prepared state of an execution plan, which makes executing it cheap. */
typedef struct {
    uint32_t signature;
    int64_t workspace;
    MAYA_VECTOR(int64_t) tensor_ids; /* that a variant pack must have a pointer for */
} backend_plan;

struct backend_body {
    atomic_int references;
    int kind;
    bool finalized;
    MAYA_VECTOR(backend_attribute) attributes;
    backend_plan plan; /* of a finalized execution plan */
};

backend_body *backend_body_create(int kind);
void backend_body_release(backend_body *body);
dnn_status backend_set(backend_body *body, int name, int type, int64_t count, const void *values);
/* Answers to cudnnBackendGetAttribute(): plain values, and one of the caller's descriptors. */
dnn_status backend_answer(const void *source, int type, int64_t available, int64_t requested, int64_t *count, void *values);
dnn_status backend_fill(void *descriptor, backend_body *body);

/* Readers. They return NULL, false or zero for an attribute that is not set or has another type. */
const backend_attribute *backend_find(const backend_body *body, int name);
const backend_body *backend_child(const backend_body *body, int name);
const backend_body *backend_child_at(const backend_body *body, int name, int64_t index);
int64_t backend_count(const backend_body *body, int name);
const int64_t *backend_int64s(const backend_body *body, int name, int64_t *count);
int64_t backend_int64(const backend_body *body, int name);
int backend_enum(const backend_body *body, int name); /* -1 when not set */
bool backend_flag(const backend_body *body, int name);
double backend_number(const backend_body *body, int name);

/* ---- cudnn_finalize.c ---- */

/* Success, or the status with which finalizing the descriptor fails. */
dnn_status backend_check(const backend_body *body);
/* A tensor descriptor's type, sizes and strides; false for anything else. */
bool backend_tensor(const backend_body *body, dnn_tensor *tensor);
/* The convolution that an operation describes; false when it is none. */
bool backend_convolution(const backend_body *operation, dnn_convolution_shape *shape);

/* ---- cudnn_engine.c ---- */

/* How many engines can run the graph. */
int64_t backend_engine_count(const backend_body *graph);
/* Answers a query for an attribute that is computed; *answered is false when `name` is none. */
dnn_status backend_get_computed(const backend_body *body, int name, int type, int64_t requested, int64_t *count, void *values,
                                bool *answered);
/* Makes the signature and the sizes of a plan that is being finalized. */
dnn_status backend_prepare_plan(backend_body *body);

/* ---- cudnn_graph.c ---- */

/* ,"operations":[...] */
void backend_describe_graph(dnn_text *text, const backend_body *graph);

/* ---- cudnn_attention.c ---- */

typedef struct {
    bool backward;
    dnn_tensor q, k, v; /* [batch, heads, sequence, head size], as the program has them in memory */
    bool causal, window, bias, padding, ragged, paged, stats;
    double dropout;
} attention_problem;

/* Whether the graph is attention, forward or backward; fills in its shape. */
bool backend_find_attention(const backend_body *graph, attention_problem *problem);
