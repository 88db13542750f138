/* The device pointers among the arguments of a launch.
 *
 * In: a kernel and its arguments. Which of them are pointers is known from the cubin of a kernel that was loaded at run time,
 * and from the types in the name of a compiled kernel. Out: the bytes behind each pointer, which the launch records, and the
 * buffers that the kernel may write, whose values are not known from then on. */

#include "internal.h"
#include "kernel_parameters.h"
#include "routing.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(maya_tensor_map) == 128, "the size of a CUtensorMap");
static const uint64_t TENSOR_MAP = 0x70616D726F736E74u;

void maya_tensor_map_encode(void *map, void *address, uint64_t bytes) {
    maya_tensor_map made = {.address = address, .bytes = bytes, .mark = TENSOR_MAP};
    memcpy(map, &made, sizeof made);
}

/* A pointer, or a tensor map with the pointer in it. */
static void add(maya_pointer_arguments *found, int index, const void *argument, size_t size, bool may_be_written) {
    maya_tensor_map map = {.mark = 0};
    memcpy(&map, argument, size);
    if (maya_address_device(map.address) < 0 || (size == sizeof map && map.mark != TENSOR_MAP)) return;
    if (may_be_written) found->outputs[found->output_count++] = map.address;
    found->extents[index] = size == sizeof map ? map.bytes : maya_extent_of(map.address);
    found->parameters = (size_t)index + 1;
    found->routing |= maya_routing_marks(map.address, 1);
}

static void find_by_cubin(maya_pointer_arguments *found, const maya_cubin_kernel *resources, void **arguments) {
    for (int i = 0; i < resources->parameters; i++) {
        const uint16_t size = resources->parameter_bytes[i];
        found->extents[i] = 0;
        if (arguments[i] == NULL || (size != sizeof(void *) && size != sizeof(maya_tensor_map))) continue;
        add(found, i, arguments[i], size, true);
    }
}

/* Memory that a package has allocated itself, past torch's allocator, is known by the whole allocation. */
static uint64_t own_allocation(const void *address) {
    maya_allocation_info info = maya_find_allocation(address);
    return info.type != MAYA_MEMORY_UNREGISTERED && info.base == address ? info.size : 0;
}

static void find_by_types(maya_pointer_arguments *found, const char *kinds, void **arguments) {
    for (int i = 0; kinds[i]; i++) {
        found->extents[i] = 0;
        if (arguments[i] == NULL || kinds[i] == MAYA_PARAMETER_OTHER) continue;
        size_t size = kinds[i] == MAYA_PARAMETER_TENSOR_MAP ? sizeof(maya_tensor_map) : sizeof(void *);
        add(found, i, arguments[i], size, kinds[i] != MAYA_PARAMETER_INPUT);
        const void *address;
        memcpy(&address, arguments[i], sizeof address);
        if (found->parameters == (size_t)i + 1 && found->extents[i] == 0) found->extents[i] = own_allocation(address);
    }
}

bool maya_launch_is_of_aten(void) { return strncmp(maya_op_name(), "aten::", 6) == 0; }

bool maya_launch_is_of_op(void) { return strstr(maya_op_name(), "::") != NULL; }

void maya_find_pointers(maya_pointer_arguments *found, maya_kernel *kernel, void **arguments) {
    const maya_cubin_kernel *resources = kernel ? maya_kernel_resources(kernel) : NULL;
    found->output_count = found->parameters = 0;
    found->routing = 0;
    if (kernel == NULL || arguments == NULL) return;
    if (resources) find_by_cubin(found, resources, arguments);
    else find_by_types(found, maya_kernel_parameters(kernel), arguments);
    maya_forget_pointers();
}

bool maya_launch_is_routed(const maya_pointer_arguments *pointers) {
    if (pointers->routing == 0) return false;
    maya_routing_choices_route(pointers->routing & ~(MAYA_ROUTED_ROWS | MAYA_ROUTING_MIXED));
    return maya_routing_is_work(pointers->routing);
}

typedef struct {
    size_t count;
    const void *pointers[];
} possible_outputs;

static void run_invalidation(void *argument) {
    const possible_outputs *outputs = argument;
    for (size_t i = 0; i < outputs->count; i++) maya_values_doubt(outputs->pointers[i]);
}

void maya_invalidate_outputs(const maya_pointer_arguments *pointers, void *stream) {
    if (pointers->output_count == 0) return;
    possible_outputs *outputs = malloc(sizeof *outputs + pointers->output_count * sizeof(void *));
    if (outputs == NULL) abort();
    outputs->count = pointers->output_count;
    memcpy(outputs->pointers, pointers->outputs, pointers->output_count * sizeof(void *));
    maya_command command = {.run = run_invalidation, .release = free, .argument = outputs, .unrecorded = true};
    maya_submit(stream, &command);
}
