/* Announcements: what PyTorch tells observers beside ops, most of all the autograd nodes that it evaluates.
 *
 * In: calls of two functions of libtorch_cpu.so, the constructor of at::RecordFunction that takes a scope and its destructor.
 * Out: the observer (observer/nodes.cpp) is asked first, then they are passed on. As this library is loaded before
 * libtorch_cpu.so, its functions of these names are the ones that are called, also from within libtorch_cpu.so. */

#define _GNU_SOURCE
#include "internal.h"

#include <dlfcn.h>
#include <stdlib.h>

#define CONSTRUCTOR _ZN2at14RecordFunctionC1ENS_11RecordScopeE
#define DESTRUCTOR _ZN2at14RecordFunctionD1Ev

static bool (*announcement_begins)(void *function, uint8_t scope);
static void (*announcement_ends)(void *function);

void maya_set_announcement_observer(bool (*begins)(void *function, uint8_t scope), void (*ends)(void *function)) {
    announcement_ends = ends;
    announcement_begins = begins;
}

static void *find_in_torch(const char *name) {
    void *library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    void *function = library ? dlsym(library, name) : NULL;
    if (function == NULL) {
        maya_message("%s is not in libtorch_cpu.so, which calls it", name);
        abort();
    }
    return function;
}

MAYA_API void CONSTRUCTOR(void *function, uint8_t scope) {
    static void (*make)(void *, uint8_t);
    if (announcement_begins && announcement_begins(function, scope)) return;
    if (make == NULL) make = (void (*)(void *, uint8_t))find_in_torch("_ZN2at14RecordFunctionC1ENS_11RecordScopeE");
    make(function, scope);
}

MAYA_API void DESTRUCTOR(void *function) {
    static void (*destroy)(void *);
    if (announcement_ends) announcement_ends(function);
    if (destroy == NULL) destroy = (void (*)(void *))find_in_torch("_ZN2at14RecordFunctionD1Ev");
    destroy(function);
}
