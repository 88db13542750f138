/* Announcements: what PyTorch tells observers, of ops and of the autograd nodes that it evaluates.
 *
 * In: calls of five functions of libtorch_cpu.so: both constructors of at::RecordFunction, of which the dispatcher uses one,
 * for ops, and everybody else the one that takes a scope; what the dispatcher calls next, to have the op announced; the
 * destructor; and the function that makes the observers of one thread those of another. Out: the observer is asked first
 * (observer/observer.cpp, autograd_nodes.cpp), and if it does not want the call, torch gets it. As this library is loaded before
 * libtorch_cpu.so, its functions of these names are the ones that are called, also from within libtorch_cpu.so. */

#define _GNU_SOURCE
#include "internal.h"

#include <dlfcn.h>
#include <stdlib.h>

#define CONSTRUCTOR _ZN2at14RecordFunctionC1ENS_11RecordScopeE
#define OP_CONSTRUCTOR _ZN2at14RecordFunctionC1EONS_13StepCallbacksE
#define ANNOUNCE_OP \
    _ZN3c1010Dispatcher17runRecordFunctionERN2at14RecordFunctionESt17reference_wrapperIKNS_14FunctionSchemaEENS_11DispatchKeyENS_14DispatchKeySetENS_8ArrayRefIKNS_6IValueEEE
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

/* Where torch lacks one of these it makes announcements in another way, and each has to reach the observer as ops do. The
 * build says so when it finds that torch lacks a function that we take the place of. */
void maya_set_announcement_observer(const maya_announcement_observer *to_ask) {
    if (FIND(CONSTRUCTOR) && FIND(ANNOUNCE_OP) && FIND(DESTRUCTOR) && FIND(SET_OBSERVERS)) observer = to_ask;
}

MAYA_API void CONSTRUCTOR(void *function, uint8_t scope) {
    static void (*make)(void *, uint8_t);
    if (observer && observer->begins(function, scope)) return;
    if (make == NULL) make = (void (*)(void *, uint8_t))NEED(CONSTRUCTOR);
    make(function, scope);
}

/* What it announces, it boxes next; then the observer is told, unless nobody is. */
MAYA_API void OP_CONSTRUCTOR(void *function, void *callbacks) {
    static void (*make)(void *, void *);
    if (make == NULL) make = (void (*)(void *, void *))NEED(OP_CONSTRUCTOR);
    make(function, callbacks);
    if (observer) maya_boxing_begins();
}

MAYA_API void ANNOUNCE_OP(void *function, const void *schema, uint16_t key, uint64_t keys, const void *inputs, size_t count) {
    static void (*announce)(void *, const void *, uint16_t, uint64_t, const void *, size_t);
    if (observer && observer->op_begins(function, schema, keys, inputs, count)) return;
    if (announce == NULL)
        announce = (void (*)(void *, const void *, uint16_t, uint64_t, const void *, size_t))NEED(ANNOUNCE_OP);
    announce(function, schema, key, keys, inputs, count);
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
