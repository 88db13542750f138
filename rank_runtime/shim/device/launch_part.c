/* Which part of its op a kernel launch does. torch splits some ops into several launches of one kernel: TensorIterator halves
 * tensors that exceed 32-bit offsets, and kernels over lists take as many tensors as fit into their parameters. The signature
 * of a launch determines its duration, so it must contain the part.
 *
 * In: a kernel's name, examined once, and the arguments and geometry of each launch. Out: a maya_launch_part, which kernels.c
 * puts into the signature. Arguments are read only for kernels named here or compiled by torch at run time. */

#include "launch_part.h"
#include "process.h"

#include <string.h>

/* ---- the kind of kernel ---- */

static bool contains(const char *name, const char *part) { return strstr(name, part) != NULL; }

/* In the mangled name of a template's instance, the return type and the types of the parameters follow the last "E": the
 * first parameter's is i (int), j (unsigned), l (long) or m (unsigned long) if it is a number. */
static maya_part_kind count_in_first_argument(const char *name) {
    const char *last = NULL;
    for (const char *at = strstr(name, "Ev"); at; at = strstr(at + 1, "Ev")) last = at;
    if (last == NULL) return MAYA_PART_ALL;
    switch (last[2]) {
        case 'i':
        case 'j': return MAYA_PART_COUNT_32;
        case 'l':
        case 'm': return MAYA_PART_COUNT_64;
        default: return MAYA_PART_ALL;
    }
}

/* CUB's kernels that torch, or CUB itself, launches for a part of the items at a time: sorts, scans, selections and reductions.
 * Their parameters are those of CUB in CUDA 12.8 to 13; with other parameters nothing is read. */
static const struct {
    const char *name, *parameters;
    int count; /* index of the parameter that is the number of items */
} of_cub[] = {
    {"16DeviceScanKernelI", "EvT0_T1_T2_iT3_T4_T5_", 6},  {"23DeviceSelectSweepKernelI", "EvT0_T1_T2_T3_T4_T5_T6_T7_i", 7},
    {"29DeviceRadixSortOnesweepKernelI", "_T4_iiT6_", 8}, {"30DeviceRadixSortHistogramKernelI", "EvPT2_PKT1_S", 2},
    {"18DeviceReduceKernelI", "EvT0_PT3_T1_N", 2},        {"28DeviceReduceSingleTileKernelI", "EvT0_T1_T2_T3_T4_T6_", 2},
};

maya_part_kind maya_part_kind_of(const char *name, bool is_compiled_at_run_time) {
    if (contains(name, "multi_tensor_apply_kernel") || contains(name, "FusedOptimizer")) return MAYA_PART_BLOCKS;
    if (contains(name, "CatArrayBatchedCopy")) return MAYA_PART_TENSORS;
    if (strncmp(name, "_ZN2at6native13reduce_kernelI", 29) == 0) return MAYA_PART_REDUCTION;
    if (contains(name, "elementwise_kernelI") || contains(name, "elementwise_grid_stride_kernelI")) {
        return count_in_first_argument(name);
    }
    for (size_t i = 0; i < sizeof of_cub / sizeof *of_cub; i++) {
        if (contains(name, of_cub[i].name) && contains(name, of_cub[i].parameters)) return MAYA_PART_ARGUMENT + of_cub[i].count;
    }
    if (!is_compiled_at_run_time) return MAYA_PART_ALL;
    return strncmp(name, "reduction_", 10) == 0 ? MAYA_PART_JIT_REDUCTION : MAYA_PART_JIT_COUNT;
}

/* ---- counts among the arguments ---- */

enum { MOST_PER_THREAD = 64 };

static int64_t number_32(void *argument) {
    int32_t value;
    memcpy(&value, argument, sizeof value);
    return value;
}

static int64_t number_64(void *argument) {
    int64_t value;
    memcpy(&value, argument, sizeof value);
    return value;
}

/* The count, or 0 if a grid of this size cannot process that many: then the argument is not a count. */
static int64_t if_plausible(int64_t count, const unsigned grid[3], const unsigned block[3]) {
    int64_t blocks = (int64_t)grid[0] * grid[1] * grid[2], threads = (int64_t)block[0] * block[1] * block[2];
    return count > (blocks - 1) * threads && count <= blocks * threads * MOST_PER_THREAD ? count : 0;
}

/* The argument is a ReduceOp: an operation and its identity, whose sizes depend on the types, and then a ReduceConfig
 * (torch's Reduce.cuh), which is found by the geometry that it says. Offset calculators of 25 dimensions follow, so that
 * nothing beyond the argument is read. */
static void read_reduction(void *argument, const unsigned grid[3], const unsigned block[3], maya_launch_part *part) {
    struct {
        int32_t element_bytes, inputs, outputs, input_step, output_step, blocks_per_output;
        int32_t input_factors[3], output_factors[2];
        int32_t width, height, threads;
    } config;
    for (size_t offset = 0; offset <= 128; offset += sizeof(int32_t)) {
        memcpy(&config, (char *)argument + offset, sizeof config);
        bool is_config = config.width == (int32_t)block[0] && config.height == (int32_t)block[1] &&
                         config.threads == config.width * config.height && config.blocks_per_output == (int32_t)grid[1] &&
                         config.inputs > 0 && config.outputs > 0 && config.element_bytes > 0 && config.element_bytes <= 64;
        if (!is_config) continue;
        part->elements = (int64_t)config.inputs * config.outputs;
        part->outputs = config.outputs;
        return;
    }
}

/* ---- earlier launches of the same op ---- */

typedef struct {
    uint32_t next;
    struct {
        const void *kernel;
        uint32_t op, done;
    } ops[8]; /* op numbers are never reused */
} ops_in_parts;

static uint32_t add_up(maya_thread *thread, const void *kernel, uint32_t count) {
    enum { OPS = sizeof((ops_in_parts *)0)->ops / sizeof *((ops_in_parts *)0)->ops };
    if (thread->current_op == 0) return 0;
    if (thread->ops_in_parts == NULL) maya_thread_table(&thread->ops_in_parts, sizeof(ops_in_parts));
    ops_in_parts *known = thread->ops_in_parts;
    uint32_t at = 0;
    while (at < OPS && (known->ops[at].op != thread->current_op || known->ops[at].kernel != kernel)) at++;
    if (at == OPS) {
        at = known->next++ % OPS;
        known->ops[at].kernel = kernel;
        known->ops[at].op = thread->current_op;
        known->ops[at].done = 0;
    }
    uint32_t before = known->ops[at].done;
    known->ops[at].done += count;
    return before;
}

/* ---- a launch ---- */

void maya_read_part(maya_part_kind kind, const void *kernel, const unsigned grid[3], const unsigned block[3], void **arguments,
                    maya_launch_part *part) {
    switch (kind) {
        case MAYA_PART_BLOCKS: part->before = add_up(maya_this_thread(), kernel, grid[0] * grid[1] * grid[2]); return;
        case MAYA_PART_TENSORS: part->before = add_up(maya_this_thread(), kernel, grid[1]); return;
        case MAYA_PART_UNDECIDED:
        case MAYA_PART_ALL: return;
        default: break;
    }
    if (arguments == NULL || arguments[0] == NULL) return;
    bool is_torchs = kind < MAYA_PART_JIT_COUNT || kind > MAYA_PART_JIT_REDUCTION || strncmp(maya_op_name(), "aten::", 6) == 0;
    switch (kind) {
        case MAYA_PART_COUNT_32: part->elements = number_32(arguments[0]); break;
        case MAYA_PART_COUNT_64: part->elements = number_64(arguments[0]); break;
        case MAYA_PART_JIT_COUNT:
            if (is_torchs) part->elements = if_plausible(number_32(arguments[0]), grid, block);
            break;
        case MAYA_PART_REDUCTION:
        case MAYA_PART_JIT_REDUCTION:
            if (is_torchs) read_reduction(arguments[0], grid, block, part);
            break;
        default: part->elements = number_32(arguments[kind - MAYA_PART_ARGUMENT]); break;
    }
    if (part->elements < 0) part->elements = 0;
}
