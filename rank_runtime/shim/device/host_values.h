/* Placeholders in host memory (host_values.c). */
#pragma once

#include "device.h"

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Whether a host tensor of this size may become a placeholder: the settings allow it, and this process is a rank. */
MAYA_API bool maya_host_makes_placeholders(size_t size);

/* Whether contents of this size are looked at before they are copied, because zeros can be had without pages. */
MAYA_API bool maya_host_is_large(size_t size);

/* Private memory, page-aligned and zero, whose placeholders are tracked. NULL: the system refuses. */
MAYA_API void *maya_host_block_map(size_t size);
/* false: there is no such block. */
MAYA_API bool maya_host_block_unmap(void *address);
/* Whether the range lies in such blocks. */
MAYA_API bool maya_host_is_tracked(const void *address, size_t size);

/* The range becomes placeholders, which are zeros and take no memory. Ranges that are not tracked stay as they are. */
MAYA_API void maya_host_set_placeholder(void *address, size_t size);
/* The range was just computed from placeholders, and keeps its bytes. */
MAYA_API void maya_host_mark_placeholder(void *address, size_t size);
/* The range becomes known zeros; if it is tracked, they take no memory. */
MAYA_API void maya_host_set_zero(void *address, size_t size);
/* The range was written for real. */
MAYA_API void maya_host_set_known(const void *address, size_t size);

/* Whether a byte of the range is a placeholder. */
MAYA_API bool maya_host_has_placeholder(const void *address, size_t size);
/* Whether the range holds zeros only. Reads touched pages only; the range must lie in private memory. */
MAYA_API bool maya_host_is_zero(const void *address, size_t size);
/* The same for any memory; all of it is read if it is not tracked. */
MAYA_API bool maya_host_holds_zeros(const void *address, size_t size);

/* default_allocator.c: the c10::Allocator that torch takes for its default one from now on. */
MAYA_API void maya_set_default_allocator(void *allocator);

/* Counts a read of placeholder values by the program, in `op` at the calling thread's source line. true: --strict-values makes
 * it an error. */
MAYA_API bool maya_host_report_read(const char *op, size_t size);

#ifdef __cplusplus
}
#endif
