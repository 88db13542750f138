/* Python's counts of references, while torch boxes tensors to announce an op.
 *
 * A tensor that Python owns counts, for Python, once more while C++ has references of its own. Boxing an op's arguments makes
 * such references, and drops them as soon as the op is announced; for each, torch takes Python's lock twice, which is a sixth
 * of what announcing an op costs. Here both are left out: a count that boxing would have raised is owed, and no longer is when
 * it would have been lowered. Whoever called the op has a reference in Python for as long as that takes. What is still owed
 * when the op ends, because somebody else took a reference meanwhile, is made good.
 *
 * In: calls of two functions of libc10.so, whose places these take, as announcements.c does; the beginning and the end of
 * boxing. Out: the same calls, if they matter. */

#define _GNU_SOURCE
#include "internal.h"
#include "process.h"

#define INCREF _ZNK3c1010TensorImpl15incref_pyobjectEv
#define DECREF _ZNK3c1010TensorImpl15decref_pyobjectEv
#define NEED(name) (count_function) maya_need_function("libc10.so", MAYA_TEXT_OF(name))

typedef void (*count_function)(const void *tensor);

enum { MOST_OWED = 512 }; /* more than that, in lists of tensors, are counted */

typedef struct {
    bool boxing;
    uint32_t first, count; /* tensors are unboxed in the order in which they were boxed */
    const void *owed[MOST_OWED];
} table;

static table *own_table(void) {
    static __thread table *own;
    if (own == NULL) maya_thread_table((void **)&own, sizeof *own);
    return own;
}

static void raise_count(const void *tensor) {
    static count_function real;
    if (real == NULL) real = NEED(INCREF);
    real(tensor);
}

static void lower_count(const void *tensor) {
    static count_function real;
    if (real == NULL) real = NEED(DECREF);
    real(tensor);
}

MAYA_API void INCREF(const void *tensor) {
    table *own = own_table();
    if (own->boxing && own->count < MOST_OWED) own->owed[own->count++] = tensor;
    else raise_count(tensor);
}

MAYA_API void DECREF(const void *tensor) {
    table *own = own_table();
    for (uint32_t i = own->first; i < own->count; i++) {
        if (own->owed[i] != tensor) continue;
        own->owed[i] = own->owed[own->first++];
        if (own->first == own->count) own->first = own->count = 0;
        return;
    }
    lower_count(tensor);
}

void maya_boxing_begins(void) { own_table()->boxing = true; }

void maya_boxing_ends(void) { own_table()->boxing = false; }

void maya_make_counts_good(void) {
    table *own = own_table();
    while (own->first < own->count) raise_count(own->owed[own->first++]);
    own->first = own->count = 0;
}
