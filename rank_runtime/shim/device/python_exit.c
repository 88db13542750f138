/* Threads that outlive the Python interpreter.
 *
 * Autograd's threads drop a finished graph, which takes Python's lock, at about the time the program ends. On a GPU they are
 * long done by then; here nothing takes time. CPython up to 3.13 ends a thread that asks for its lock after shut-down has
 * begun with pthread_exit(), and torch's C++ frames answer the unwinding with abort(). CPython 3.14 lets such threads hang
 * instead, which is what happens here for every version. */

#define _GNU_SOURCE
#include "device.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

static bool python_is_finalizing(void) {
    int (*is_finalizing)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
    if (is_finalizing == NULL) is_finalizing = (int (*)(void))dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");
    return is_finalizing != NULL && is_finalizing();
}

MAYA_API __attribute__((noreturn)) void pthread_exit(void *result) {
    while (python_is_finalizing()) pause();
    void (*real_pthread_exit)(void *) = (void (*)(void *))dlsym(RTLD_NEXT, "pthread_exit");
    real_pthread_exit(result);
    __builtin_unreachable();
}
