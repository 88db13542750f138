/* RecordFunction callbacks: torch's own hooks around ops and autograd nodes, seen before torch runs them.
 *
 * In: calls of five functions of libtorch_cpu.so: both constructors of at::RecordFunction (the dispatcher uses one of them for
 * ops, all other code the one that takes a scope), Dispatcher::runRecordFunction, which the dispatcher calls next, the
 * destructor, and the function that copies one thread's callbacks to another. Out: the op observer is called first
 * (observer/observer.cpp, autograd_nodes.cpp); a call that it does not handle goes on to torch. This library is loaded before
 * libtorch_cpu.so, so its functions of these names are the ones that are called, even from within libtorch_cpu.so. */

#define _GNU_SOURCE
#include "internal.h"

#include <dlfcn.h>
#include <stdlib.h>

#define CONSTRUCTOR _ZN2at14RecordFunctionC1ENS_11RecordScopeE
#define OP_CONSTRUCTOR _ZN2at14RecordFunctionC1EONS_13StepCallbacksE
#define RUN_CALLBACKS \
    _ZN3c1010Dispatcher17runRecordFunctionERN2at14RecordFunctionESt17reference_wrapperIKNS_14FunctionSchemaEENS_11DispatchKeyENS_14DispatchKeySetENS_8ArrayRefIKNS_6IValueEEE
#define DESTRUCTOR _ZN2at14RecordFunctionD1Ev
#define SET_CALLBACKS _ZN2at24set_record_function_tls_ERKNS_17RecordFunctionTLSE

static const maya_record_function_callbacks *ours;

#define FIND(name) find_function("libtorch_cpu.so", MAYA_TEXT_OF(name))
#define NEED(name) maya_need_function("libtorch_cpu.so", MAYA_TEXT_OF(name))

static void *find_function(const char *library_name, const char *name) {
    void *library = dlopen(library_name, RTLD_LAZY | RTLD_NOLOAD);
    return library ? dlsym(library, name) : NULL;
}

void *maya_need_function(const char *library_name, const char *name) {
    void *function = find_function(library_name, name);
    if (function == NULL) {
        maya_message("internal error: %s calls %s but does not define it", library_name, name);
        abort();
    }
    return function;
}

/* Without effect if torch lacks one of these functions: then the observer is an ordinary RecordFunction callback. The build
 * reports functions that we replace and torch lacks. */
void maya_set_record_function_callbacks(const maya_record_function_callbacks *wanted) {
    if (FIND(CONSTRUCTOR) && FIND(RUN_CALLBACKS) && FIND(DESTRUCTOR) && FIND(SET_CALLBACKS)) ours = wanted;
}

MAYA_API void CONSTRUCTOR(void *function, uint8_t scope) {
    static void (*make)(void *, uint8_t);
    if (ours && ours->begins(function, scope)) return;
    if (make == NULL) make = (void (*)(void *, uint8_t))NEED(CONSTRUCTOR);
    make(function, scope);
    if (ours) maya_boxing_ends(); /* it calls OP_CONSTRUCTOR, but no arguments are boxed for it */
}

/* The dispatcher boxes the op's arguments next, and then runs the callbacks if there are any. */
MAYA_API void OP_CONSTRUCTOR(void *function, void *callbacks) {
    static void (*make)(void *, void *);
    if (make == NULL) make = (void (*)(void *, void *))NEED(OP_CONSTRUCTOR);
    make(function, callbacks);
    if (ours) maya_boxing_begins();
}

MAYA_API void RUN_CALLBACKS(void *function, const void *schema, uint16_t key, uint64_t keys, const void *inputs, size_t count) {
    static void (*run)(void *, const void *, uint16_t, uint64_t, const void *, size_t);
    if (ours && ours->op_begins(function, schema, keys, inputs, count)) return;
    if (run == NULL) run = (void (*)(void *, const void *, uint16_t, uint64_t, const void *, size_t))NEED(RUN_CALLBACKS);
    run(function, schema, key, keys, inputs, count);
}

MAYA_API void DESTRUCTOR(void *function) {
    static void (*destroy)(void *);
    if (ours) ours->ends(function);
    if (destroy == NULL) destroy = (void (*)(void *))NEED(DESTRUCTOR);
    destroy(function);
}

MAYA_API void SET_CALLBACKS(const void *observers) {
    static void (*set)(const void *);
    if (ours && ours->is_set(observers)) return;
    if (set == NULL) set = (void (*)(const void *))NEED(SET_CALLBACKS);
    set(observers);
}
