/* The coordinator's client: the connection of this process to the coordinator (rank_runtime/messages.py).
 *
 * Out: messages, in the order in which they were added to the batch. One thread of ours owns the socket and sends the batch at
 * its next turn. In: the coordinator's answers, handed to the receiver in that thread. The client connects when the process
 * first needs a communicator of several ranks or, on the virtual clock, a duration. The connection lasts until the process ends
 * and is never reopened: once the coordinator is gone, the run is over.
 *
 * A forked child has no connection and does not touch the one it inherits. */
#pragma once

#include "messages.h"

#include <pthread.h>

/* Callbacks for the coordinator's answers. They run in the client's thread and must not wait for anything that thread does. */
typedef struct {
    void (*joined)(const maya_joined *message);
    void (*request_failed)(const maya_request_failed *message);
    void (*described)(const maya_described *message);
    void (*done)(const maya_done *message, const void *payload, size_t payload_bytes);
    void (*failed)(const maya_failed *message);
    void (*abandoned)(const maya_abandoned *message);
    /* No further answers will come. `why` is NULL at the end of the process. */
    void (*lost)(const char *why);
} maya_client_receiver;

/* Connects on the first call. `receiver` may be NULL if the caller sends nothing that is answered through it. Returns NULL, or
 * the reason why there is no connection, which stays valid until the process ends. */
MAYA_API const char *maya_client_connect(const maya_client_receiver *receiver);

/* Registers a condition that threads wait on only for answers of the coordinator (stacks.c reports these). */
MAYA_API void maya_threads_wait_on(const pthread_cond_t *condition);

/* Adds a message to the batch: maya_pack_...(maya_outgoing_begin(), &message); maya_outgoing_end(...). The client's thread
 * sends the batch at its next turn; maya_outgoing_send() wakes it up. `payload` must come from malloc, and the client frees it;
 * NULL: the message has none. Without a connection these functions do nothing. */
MAYA_API maya_packer *maya_outgoing_begin(void);
MAYA_API void maya_outgoing_end(void *payload, size_t payload_bytes);
MAYA_API void maya_outgoing_send(void);

/* Whether this process (not its parent) has a working connection. */
bool maya_client_is_connected(void);
