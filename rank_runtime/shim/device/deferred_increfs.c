/* Deferred increfs: Python reference counts while torch boxes tensors for RecordFunction callbacks.
 *
 * While C++ holds references to a tensor that Python owns, the tensor counts once more for Python. Boxing an op's arguments
 * makes such references and drops them right after the callbacks ran. Each time, torch takes the GIL twice, a sixth of the cost
 * of observing an op. This file skips both: an incref during boxing is deferred, and the matching decref cancels it. That is
 * safe because the op's caller holds a Python reference meanwhile. Increfs that are still deferred when the op ends, because
 * other code took a reference in between, are flushed.
 *
 * In: calls of two functions of libc10.so, which these functions replace as record_function.c does; when boxing begins and
 * ends. Out: the same calls where they are needed. */

#define _GNU_SOURCE
#include "internal.h"
#include "process.h"

#define INCREF _ZNK3c1010TensorImpl15incref_pyobjectEv
#define DECREF _ZNK3c1010TensorImpl15decref_pyobjectEv
#define NEED(name) (refcount_function) maya_need_function("libc10.so", MAYA_TEXT_OF(name))

typedef void (*refcount_function)(const void *tensor);

enum { MOST_DEFERRED = 512 }; /* further ones, in long lists of tensors, take effect at once */

typedef struct {
    bool boxing;
    uint32_t first, count; /* tensors are unboxed in the order in which they were boxed */
    const void *deferred[MOST_DEFERRED];
} table;

static table *own_table(void) {
    static __thread table *own;
    if (own == NULL) maya_thread_table((void **)&own, sizeof *own);
    return own;
}

static void incref(const void *tensor) {
    static refcount_function real;
    if (real == NULL) real = NEED(INCREF);
    real(tensor);
}

static void decref(const void *tensor) {
    static refcount_function real;
    if (real == NULL) real = NEED(DECREF);
    real(tensor);
}

MAYA_API void INCREF(const void *tensor) {
    table *own = own_table();
    if (own->boxing && own->count < MOST_DEFERRED) own->deferred[own->count++] = tensor;
    else incref(tensor);
}

MAYA_API void DECREF(const void *tensor) {
    table *own = own_table();
    for (uint32_t i = own->first; i < own->count; i++) {
        if (own->deferred[i] != tensor) continue;
        own->deferred[i] = own->deferred[own->first++];
        if (own->first == own->count) own->first = own->count = 0;
        return;
    }
    decref(tensor);
}

void maya_boxing_begins(void) { own_table()->boxing = true; }

void maya_boxing_ends(void) { own_table()->boxing = false; }

void maya_flush_deferred_increfs(void) {
    table *own = own_table();
    while (own->first < own->count) incref(own->deferred[own->first++]);
    own->first = own->count = 0;
}
