/* Which descriptors the backend interface has, and which attributes each of them takes.
 *
 * A row gives an attribute's number, its key in signatures, the type of its values and its rules. The same table
 * determines which attributes cudnnBackendSetAttribute() accepts, which ones cudnnBackendFinalize() requires, and which
 * ones the signature of a graph contains. In all three directions of a convolution x, w and y are the forward input,
 * filter and output.
 */
#include "cudnn_backend.h"

enum { TENSOR = TYPE_DESCRIPTOR };

/* ---- parameters of operations ---- */

static const backend_rule pointwise[] = {
    {ATTRIBUTE_POINTWISE_MODE, "mode", TYPE_POINTWISE_MODE, REQUIRED},
    {1, "compute", TYPE_DATA_TYPE, REQUIRED},
    {2, "nan_propagation", TYPE_NAN_PROPAGATION, UNSAID},
    {3, "relu_lower_clip", TYPE_DOUBLE, UNSAID | NUMBER},
    {4, "relu_upper_clip", TYPE_DOUBLE, UNSAID | NUMBER},
    {5, "relu_lower_clip_slope", TYPE_DOUBLE, UNSAID | NUMBER},
    {6, "elu_alpha", TYPE_DOUBLE, UNSAID | NUMBER},
    {7, "softplus_beta", TYPE_DOUBLE, UNSAID | NUMBER},
    {8, "swish_beta", TYPE_DOUBLE, UNSAID | NUMBER},
    {9, "axis", TYPE_INT64, UNSAID},
};

static const backend_rule convolution[] = {
    {100, "compute", TYPE_DATA_TYPE, REQUIRED},
    {101, "mode", TYPE_CONVOLUTION_MODE, UNSAID},
    {ATTRIBUTE_CONVOLUTION_PADDINGS, "padding", TYPE_INT64, REQUIRED | LIST},
    {ATTRIBUTE_CONVOLUTION_POST_PADDINGS, "post_padding", TYPE_INT64, REQUIRED | LIST},
    {ATTRIBUTE_CONVOLUTION_STRIDES, "stride", TYPE_INT64, REQUIRED | LIST},
    {ATTRIBUTE_CONVOLUTION_DILATIONS, "dilation", TYPE_INT64, REQUIRED | LIST},
    {ATTRIBUTE_CONVOLUTION_SPATIAL_DIMS, "spatial_dims", TYPE_INT64, REQUIRED | UNSAID},
};

static const backend_rule matmul[] = {
    {1500, "compute", TYPE_DATA_TYPE, REQUIRED},
    {1503, "padding_value", TYPE_DOUBLE, UNSAID | NUMBER},
};

static const backend_rule reduction[] = {
    {1600, "operator", TYPE_REDUCTION, REQUIRED},
    {1601, "compute", TYPE_DATA_TYPE, REQUIRED},
    {1602, "deterministic", TYPE_BOOLEAN, 0},
};

static const backend_rule resample[] = {
    {1700, "mode", TYPE_RESAMPLE_MODE, REQUIRED},
    {1701, "compute", TYPE_DATA_TYPE, REQUIRED},
    {1702, "spatial_dims", TYPE_INT64, REQUIRED | UNSAID},
    {1703, "post_padding", TYPE_FRACTION, LIST},
    {1704, "padding", TYPE_FRACTION, LIST},
    {1705, "stride", TYPE_FRACTION, LIST},
    {1706, "window", TYPE_FRACTION, LIST},
    {1707, "nan_propagation", TYPE_NAN_PROPAGATION, UNSAID},
    {1708, "padding_mode", TYPE_PADDING_MODE, UNSAID},
};

static const backend_rule rng[] = {
    {2300, "distribution", TYPE_RANDOM_DISTRIBUTION, REQUIRED},
    {2301, "normal_mean", TYPE_DOUBLE, UNSAID | NUMBER},
    {2302, "normal_deviation", TYPE_DOUBLE, UNSAID | NUMBER},
    {2303, "uniform_maximum", TYPE_DOUBLE, UNSAID | NUMBER},
    {2304, "uniform_minimum", TYPE_DOUBLE, UNSAID | NUMBER},
    {ATTRIBUTE_RANDOM_PROBABILITY, "bernoulli_probability", TYPE_DOUBLE, NUMBER},
};

static const backend_rule tensor[] = {
    {900, "alignment", TYPE_INT64, REQUIRED},
    {ATTRIBUTE_TENSOR_TYPE, "type", TYPE_DATA_TYPE, REQUIRED},
    {ATTRIBUTE_TENSOR_DIMS, "dims", TYPE_INT64, REQUIRED | LIST},
    {ATTRIBUTE_TENSOR_STRIDES, "strides", TYPE_INT64, REQUIRED | LIST},
    {904, "vector_count", TYPE_INT64, 0},
    {905, "vectorized_dimension", TYPE_INT64, 0},
    {ATTRIBUTE_TENSOR_ID, "id", TYPE_INT64, REQUIRED},
    {ATTRIBUTE_TENSOR_IS_VIRTUAL, "virtual", TYPE_BOOLEAN, 0},
    {ATTRIBUTE_TENSOR_IS_BY_VALUE, "by_value", TYPE_BOOLEAN, 0},
    {909, "reordering", TYPE_REORDERING, 0},
    {910, "constant_value", TYPE_POINTER, 0},
    {ATTRIBUTE_TENSOR_RAGGED_OFFSET, "ragged_offset", TENSOR, LIST},
    {914, "ragged_offset_multiplier", TYPE_INT64, 0},
};

/* ---- operations ---- */

static const backend_rule convolution_forward[] = {
    {ATTRIBUTE_FORWARD_X, "x", TENSOR, REQUIRED}, {ATTRIBUTE_FORWARD_W, "w", TENSOR, REQUIRED},
    {ATTRIBUTE_FORWARD_Y, "y", TENSOR, REQUIRED}, {ATTRIBUTE_FORWARD_CONVOLUTION, "convolution", TYPE_DESCRIPTOR, REQUIRED},
    {700, "alpha", TYPE_FLOAT, UNSAID | NUMBER},  {701, "beta", TYPE_FLOAT, UNSAID | NUMBER},
};

static const backend_rule convolution_backward_data[] = {
    {ATTRIBUTE_BACKWARD_DATA_X, "x", TENSOR, REQUIRED},
    {ATTRIBUTE_BACKWARD_DATA_W, "w", TENSOR, REQUIRED},
    {ATTRIBUTE_BACKWARD_DATA_Y, "y", TENSOR, REQUIRED},
    {ATTRIBUTE_BACKWARD_DATA_CONVOLUTION, "convolution", TYPE_DESCRIPTOR, REQUIRED},
    {706, "alpha", TYPE_FLOAT, UNSAID | NUMBER},
    {707, "beta", TYPE_FLOAT, UNSAID | NUMBER},
};

static const backend_rule convolution_backward_filter[] = {
    {ATTRIBUTE_BACKWARD_FILTER_X, "x", TENSOR, REQUIRED},
    {ATTRIBUTE_BACKWARD_FILTER_W, "w", TENSOR, REQUIRED},
    {ATTRIBUTE_BACKWARD_FILTER_Y, "y", TENSOR, REQUIRED},
    {ATTRIBUTE_BACKWARD_FILTER_CONVOLUTION, "convolution", TYPE_DESCRIPTOR, REQUIRED},
    {712, "alpha", TYPE_FLOAT, UNSAID | NUMBER},
    {713, "beta", TYPE_FLOAT, UNSAID | NUMBER},
};

static const backend_rule operation_pointwise[] = {
    {ATTRIBUTE_OPERATION_POINTWISE, "pointwise", TYPE_DESCRIPTOR, REQUIRED},
    {ATTRIBUTE_POINTWISE_X, "x", TENSOR, 0},
    {ATTRIBUTE_POINTWISE_B, "b", TENSOR, 0},
    {758, "t", TENSOR, 0},
    {757, "dy", TENSOR, 0},
    {ATTRIBUTE_POINTWISE_Y, "y", TENSOR, 0},
    {756, "dx", TENSOR, 0},
    {754, "alpha1", TYPE_FLOAT, UNSAID | NUMBER},
    {755, "alpha2", TYPE_FLOAT, UNSAID | NUMBER},
};

static const backend_rule operation_statistics[] = {
    {770, "mode", TYPE_STATISTICS_MODE, REQUIRED | UNSAID},
    {771, "compute", TYPE_DATA_TYPE, REQUIRED},
    {772, "x", TENSOR, REQUIRED},
    {773, "sum", TENSOR, REQUIRED},
    {774, "square_sum", TENSOR, REQUIRED},
};

static const backend_rule operation_batch_norm_finalize[] = {
    {780, "mode", TYPE_BATCH_NORM_FINALIZE_MODE, REQUIRED | UNSAID},
    {781, "compute", TYPE_DATA_TYPE, REQUIRED},
    {782, "sum", TENSOR, REQUIRED},
    {783, "square_sum", TENSOR, REQUIRED},
    {784, "scale", TENSOR, REQUIRED},
    {785, "bias", TENSOR, REQUIRED},
    {786, "running_mean", TENSOR, 0},
    {787, "running_variance", TENSOR, 0},
    {788, "new_running_mean", TENSOR, 0},
    {789, "new_running_variance", TENSOR, 0},
    {790, "mean", TENSOR, 0},
    {791, "inverse_deviation", TENSOR, 0},
    {792, "equivalent_scale", TENSOR, 0},
    {793, "equivalent_bias", TENSOR, 0},
    {794, "count", TENSOR, 0},
    {795, "epsilon", TENSOR, 0},
    {796, "average_factor", TENSOR, 0},
};

static const backend_rule operation_batch_norm_backward_weights[] = {
    {1620, "compute", TYPE_DATA_TYPE, REQUIRED},
    {1621, "mean", TENSOR, REQUIRED},
    {1622, "inverse_deviation", TENSOR, REQUIRED},
    {1623, "scale", TENSOR, REQUIRED},
    {1624, "x", TENSOR, REQUIRED},
    {1625, "dy", TENSOR, REQUIRED},
    {1626, "dscale", TENSOR, REQUIRED},
    {1627, "dbias", TENSOR, REQUIRED},
    {1628, "equivalent_dy_scale", TENSOR, REQUIRED},
    {1629, "equivalent_x_scale", TENSOR, REQUIRED},
    {1630, "equivalent_bias", TENSOR, REQUIRED},
};

static const backend_rule operation_matmul[] = {
    {ATTRIBUTE_MATMUL_A, "a", TENSOR, REQUIRED},
    {ATTRIBUTE_MATMUL_B, "b", TENSOR, REQUIRED},
    {ATTRIBUTE_MATMUL_C, "c", TENSOR, REQUIRED},
    {1523, "matmul", TYPE_DESCRIPTOR, REQUIRED},
    {1524, "irregularly_strided_batch_count", TYPE_INT64, 0},
    {ATTRIBUTE_MATMUL_M_OVERRIDE, "m_override", TENSOR, 0},
    {ATTRIBUTE_MATMUL_N_OVERRIDE, "n_override", TENSOR, 0},
    {1527, "k_override", TENSOR, 0},
};

static const backend_rule operation_reduction[] = {
    {1610, "x", TENSOR, REQUIRED},
    {ATTRIBUTE_REDUCTION_Y, "y", TENSOR, REQUIRED},
    {1612, "reduction", TYPE_DESCRIPTOR, REQUIRED},
    {1613, "group_offset", TENSOR, 0},
};

static const backend_rule operation_resample_forward[] = {
    {1710, "x", TENSOR, REQUIRED},
    {1711, "y", TENSOR, REQUIRED},
    {1712, "index", TENSOR, 0},
    {1713, "alpha", TYPE_DOUBLE, UNSAID | NUMBER},
    {1714, "beta", TYPE_DOUBLE, UNSAID | NUMBER},
    {1716, "resample", TYPE_DESCRIPTOR, REQUIRED},
};

static const backend_rule operation_resample_backward[] = {
    {1720, "dx", TENSOR, REQUIRED},
    {1721, "dy", TENSOR, REQUIRED},
    {1722, "index", TENSOR, 0},
    {1723, "alpha", TYPE_DOUBLE, UNSAID | NUMBER},
    {1724, "beta", TYPE_DOUBLE, UNSAID | NUMBER},
    {1725, "resample", TYPE_DESCRIPTOR, REQUIRED},
    {1726, "x", TENSOR, 0},
    {1727, "y", TENSOR, 0},
};

static const backend_rule operation_concatenate[] = {
    {1800, "axis", TYPE_INT64, REQUIRED},
    {1801, "inputs", TENSOR, REQUIRED | LIST},
    {1802, "in_place_index", TYPE_INT64, 0},
    {1803, "output", TENSOR, REQUIRED},
};

static const backend_rule operation_paged_cache_load[] = {
    {1950, "container", TENSOR, REQUIRED},
    {1951, "y", TENSOR, REQUIRED},
    {1952, "lengths", TENSOR, REQUIRED},
    {1953, "page_table", TENSOR, REQUIRED},
};

static const backend_rule operation_norm_forward[] = {
    {2000, "mode", TYPE_NORM_MODE, REQUIRED},
    {2001, "phase", TYPE_NORM_PHASE, REQUIRED},
    {2002, "x", TENSOR, REQUIRED},
    {2003, "mean", TENSOR, 0},
    {2004, "inverse_variance", TENSOR, 0},
    {2005, "scale", TENSOR, 0},
    {2006, "bias", TENSOR, 0},
    {2007, "epsilon", TENSOR, 0},
    {2008, "average_factor", TENSOR, 0},
    {2009, "running_mean", TENSOR, 0},
    {2010, "running_variance", TENSOR, 0},
    {2011, "new_running_mean", TENSOR, 0},
    {2012, "new_running_variance", TENSOR, 0},
    {2013, "y", TENSOR, REQUIRED},
    {2014, "peer_statistics", TENSOR, LIST},
};

static const backend_rule operation_norm_backward[] = {
    {2100, "mode", TYPE_NORM_MODE, REQUIRED},
    {2101, "x", TENSOR, REQUIRED},
    {2102, "mean", TENSOR, 0},
    {2103, "inverse_variance", TENSOR, 0},
    {2104, "dy", TENSOR, REQUIRED},
    {2105, "scale", TENSOR, 0},
    {2106, "epsilon", TENSOR, 0},
    {2107, "dscale", TENSOR, 0},
    {2108, "dbias", TENSOR, 0},
    {2109, "dx", TENSOR, REQUIRED},
    {2110, "peer_statistics", TENSOR, LIST},
};

static const backend_rule operation_reshape[] = {
    {2200, "x", TENSOR, REQUIRED},
    {2201, "y", TENSOR, REQUIRED},
    {2202, "mode", TYPE_RESHAPE_MODE, UNSAID},
};

static const backend_rule operation_rng[] = {
    {2310, "y", TENSOR, REQUIRED},
    {2311, "seed", TENSOR, OR_INT64},
    {ATTRIBUTE_OPERATION_RANDOM, "rng", TYPE_DESCRIPTOR, REQUIRED},
    {2313, "offset", TENSOR, 0},
};

static const backend_rule operation_block_scale_quantize[] = {
    {2500, "x", TENSOR, REQUIRED},
    {2501, "y", TENSOR, REQUIRED},
    {2502, "scale", TENSOR, REQUIRED},
    {2503, "compute", TYPE_DATA_TYPE, REQUIRED},
    {2504, "block_size", TYPE_INT32, REQUIRED | LIST},
};

static const backend_rule operation_block_scale_dequantize[] = {
    {2600, "x", TENSOR, REQUIRED},
    {2601, "scale", TENSOR, REQUIRED},
    {2602, "y", TENSOR, REQUIRED},
    {2603, "compute", TYPE_DATA_TYPE, REQUIRED},
    {2604, "block_size", TYPE_INT32, REQUIRED | LIST},
    {2605, "negative_scale", TYPE_BOOLEAN, UNSAID},
};

static const backend_rule operation_expand_band_matrix[] = {
    {2250, "x", TENSOR, REQUIRED},
    {2251, "y", TENSOR, REQUIRED},
    {2252, "lower_bandwidth", TYPE_INT64, REQUIRED},
    {2253, "upper_bandwidth", TYPE_INT64, REQUIRED},
    {2254, "axis", TYPE_INT64, REQUIRED},
    {2255, "pad_value", TYPE_FLOAT, UNSAID | NUMBER},
    {2256, "kv_token_offset", TENSOR, 0},
    {2257, "speculative_mask", TENSOR, 0},
};

static const backend_rule operation_contract_band_matrix[] = {
    {2270, "x", TENSOR, REQUIRED},
    {2271, "y", TENSOR, REQUIRED},
    {2272, "lower_bandwidth", TYPE_INT64, REQUIRED},
    {2273, "upper_bandwidth", TYPE_INT64, REQUIRED},
    {2274, "axis", TYPE_INT64, REQUIRED},
    {2275, "pad_value", TYPE_FLOAT, UNSAID | NUMBER},
    {2276, "max_token", TYPE_INT64, 0},
};

static const backend_rule attention_forward[] = {
    {ATTRIBUTE_ATTENTION_Q, "q", TENSOR, REQUIRED},
    {ATTRIBUTE_ATTENTION_K, "k", TENSOR, REQUIRED},
    {ATTRIBUTE_ATTENTION_V, "v", TENSOR, REQUIRED},
    {2803, "o", TENSOR, REQUIRED},
    {ATTRIBUTE_ATTENTION_STATS, "stats", TENSOR, 0},
    {2805, "scale", TENSOR, 0},
    {2806, "block_mask", TENSOR, 0},
    {ATTRIBUTE_ATTENTION_PAGE_TABLE, "page_table_k", TENSOR, 0},
    {2808, "page_table_v", TENSOR, 0},
    {ATTRIBUTE_ATTENTION_LENGTH_Q, "length_q", TENSOR, 0},
    {ATTRIBUTE_ATTENTION_LENGTH_KV, "length_kv", TENSOR, 0},
    {ATTRIBUTE_ATTENTION_SUBGRAPH, "subgraph", TYPE_DESCRIPTOR, UNSAID},
    {2812, "subgraph_input", TYPE_INT64, 0},
    {2813, "subgraph_output", TYPE_INT64, 0},
    {ATTRIBUTE_ATTENTION_SOFTMAX, "softmax", TYPE_DESCRIPTOR, UNSAID},
    {2815, "dropout_seed", TENSOR, 0},
    {2816, "dropout_offset", TENSOR, 0},
    {2817, "dropout_dump", TENSOR, 0},
    {ATTRIBUTE_ATTENTION_DROPOUT, "dropout", TYPE_FLOAT, NUMBER},
    {2819, "unfuse_fma", TYPE_BOOLEAN, 0},
    {ATTRIBUTE_ATTENTION_CUMULATIVE_LENGTH_Q, "cumulative_length_q", TENSOR, 0},
    {ATTRIBUTE_ATTENTION_CUMULATIVE_LENGTH_KV, "cumulative_length_kv", TENSOR, 0},
    {2822, "descale_q", TENSOR, 0},
    {2823, "descale_k", TENSOR, 0},
    {2824, "descale_v", TENSOR, 0},
    {2825, "descale_s", TENSOR, 0},
    {2826, "scale_s", TENSOR, 0},
    {2827, "scale_o", TENSOR, 0},
    {2828, "amax_s", TENSOR, 0},
    {2829, "amax_o", TENSOR, 0},
};

static const backend_rule attention_backward[] = {
    {ATTRIBUTE_ATTENTION_BACKWARD_Q, "q", TENSOR, REQUIRED},
    {ATTRIBUTE_ATTENTION_BACKWARD_K, "k", TENSOR, REQUIRED},
    {ATTRIBUTE_ATTENTION_BACKWARD_V, "v", TENSOR, REQUIRED},
    {2854, "o", TENSOR, REQUIRED},
    {2855, "stats", TENSOR, REQUIRED},
    {2856, "scale", TENSOR, 0},
    {ATTRIBUTE_ATTENTION_BACKWARD_LENGTH_Q, "length_q", TENSOR, 0},
    {ATTRIBUTE_ATTENTION_BACKWARD_LENGTH_KV, "length_kv", TENSOR, 0},
    {2859, "dq", TENSOR, REQUIRED},
    {2860, "dk", TENSOR, REQUIRED},
    {2861, "dv", TENSOR, REQUIRED},
    {2862, "do", TENSOR, REQUIRED},
    {2863, "sink", TENSOR, 0},
    {2864, "dsink", TENSOR, 0},
    {2865, "max_total_length_q", TYPE_INT64, 0},
    {2866, "max_total_length_kv", TYPE_INT64, 0},
    {ATTRIBUTE_ATTENTION_BACKWARD_SUBGRAPH, "subgraph", TYPE_DESCRIPTOR, UNSAID},
    {2868, "subgraph_input", TYPE_INT64, 0},
    {2869, "subgraph_output", TYPE_INT64, 0},
};

static const backend_rule operation_grouped_matmul[] = {
    {2900, "mode", TYPE_GROUPED_MATMUL_MODE, REQUIRED},
    {2901, "compute", TYPE_DATA_TYPE, REQUIRED},
    {2902, "token", TENSOR, REQUIRED},
    {2903, "weight", TENSOR, REQUIRED},
    {2904, "first_token_offset", TENSOR, REQUIRED},
    {2905, "output", TENSOR, REQUIRED},
    {2906, "token_index", TENSOR, 0},
    {2907, "token_ks", TENSOR, 0},
    {2908, "top_k", TYPE_INT32, 0},
};

static const backend_rule operation_grouped_matmul_backward[] = {
    {2951, "compute", TYPE_DATA_TYPE, REQUIRED},    {2952, "token", TENSOR, REQUIRED},   {2953, "dweight", TENSOR, REQUIRED},
    {2954, "first_token_offset", TENSOR, REQUIRED}, {2955, "doutput", TENSOR, REQUIRED},
};

static const backend_rule operation_diagonal_band_mask[] = {
    {3000, "x", TENSOR, REQUIRED},
    {3001, "length_kv", TENSOR, 0},
    {3002, "length_q", TENSOR, 0},
    {3003, "left_bound", TENSOR, 0},
    {3004, "right_bound_shift", TENSOR, 0},
    {3005, "b", TENSOR, REQUIRED},
    {3006, "y", TENSOR, REQUIRED},
    {ATTRIBUTE_MASK_COMPARISON, "comparison", TYPE_POINTWISE_MODE, REQUIRED},
    {3008, "cumulative_length_kv", TENSOR, 0},
    {3009, "cumulative_length_q", TENSOR, 0},
};

static const backend_rule operation_softmax[] = {
    {3100, "x", TENSOR, REQUIRED},
    {3101, "y", TENSOR, REQUIRED},
    {ATTRIBUTE_SOFTMAX_STATS, "stats", TENSOR, 0},
    {3103, "max", TENSOR, 0},
    {3104, "sum_exp", TENSOR, 0},
    {3105, "sink", TENSOR, 0},
    {3106, "stats_log2", TYPE_BOOLEAN, 0},
};

static const backend_rule operation_transpose[] = {
    {3200, "x", TENSOR, REQUIRED},
    {3201, "y", TENSOR, REQUIRED},
    {3202, "permutation", TYPE_INT64, REQUIRED | LIST},
};

static const backend_rule operation_slice[] = {
    {3300, "x", TENSOR, REQUIRED},
    {3301, "y", TENSOR, REQUIRED},
    {3302, "start", TYPE_INT64, REQUIRED | LIST},
    {3303, "limit", TYPE_INT64, REQUIRED | LIST},
    {3304, "step", TYPE_INT64, LIST},
};

static const backend_rule operation_rope_forward[] = {
    {3400, "x", TENSOR, REQUIRED},           {3401, "y", TENSOR, REQUIRED},
    {3402, "frequencies", TENSOR, REQUIRED}, {3403, "output_scale", TYPE_FLOAT, UNSAID | NUMBER},
    {3404, "rope_dim", TYPE_INT64, 0},
};

static const backend_rule operation_rope_backward[] = {
    {3410, "dy", TENSOR, REQUIRED},          {3411, "dx", TENSOR, REQUIRED},
    {3412, "frequencies", TENSOR, REQUIRED}, {3413, "output_scale", TYPE_FLOAT, UNSAID | NUMBER},
    {3414, "rope_dim", TYPE_INT64, 0},
};

/* ---- graphs, engines and plans ---- */

static const backend_rule operation_graph[] = {
    {800, "handle", TYPE_HANDLE, 0},
    {ATTRIBUTE_GRAPH_OPERATIONS, "operations", TYPE_DESCRIPTOR, REQUIRED | LIST},
    {803, "dynamic_shape", TYPE_BOOLEAN, 0},
    {806, "mode", TYPE_GRAPH_MODE, 0},
};

static const backend_rule engine[] = {
    {ATTRIBUTE_ENGINE_GRAPH, "graph", TYPE_DESCRIPTOR, REQUIRED},
    {ATTRIBUTE_ENGINE_INDEX, "index", TYPE_INT64, REQUIRED},
    {1306, "sm_count_target", TYPE_INT32, 0},
    {1307, "device_properties", TYPE_DESCRIPTOR, 0},
    {1308, "no_cooperative_clusters", TYPE_BOOLEAN, 0},
    {1309, "shared_memory_limit", TYPE_INT32, 0},
};

static const backend_rule engine_config[] = {
    {ATTRIBUTE_CONFIG_ENGINE, "engine", TYPE_DESCRIPTOR, REQUIRED},
    {302, "knob_choices", TYPE_DESCRIPTOR, LIST},
};

static const backend_rule engine_heuristics[] = {
    {ATTRIBUTE_HEURISTICS_MODE, "mode", TYPE_HEURISTICS_MODE, REQUIRED},
    {ATTRIBUTE_HEURISTICS_GRAPH, "graph", TYPE_DESCRIPTOR, REQUIRED},
    {203, "sm_count_target", TYPE_INT32, 0},
    {204, "device_properties", TYPE_DESCRIPTOR, 0},
    {205, "shared_memory_limit", TYPE_INT32, 0},
};

static const backend_rule execution_plan[] = {
    {400, "handle", TYPE_HANDLE, 0},
    {ATTRIBUTE_PLAN_CONFIG, "config", TYPE_DESCRIPTOR, REQUIRED},
    {406, "kernel_cache", TYPE_DESCRIPTOR, 0},
    {407, "device_properties", TYPE_DESCRIPTOR, 0},
};

static const backend_rule knob_choice[] = {
    {600, "knob", TYPE_KNOB, REQUIRED},
    {601, "value", TYPE_INT64, REQUIRED},
};

static const backend_rule variant_pack[] = {
    {ATTRIBUTE_PACK_IDS, "ids", TYPE_INT64, REQUIRED | LIST},
    {ATTRIBUTE_PACK_POINTERS, "pointers", TYPE_POINTER, REQUIRED | LIST},
    {1002, "intermediates", TYPE_POINTER, LIST},
    {ATTRIBUTE_PACK_WORKSPACE, "workspace", TYPE_POINTER, 0},
};

static const backend_rule kernel_cache[] = {
    {2400, "graph", TYPE_DESCRIPTOR, 0},
};

static const backend_rule device_properties[] = {
    {2700, "device", TYPE_INT32, 0},
    {2701, "handle", TYPE_HANDLE, 0},
};

#define RULES(rules) rules, sizeof(rules) / sizeof *(rules)

/* Indexed by cudnnBackendDescriptorType_t. Signals, which wait for another device, are not emulated. Engines
 * here have no knobs, layouts or intermediates, so those descriptors stay empty. */
static const backend_kind kinds[] = {
    [KIND_POINTWISE] = {"pointwise", false, 0, RULES(pointwise)},
    [KIND_CONVOLUTION] = {"convolution", false, 0, RULES(convolution)},
    [KIND_ENGINE] = {"engine", false, 0, RULES(engine)},
    [KIND_ENGINE_CONFIG] = {"engine_config", false, 0, RULES(engine_config)},
    [KIND_ENGINE_HEURISTICS] = {"engine_heuristics", false, 0, RULES(engine_heuristics)},
    [KIND_EXECUTION_PLAN] = {"execution_plan", false, 0, RULES(execution_plan)},
    [6] = {"intermediate_info", false, 0, NULL, 0},
    [7] = {"knob_choice", false, 0, RULES(knob_choice)},
    [8] = {"knob_info", false, 0, NULL, 0},
    [9] = {"layout_info", false, 0, NULL, 0},
    [KIND_CONVOLUTION_FORWARD] = {"convolution_forward", true, 0, RULES(convolution_forward)},
    [KIND_CONVOLUTION_BACKWARD_FILTER] = {"convolution_backward_filter", true, 0, RULES(convolution_backward_filter)},
    [KIND_CONVOLUTION_BACKWARD_DATA] = {"convolution_backward_data", true, 0, RULES(convolution_backward_data)},
    [KIND_OPERATION_POINTWISE] = {"pointwise", true, 0, RULES(operation_pointwise)},
    [14] = {"statistics", true, 0, RULES(operation_statistics)},
    [KIND_OPERATION_GRAPH] = {"operation_graph", false, 0, RULES(operation_graph)},
    [KIND_VARIANT_PACK] = {"variant_pack", false, 0, RULES(variant_pack)},
    [KIND_TENSOR] = {"tensor", false, 0, RULES(tensor)},
    [18] = {"matmul", false, 0, RULES(matmul)},
    [KIND_OPERATION_MATMUL] = {"matmul", true, 0, RULES(operation_matmul)},
    [20] = {"batch_norm_finalize", true, 0, RULES(operation_batch_norm_finalize)},
    [21] = {"reduction", false, 0, RULES(reduction)},
    [KIND_OPERATION_REDUCTION] = {"reduction", true, 0, RULES(operation_reduction)},
    [23] = {"batch_norm_backward_weights", true, 0, RULES(operation_batch_norm_backward_weights)},
    [24] = {"resample", false, 0, RULES(resample)},
    [25] = {"resample_forward", true, 0, RULES(operation_resample_forward)},
    [26] = {"resample_backward", true, 0, RULES(operation_resample_backward)},
    [27] = {"concatenate", true, 0, RULES(operation_concatenate)},
    [29] = {"norm_forward", true, 0, RULES(operation_norm_forward)},
    [30] = {"norm_backward", true, 0, RULES(operation_norm_backward)},
    [31] = {"reshape", true, 0, RULES(operation_reshape)},
    [32] = {"rng", false, 0, RULES(rng)},
    [KIND_OPERATION_RNG] = {"rng", true, 0, RULES(operation_rng)},
    [KIND_KERNEL_CACHE] = {"kernel_cache", false, 90400, RULES(kernel_cache)},
    [KIND_PAGED_CACHE_LOAD] = {"paged_cache_load", true, 90400, RULES(operation_paged_cache_load)},
    [36] = {"block_scale_quantize", true, 90700, RULES(operation_block_scale_quantize)},
    [37] = {"block_scale_dequantize", true, 90700, RULES(operation_block_scale_dequantize)},
    [KIND_DEVICE_PROPERTIES] = {"device_properties", false, 90800, RULES(device_properties)},
    [39] = {"expand_band_matrix", true, 91000, RULES(operation_expand_band_matrix)},
    [40] = {"contract_band_matrix", true, 91000, RULES(operation_contract_band_matrix)},
    [KIND_ATTENTION_FORWARD] = {"attention_forward", true, 91300, RULES(attention_forward)},
    [42] = {"grouped_matmul", true, 91500, RULES(operation_grouped_matmul)},
    [KIND_ATTENTION_BACKWARD] = {"attention_backward", true, 91700, RULES(attention_backward)},
    [KIND_DIAGONAL_BAND_MASK] = {"diagonal_band_mask", true, 92000, RULES(operation_diagonal_band_mask)},
    [KIND_SOFTMAX] = {"softmax", true, 92000, RULES(operation_softmax)},
    [46] = {"transpose", true, 92200, RULES(operation_transpose)},
    [47] = {"slice", true, 92200, RULES(operation_slice)},
    [48] = {"grouped_matmul_backward", true, 92200, RULES(operation_grouped_matmul_backward)},
    [49] = {"rope_forward", true, 92400, RULES(operation_rope_forward)},
    [50] = {"rope_backward", true, 92500, RULES(operation_rope_backward)},
};

const backend_kind *backend_find_kind(int kind) {
    if (kind < 0 || (size_t)kind >= sizeof kinds / sizeof *kinds || !kinds[kind].name) return NULL;
    return kinds[kind].since <= MAYA_CUDNN_VERSION ? &kinds[kind] : NULL;
}

const backend_rule *backend_find_rule(int kind, int attribute) {
    const backend_kind *found = backend_find_kind(kind);
    for (int index = 0; found && index < found->rule_count; index++)
        if (found->rules[index].name == attribute) return &found->rules[index];
    return NULL;
}
