/* Marks on device memory that follows from choices by rule (observer/choices.h), for reports only.
 *
 * Unlike known bytes (values.c), marks are set in the order of the program's calls, not in stream order, so that they are the
 * same in every run. The observer sets them on the results of ops (observer/routed_ops.cpp), NCCL's calls on what they receive.
 * Values of memory play no role here. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One bit for each place in the program that chooses; places from MAYA_ROUTING_OTHERS on share that bit. */
enum { MAYA_ROUTING_OTHERS = 29 };
/* Integers that follow from a choice and, element by element, from other data as well: a prediction compared with its label. */
#define MAYA_ROUTING_MIXED (UINT32_C(1) << 30)
/* Rows of activations that a choice has picked: the tokens of an expert. */
#define MAYA_ROUTED_ROWS (UINT32_C(1) << 31)

/* Whether the program has chosen. Until then nothing is marked. */
MAYA_API bool maya_routing_exists(void);
MAYA_API void maya_routing_begins(void);
/* The marks of any part of the range. */
MAYA_API uint32_t maya_routing_marks(const void *address, size_t size);
/* Replaces the marks of the range; 0: it has none. */
MAYA_API void maya_routing_mark(const void *address, size_t size, uint32_t marks);

/* Lets the observer know that these choices route; it calls maya_routing_prove. */
void maya_routing_choices_route(uint32_t choices);
typedef void (*maya_routing_listener)(uint32_t choices);
MAYA_API void maya_set_routing_listener(maya_routing_listener listener);
/* What these choices pick counts as routing from now on; returns the marks of those for which that is new. */
MAYA_API uint32_t maya_routing_prove(uint32_t choices);
/* Whether work on memory with these marks hangs on routing: rows, or choices that route. */
MAYA_API bool maya_routing_is_work(uint32_t marks);

#ifdef __cplusplus
}
#endif
