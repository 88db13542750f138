/* Announcements: what PyTorch tells observers beside ops, most of all the autograd nodes that it evaluates.
 *
 * In: calls of four functions of libtorch_cpu.so: the constructor of at::RecordFunction that takes a scope, its destructor,
 * and the one that makes the observers of one thread those of another; and its other constructor, by which the dispatcher
 * begins to announce an op. Out: the observer (observer/nodes.cpp) is asked first, or it is noted, then they are passed on. As this library is loaded before libtorch_cpu.so, its functions of these names are the ones that
 * are called, also from within libtorch_cpu.so. */

#define _GNU_SOURCE
#include "internal.h"

#include <dlfcn.h>
#include <stdlib.h>

#define CONSTRUCTOR _ZN2at14RecordFunctionC1ENS_11RecordScopeE
#define OP_CONSTRUCTOR _ZN2at14RecordFunctionC1EONS_13StepCallbacksE
#define DESTRUCTOR _ZN2at14RecordFunctionD1Ev
#define SET_OBSERVERS _ZN2at24set_record_function_tls_ERKNS_17RecordFunctionTLSE

static const maya_announcement_observer *observer;

#define FIND(name) find_function("libtorch_cpu.so", MAYA_TEXT_OF(name))
#define NEED(name) maya_need_function("libtorch_cpu.so", MAYA_TEXT_OF(name))

static void *find_function(const char *library_name, const char *name) {
    void *library = dlopen(library_name, RTLD_LAZY | RTLD_NOLOAD);
    return library ? dlsym(library, name) : NULL;
}

void *maya_need_function(const char *library_name, const char *name) {
    void *function = find_function(library_name, name);
    if (function == NULL) {
        maya_message("%s is not in %s, which calls it", name, library_name);
        abort();
    }
    return function;
}

/* Where torch lacks one of the three it makes announcements in another way, and each has to reach the observer as ops do. The
 * build says so when it finds that torch lacks a function that we take the place of. */
void maya_set_announcement_observer(const maya_announcement_observer *to_ask) {
    if (FIND(CONSTRUCTOR) && FIND(DESTRUCTOR) && FIND(SET_OBSERVERS)) observer = to_ask;
}

MAYA_API void CONSTRUCTOR(void *function, uint8_t scope) {
    static void (*make)(void *, uint8_t);
    if (observer && observer->begins(function, scope)) return;
    if (make == NULL) make = (void (*)(void *, uint8_t))NEED(CONSTRUCTOR);
    make(function, scope);
}

/* What it announces, it boxes next; the observer's callback is told, unless nobody is. */
MAYA_API void OP_CONSTRUCTOR(void *function, void *callbacks) {
    static void (*make)(void *, void *);
    if (make == NULL) make = (void (*)(void *, void *))NEED(OP_CONSTRUCTOR);
    make(function, callbacks);
    if (observer) maya_boxing_begins();
}

MAYA_API void DESTRUCTOR(void *function) {
    static void (*destroy)(void *);
    if (observer) observer->ends(function);
    if (destroy == NULL) destroy = (void (*)(void *))NEED(DESTRUCTOR);
    destroy(function);
}

MAYA_API void SET_OBSERVERS(const void *observers) {
    static void (*set)(const void *);
    if (observer && observer->is_set(observers)) return;
    if (set == NULL) set = (void (*)(const void *))NEED(SET_OBSERVERS);
    set(observers);
}
