/* The end of the Python interpreter: threads that outlive it, and leaving before all of it is taken apart.
 *
 * Autograd's threads drop a finished graph, which takes Python's lock, at about the time the program ends. On a GPU they are
 * long done by then; here nothing takes time. CPython up to 3.13 ends a thread that asks for its lock after shut-down has
 * begun with pthread_exit(), and torch's C++ frames answer the unwinding with abort(). CPython 3.14 lets such threads hang
 * instead, which is what happens here for every version. */

#define _GNU_SOURCE
#include "device.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
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

/* Whether a return address is in the exported function of that name. */
static bool is_in(const void *address, const char *name) {
    Dl_info info;
    const ElfW(Sym) *symbol = NULL;
    const char *call = (const char *)address - 1;
    if (!dladdr1(call, &info, (void **)&symbol, RTLD_DL_SYMENT) || info.dli_sname == NULL || symbol == NULL) return false;
    return strcmp(info.dli_sname, name) == 0 && call < (const char *)info.dli_saddr + symbol->st_size;
}

/* For an atexit function: whether the interpreter ends because its main program is over, and not because of an exception
 * that asks for it. Then Py_RunMain itself takes the interpreter apart, and nothing but that stands between it and us;
 * otherwise there are also those who ran the program, met the exception and reported it. false where that cannot be seen. */
MAYA_API bool maya_python_returned(void) {
    enum { MOST_FRAMES = 256, FINALIZER_AND_ATEXIT = 2 };
    void *frames[MOST_FRAMES];
    int count = backtrace(frames, MOST_FRAMES), last_of_ours = -1;
    for (int i = 0; i < count; i++) {
        if (is_in(frames[i], "_PyEval_EvalFrameDefault")) last_of_ours = i;
        else if (is_in(frames[i], "Py_RunMain")) return last_of_ours >= 0 && i - last_of_ours - 1 <= FINALIZER_AND_ATEXIT;
        else if (is_in(frames[i], "Py_Exit") || is_in(frames[i], "PyErr_PrintEx")) return false;
    }
    return false;
}

static int leave(const char *event, void *arguments, void *data) {
    (void)arguments, (void)data;
    if (strcmp(event, "cpython.PyInterpreterState_Clear") == 0) exit(0);
    return 0;
}

/* The process will end, with status 0, as soon as the program's modules and objects have. What comes after that in CPython
 * goes through all strings, types and pools of memory there are. Needs Python's lock. */
MAYA_API void maya_leave_python_early(void) {
    int (*add_hook)(int (*)(const char *, void *, void *), void *) =
        (int (*)(int (*)(const char *, void *, void *), void *))dlsym(RTLD_DEFAULT, "PySys_AddAuditHook");
    if (add_hook) add_hook(leave, NULL);
}
