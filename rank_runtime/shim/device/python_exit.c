/* The end of the Python interpreter: threads that outlive it, and exiting before all of it is torn down.
 *
 * Autograd's threads free a finished graph, which takes the GIL, at about the time the program ends. On a GPU they are done
 * long before; here kernels take no time. CPython up to 3.13 ends a thread that asks for the GIL during shutdown with
 * pthread_exit(), and torch's C++ frames answer the unwinding with abort(). CPython 3.14 lets such threads hang instead; this
 * file does the same for every version. */

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

/* For an atexit function: whether the interpreter ends because the main program returned, and not because of SystemExit or
 * another exception. In the first case Py_RunMain itself tears down the interpreter, and the C stack between it and us holds
 * nothing else; otherwise it also holds the functions that handle the exception. false if that cannot be determined. */
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

/* Ends the process with status 0 right after the program's modules and objects are destroyed. The rest of CPython's shutdown
 * would visit all strings, types and memory pools. Needs the GIL. */
MAYA_API void maya_leave_python_early(void) {
    int (*add_hook)(int (*)(const char *, void *, void *), void *) =
        (int (*)(int (*)(const char *, void *, void *), void *))dlsym(RTLD_DEFAULT, "PySys_AddAuditHook");
    if (add_hook) add_hook(leave, NULL);
}
