/* The few functions of ZeroMQ that a rank uses, from the library inside pyzmq (MAYA_ZMQ). Numbers are those of
 * ZeroMQ's stable interface, version 4. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum {
    ZMQ_PAIR = 0,
    ZMQ_DEALER = 5,

    ZMQ_IO_THREADS = 1, /* of a context */
    ZMQ_MAX_SOCKETS = 2,

    ZMQ_LINGER = 17, /* of a socket */
    ZMQ_RECONNECT_IVL = 18,
    ZMQ_SNDHWM = 23,
    ZMQ_RCVHWM = 24,
    ZMQ_CURVE_PUBLICKEY = 48,
    ZMQ_CURVE_SECRETKEY = 49,
    ZMQ_CURVE_SERVERKEY = 50,
    ZMQ_HANDSHAKE_IVL = 66,

    ZMQ_DONTWAIT = 1,
    ZMQ_SNDMORE = 2,
    ZMQ_POLLIN = 1,

    ZMQ_EVENT_CONNECTED = 0x0001,
    ZMQ_EVENT_DISCONNECTED = 0x0200,
    ZMQ_EVENT_HANDSHAKE_FAILED_AUTH = 0x4000,
};

typedef struct {
    _Alignas(void *) unsigned char opaque[64];
} zmq_msg;

typedef struct {
    void *socket;
    int file_descriptor;
    short events, ready;
} zmq_pollitem;

typedef struct {
    void *(*ctx_new)(void);
    int (*ctx_set)(void *context, int option, int value);
    int (*ctx_term)(void *context);
    void *(*socket)(void *context, int type);
    int (*setsockopt)(void *socket, int option, const void *value, size_t size);
    int (*connect)(void *socket, const char *endpoint);
    int (*close)(void *socket);
    int (*socket_monitor)(void *socket, const char *endpoint, int events);
    int (*poll)(zmq_pollitem *items, int count, long milliseconds);
    int (*msg_init)(zmq_msg *message);
    int (*msg_init_data)(zmq_msg *message, void *data, size_t size, void (*release)(void *data, void *hint), void *hint);
    int (*msg_send)(zmq_msg *message, void *socket, int flags);
    int (*msg_recv)(zmq_msg *message, void *socket, int flags);
    int (*msg_more)(const zmq_msg *message);
    void *(*msg_data)(zmq_msg *message);
    size_t (*msg_size)(const zmq_msg *message);
    int (*msg_close)(zmq_msg *message);
    int (*error_number)(void);
    const char *(*strerror)(int error);
} zmq_functions;

/* Loads the library and finds its functions. Returns NULL or an error message. */
const char *maya_load_zmq(zmq_functions *functions, const char *path);
