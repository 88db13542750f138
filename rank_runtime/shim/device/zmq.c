/* Loading ZeroMQ (zmq.h). */

#include "zmq.h"

#include <dlfcn.h>
#include <stdio.h>

const char *maya_load_zmq(zmq_functions *functions, const char *path) {
    static char problem[1024];
    void *library = *path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (library == NULL) {
        const char *error = *path ? dlerror() : "the variable is not set";
        snprintf(problem, sizeof problem,
                 "MAYA_ZMQ does not name the ZeroMQ library: %s; start the program with "
                 "maya-torchrun, which sets it",
                 error);
        return problem;
    }
    const struct {
        const char *name;
        void *slot;
    } wanted[] = {
        {"zmq_ctx_new", &functions->ctx_new},
        {"zmq_ctx_set", &functions->ctx_set},
        {"zmq_ctx_term", &functions->ctx_term},
        {"zmq_socket", &functions->socket},
        {"zmq_setsockopt", &functions->setsockopt},
        {"zmq_connect", &functions->connect},
        {"zmq_close", &functions->close},
        {"zmq_socket_monitor", &functions->socket_monitor},
        {"zmq_poll", &functions->poll},
        {"zmq_msg_init", &functions->msg_init},
        {"zmq_msg_init_data", &functions->msg_init_data},
        {"zmq_msg_send", &functions->msg_send},
        {"zmq_msg_recv", &functions->msg_recv},
        {"zmq_msg_more", &functions->msg_more},
        {"zmq_msg_data", &functions->msg_data},
        {"zmq_msg_size", &functions->msg_size},
        {"zmq_msg_close", &functions->msg_close},
        {"zmq_errno", &functions->error_number},
        {"zmq_strerror", &functions->strerror},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *function = dlsym(library, wanted[i].name);
        if (function == NULL) {
            snprintf(problem, sizeof problem, "%s has no function %s; MAYA_ZMQ must name ZeroMQ 4", path, wanted[i].name);
            return problem;
        }
        *(void **)wanted[i].slot = function;
    }
    return NULL;
}
