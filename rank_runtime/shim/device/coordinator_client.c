/* The coordinator's client (coordinator_client.h): a ZeroMQ DEALER socket and the thread that owns it.
 *
 * maya_connect_lock guards the first connection, maya_outgoing_lock the batch. The receiver is called with neither held. */

#define _GNU_SOURCE
#include "coordinator_client.h"
#include "faults.h"
#include "late_rank.h"
#include "process.h"
#include "vector.h"
#include "virtual_clock.h"
#include "zmq.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum {
    ALIVE_MILLISECONDS = 5000,
    WELCOME_MILLISECONDS = 300000, /* a thousand ranks may connect at once, on two cores */
    GOODBYE_MILLISECONDS = 1000,
    STACK_BYTES = 256 << 10,
    BATCH_HEADER = 5, /* msgpack's largest array header */
};

typedef struct {
    void *bytes;
    size_t size;
} payload;

typedef struct {
    maya_packer packer; /* room for the header, then the messages */
    size_t messages;
    MAYA_VECTOR(payload) payloads;
} batch;

pthread_mutex_t maya_connect_lock = PTHREAD_MUTEX_INITIALIZER;
static bool tried, reported; /* reported: the user has seen the problem */
static char problem[1536];   /* why there is no connection; valid if `failed` */
static _Atomic bool failed;
static pid_t connected_process;

pthread_mutex_t maya_outgoing_lock = PTHREAD_MUTEX_INITIALIZER;
static batch outgoing;
static bool accepting; /* messages are queued, not dropped */
static _Atomic bool ending;

static zmq_functions zmq;
static void *context, *dealer, *monitor;
static const maya_client_receiver *_Atomic receiver; /* NULL: so far only the virtual clock uses the connection */
static int wake_descriptor = -1, gone_descriptor = -1;
static _Atomic int connection_descriptor = -1;
static bool welcome;
static _Atomic int64_t steps;
static _Atomic uint64_t last_ns; /* by the virtual clock, when the process ends */

static int64_t milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void maya_count_step(void) {
    atomic_fetch_add_explicit(&steps, 1, memory_order_relaxed);
    maya_fault_at_step();
}

/* ---- the batch ---- */

maya_packer *maya_outgoing_begin(void) {
    pthread_mutex_lock(&maya_outgoing_lock);
    maya_packer *packer = &outgoing.packer;
    if (packer->size == 0) {
        packer->capacity = 512;
        packer->bytes = must_alloc(malloc(packer->capacity));
        packer->size = BATCH_HEADER;
    }
    return packer;
}

void maya_outgoing_end(void *bytes, size_t size) {
    if (accepting) {
        outgoing.messages++;
        if (bytes) *maya_vector_add(&outgoing.payloads) = (payload){bytes, size};
    } else {
        outgoing.packer.size = BATCH_HEADER;
        free(bytes);
    }
    pthread_mutex_unlock(&maya_outgoing_lock);
}

void maya_outgoing_send(void) {
    uint64_t one = 1;
    if (wake_descriptor >= 0) {
        ssize_t written = write(wake_descriptor, &one, sizeof one);
        (void)written; /* fails only if the counter is full, and then the thread is awake anyway */
    }
}

/* Takes the current batch and begins the next one. */
static batch take_batch(void) {
    pthread_mutex_lock(&maya_outgoing_lock);
    batch taken = outgoing;
    outgoing = (batch){0};
    pthread_mutex_unlock(&maya_outgoing_lock);
    return taken;
}

static void release(void *bytes, void *hint) {
    (void)hint;
    free(bytes);
}

/* Never blocks: the socket's queue has no limit. Its length is bounded by what the rank's streams wait for. */
static void send_frame(void *bytes, size_t size, bool more) {
    zmq_msg frame;
    if (zmq.msg_init_data(&frame, bytes, size, release, NULL) != 0) abort();
    if (zmq.msg_send(&frame, dealer, more ? ZMQ_SNDMORE : 0) < 0) zmq.msg_close(&frame);
}

static void send_batch(batch *sent) {
    if (sent->messages > 0) {
        uint8_t *header = sent->packer.bytes;
        header[0] = 0xdd; /* an array whose count is in the next four bytes */
        for (int i = 0; i < 4; i++) header[1 + i] = (uint8_t)(sent->messages >> (24 - 8 * i));
        send_frame(sent->packer.bytes, sent->packer.size, sent->payloads.count > 0);
        for (size_t i = 0; i < sent->payloads.count; i++) {
            send_frame(sent->payloads.items[i].bytes, sent->payloads.items[i].size, i + 1 < sent->payloads.count);
        }
    } else {
        free(sent->packer.bytes);
    }
    free(sent->payloads.items);
}

/* ---- receiving ---- */

static void refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Marks the connection as failed. Only the first reason is kept. */
static void refuse(const char *format, ...) {
    if (failed) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(problem, sizeof problem, format, arguments);
    va_end(arguments);
    failed = true;
}

typedef MAYA_VECTOR(zmq_msg) frames;

/* Reads the frames of the next batch; false if none has arrived. ZeroMQ delivers all frames of a message at once. */
static bool receive_frames(frames *received) {
    bool more = true;
    while (more) {
        maya_vector_reserve(received, received->count + 1);
        zmq_msg *frame = &received->items[received->count];
        zmq.msg_init(frame);
        if (zmq.msg_recv(frame, dealer, ZMQ_DONTWAIT) < 0) {
            zmq.msg_close(frame);
            return false;
        }
        received->count++;
        more = zmq.msg_more(frame);
    }
    return true;
}

/* Answers for NCCL go to the receiver. */
static bool is_for_receiver(int64_t kind) {
    return kind == MAYA_KIND_JOINED || kind == MAYA_KIND_REQUEST_FAILED || kind == MAYA_KIND_DONE || kind == MAYA_KIND_FAILED ||
           kind == MAYA_KIND_ABANDONED;
}

/* Handles one message; false if this version has no such message. */
static bool handle_message(maya_unpacker *from, frames *received, size_t *next_payload) {
    static maya_joined joined;
    static maya_done done;
    static maya_times times;
    size_t count;
    int64_t kind;
    if (!maya_unpack_array(from, &count) || !maya_unpack_number(from, &kind)) return false;
    const maya_client_receiver *told = receiver;
    if (told == NULL && is_for_receiver(kind)) return false;
    switch (kind) {
        case MAYA_KIND_WELCOME: {
            maya_welcome message;
            if (!maya_unpack_welcome(from, count, &message)) return false;
            welcome = true;
            return true;
        }
        case MAYA_KIND_REFUSED: {
            maya_refused message;
            if (!maya_unpack_refused(from, count, &message)) return false;
            refuse("the coordinator refuses this process: %.*s", (int)message.text.size, message.text.bytes);
            return true;
        }
        case MAYA_KIND_JOINED:
            if (!maya_unpack_joined(from, count, &joined)) return false;
            told->joined(&joined);
            return true;
        case MAYA_KIND_REQUEST_FAILED: {
            maya_request_failed message;
            if (!maya_unpack_request_failed(from, count, &message)) return false;
            told->request_failed(&message);
            return true;
        }
        case MAYA_KIND_DESCRIBED: {
            maya_described message;
            if (!maya_unpack_described(from, count, &message)) return false;
            told->described(&message);
            return true;
        }
        case MAYA_KIND_DONE: {
            if (!maya_unpack_done(from, count, &done) || (done.payload && *next_payload == received->count)) return false;
            zmq_msg *frame = done.payload ? &received->items[(*next_payload)++] : NULL;
            told->done(&done, frame ? zmq.msg_data(frame) : NULL, frame ? zmq.msg_size(frame) : 0);
            return true;
        }
        case MAYA_KIND_FAILED: {
            maya_failed message;
            if (!maya_unpack_failed(from, count, &message)) return false;
            told->failed(&message);
            return true;
        }
        case MAYA_KIND_ABANDONED: {
            maya_abandoned message;
            if (!maya_unpack_abandoned(from, count, &message)) return false;
            told->abandoned(&message);
            return true;
        }
        case MAYA_KIND_TIMES:
            if (!maya_unpack_times(from, count, &times) || times.numbers.count != times.ns.count) return false;
            maya_clock_times(times.numbers.items, times.ns.items, times.ns.count);
            return true;
        default: return false;
    }
}

static void handle_batch(frames *received) {
    const uint8_t *bytes = zmq.msg_data(&received->items[0]);
    maya_unpacker from = {bytes, bytes + zmq.msg_size(&received->items[0])};
    size_t messages, next_payload = 1;
    bool understood = maya_unpack_array(&from, &messages);
    while (understood && messages-- > 0) understood = handle_message(&from, received, &next_payload);
    if (!understood || from.at != from.end || next_payload != received->count) {
        refuse(
            "cannot decode the coordinator's answer: either it does not use version %d of the messages, or another program "
            "listens at %s",
            MAYA_MESSAGES_VERSION, maya_get_settings()->coordinator);
    }
}

static void receive_batches(void) {
    static frames received;
    bool complete = true;
    while (complete && !failed) {
        complete = receive_frames(&received);
        if (complete) handle_batch(&received);
        while (received.count > 0) zmq.msg_close(&received.items[--received.count]);
    }
}

/* Reads ZeroMQ's connection events. ZeroMQ would reconnect by itself, but a new coordinator would not know this run's state, so
 * a disconnect ends the connection. */
static void watch_connection(void) {
    struct {
        uint16_t event;
        uint32_t value;
    } __attribute__((packed)) news;
    zmq_msg frame;
    zmq.msg_init(&frame);
    while (zmq.msg_recv(&frame, monitor, ZMQ_DONTWAIT) >= 0) {
        bool is_news = zmq.msg_more(&frame) && zmq.msg_size(&frame) == sizeof news; /* the address follows */
        if (!is_news) continue;
        memcpy(&news, zmq.msg_data(&frame), sizeof news);
        if (news.event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) {
            refuse("the coordinator at %s does not accept the key of this rank", maya_get_settings()->coordinator);
        }
        if (news.event == ZMQ_EVENT_CONNECTED) connection_descriptor = (int)news.value;
        if (news.event == ZMQ_EVENT_DISCONNECTED) {
            connection_descriptor = -1;
            receive_batches(); /* its last messages */
            refuse("the coordinator at %s has ended, or cannot be reached any more; without it ranks cannot communicate", maya_get_settings()->coordinator);
        }
    }
    zmq.msg_close(&frame);
}

/* ---- the thread ---- */

static void add_alive(int64_t count) {
    maya_alive message = {.steps = count, .host_ns = (int64_t)maya_clock_rank_ns()};
    maya_pack_alive(maya_outgoing_begin(), &message);
    maya_outgoing_end(NULL, 0);
}

static void add_bye(void) {
    maya_pack_bye(maya_outgoing_begin(), &(maya_bye){.host_ns = (int64_t)last_ns});
    maya_outgoing_end(NULL, 0);
}

static void close_connection(bool lost) {
    int linger = lost ? 0 : GOODBYE_MILLISECONDS;
    zmq.setsockopt(dealer, ZMQ_LINGER, &linger, sizeof linger);
    zmq.close(monitor);
    zmq.close(dealer);
    zmq.ctx_term(context);
    connection_descriptor = -1;
}

static void stop_accepting(void) {
    pthread_mutex_lock(&maya_outgoing_lock);
    accepting = false;
    pthread_mutex_unlock(&maya_outgoing_lock);
    batch dropped = take_batch();
    for (size_t i = 0; i < dropped.payloads.count; i++) free(dropped.payloads.items[i].bytes);
    free(dropped.payloads.items);
    free(dropped.packer.bytes);
}

static void *talk(void *unused) {
    (void)unused;
    int64_t begun = milliseconds(), next_alive = begun + ALIVE_MILLISECONDS, steps_sent = 0;
    bool last = false;
    while (!last && !failed) {
        int64_t now = milliseconds();
        zmq_pollitem items[] = {
            {.socket = dealer, .events = ZMQ_POLLIN},
            {.socket = monitor, .events = ZMQ_POLLIN},
            {.file_descriptor = wake_descriptor, .events = ZMQ_POLLIN},
        };
        if (zmq.poll(items, 3, now < next_alive ? (long)(next_alive - now) : 0) < 0 && zmq.error_number() != EINTR) {
            refuse("waiting for the coordinator failed: %s", zmq.strerror(zmq.error_number()));
        }
        if (items[2].ready) {
            uint64_t count;
            ssize_t read_bytes = read(wake_descriptor, &count, sizeof count);
            (void)read_bytes;
        }
        now = milliseconds();
        int64_t steps_now = atomic_load_explicit(&steps, memory_order_relaxed);
        if (now >= next_alive || steps_now != steps_sent) {
            add_alive(steps_now);
            steps_sent = steps_now;
            next_alive = now + ALIVE_MILLISECONDS;
        }
        last = ending;
        if (last) add_bye();
        batch sent = take_batch();
        send_batch(&sent);
        receive_batches();
        if (items[1].ready) watch_connection();
        if (!welcome && now - begun > WELCOME_MILLISECONDS) {
            refuse("the coordinator at %s has not answered for %d s; does it belong to this run (MAYA_COORDINATOR_SECRET)?",
                   maya_get_settings()->coordinator, WELCOME_MILLISECONDS / 1000);
        }
    }
    stop_accepting();
    pthread_mutex_lock(&maya_connect_lock);
    if (failed && !reported) maya_message("NCCL: %s", problem);
    reported = failed;
    pthread_mutex_unlock(&maya_connect_lock);
    maya_clock_lost();
    const maya_client_receiver *told = receiver;
    if (told) told->lost(failed ? problem : NULL);
    close_connection(failed);
    uint64_t one = 1;
    ssize_t written = write(gone_descriptor, &one, sizeof one);
    (void)written;
    return NULL;
}

/* ---- beginning and end ---- */

static const char no_coordinator[] =
    "there is no coordinator: a run of one rank with --clock wall has none; start the program with maya-torchrun and the "
    "number of ranks it needs or, if it drives several GPUs itself (nn.DataParallel), with --clock virtual";

/* Encrypts the connection, if the settings have keys. ZeroMQ takes a key as text of 40 characters. */
static bool set_keys(const char *keys) {
    enum { KEY = 40 };
    static const int options[] = {ZMQ_CURVE_SERVERKEY, ZMQ_CURVE_PUBLICKEY, ZMQ_CURVE_SECRETKEY};
    if (keys[0] == '\0') return true;
    if (strlen(keys) != 3 * KEY + 2) {
        errno = EINVAL;
        return false;
    }
    for (int i = 0; i < 3; i++) {
        char key[KEY + 1] = {0};
        memcpy(key, keys + i * (KEY + 1), KEY);
        if (zmq.setsockopt(dealer, options[i], key, sizeof key) != 0) return false;
    }
    return true;
}

static bool open_sockets(const maya_settings *settings) {
    static const char endpoint[] = "inproc://connection";
    const int no_limit = 0, linger = GOODBYE_MILLISECONDS, retry_milliseconds = 20;
    context = zmq.ctx_new();
    if (context == NULL) return false;
    zmq.ctx_set(context, ZMQ_IO_THREADS, 1);
    zmq.ctx_set(context, ZMQ_MAX_SOCKETS, 4);
    dealer = zmq.socket(context, ZMQ_DEALER);
    monitor = zmq.socket(context, ZMQ_PAIR);
    if (dealer == NULL || monitor == NULL) return false;
    /* With a limit, a send could block the thread that also receives answers; see send_frame. */
    zmq.setsockopt(dealer, ZMQ_SNDHWM, &no_limit, sizeof no_limit);
    zmq.setsockopt(dealer, ZMQ_RCVHWM, &no_limit, sizeof no_limit);
    zmq.setsockopt(dealer, ZMQ_LINGER, &linger, sizeof linger);
    zmq.setsockopt(monitor, ZMQ_LINGER, &no_limit, sizeof no_limit);
    /* Retry soon: when a thousand ranks connect at once, the coordinator's listen queue is full. */
    zmq.setsockopt(dealer, ZMQ_RECONNECT_IVL, &retry_milliseconds, sizeof retry_milliseconds);
    /* A handshake may have to wait until the coordinator has handled those of a thousand other ranks. */
    zmq.setsockopt(dealer, ZMQ_HANDSHAKE_IVL, &no_limit, sizeof no_limit);
    const int events = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
    return set_keys(settings->coordinator_keys) && zmq.socket_monitor(dealer, endpoint, events) == 0 &&
           zmq.connect(monitor, endpoint) == 0 && zmq.connect(dealer, settings->coordinator) == 0;
}

static void say_hello(const maya_settings *settings) {
    maya_pack_hello(maya_outgoing_begin(), &(maya_hello){
                                               .version = MAYA_MESSAGES_VERSION,
                                               .secret = {settings->coordinator_secret, strlen(settings->coordinator_secret)},
                                               .rank = settings->rank,
                                               .process = getpid(),
                                           });
    maya_outgoing_end(NULL, 0);
    maya_send_place();
}

static void end_at_exit(int status, void *unused) {
    (void)unused;
    maya_drain_at_exit(status);
    maya_client_end();
}

static void try_to_connect(void) {
    maya_appear();
    const maya_settings *settings = maya_get_settings();
    if (settings->coordinator[0] == '\0') {
        refuse("%s", no_coordinator);
        return;
    }
    const char *missing = maya_load_zmq(&zmq, settings->zmq_path);
    if (missing) {
        refuse("%s", missing);
        return;
    }
    wake_descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    gone_descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_descriptor < 0 || gone_descriptor < 0) {
        refuse("cannot open an event descriptor: %s; raise the limit of open files (ulimit -n)", strerror(errno));
    } else if (!open_sockets(settings)) {
        refuse("cannot connect to the coordinator at %s: %s", settings->coordinator, zmq.strerror(zmq.error_number()));
    } else {
        maya_watch_forks();
        accepting = true;
        say_hello(settings);
        maya_outgoing_send();
        connected_process = getpid();
        on_exit(end_at_exit, NULL);
        if (!maya_start_thread(talk, NULL, STACK_BYTES)) refuse("cannot start a thread; raise the process limit (ulimit -u)");
        if (settings->debug > 0) maya_message("connecting to the coordinator at %s", settings->coordinator);
    }
}

const char *maya_client_connect(const maya_client_receiver *wanted) {
    pthread_mutex_lock(&maya_connect_lock);
    if (wanted) receiver = wanted;
    if (!tried) {
        tried = true;
        try_to_connect();
    }
    if (failed && !reported) maya_message("NCCL: %s", problem);
    reported = failed;
    pthread_mutex_unlock(&maya_connect_lock);
    return failed ? problem : NULL;
}

bool maya_client_is_connected(void) { return connected_process == getpid() && !failed; }

void maya_client_end(void) {
    if (connected_process != getpid()) return; /* a child of vfork shares our memory but has no connection */
    connected_process = 0;
    last_ns = maya_clock_last_ns();
    ending = true;
    maya_outgoing_send();
    struct pollfd gone = {.fd = gone_descriptor, .events = POLLIN};
    poll(&gone, 1, GOODBYE_MILLISECONDS);
}

void maya_client_after_fork(void) {
    if (connection_descriptor >= 0)
        close(connection_descriptor); /* otherwise the coordinator would not notice the parent's end */
    if (wake_descriptor >= 0) close(wake_descriptor);
    if (gone_descriptor >= 0) close(gone_descriptor);
    connection_descriptor = wake_descriptor = gone_descriptor = -1;
    outgoing = (batch){0};
    accepting = false;
    ending = false;
    connected_process = 0;
    tried = true;
    reported = failed = false;
    refuse(
        "this process is a forked child of a rank, and only the rank itself can join communicators; start ranks with "
        "maya-torchrun");
}

void maya_client_begin_rank(void) {
    tried = reported = welcome = failed = false;
    steps = 0;
}
