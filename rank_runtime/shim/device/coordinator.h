/* The connection of this process to the coordinator, where the ranks meet (rank_runtime/messages.py).
 *
 * Out: messages, in the order in which they are added to the batch; one thread of ours owns the socket and sends what has
 * gathered whenever it gets to it. In: what the coordinator answers, handed to the receiver in that thread. The connection is
 * made when a communicator of several ranks, or by the virtual clock a time, is first wanted, lives as long as the process, and
 * is not made twice: a coordinator that is gone has ended the run.
 *
 * A forked child has no connection: what it inherits of one it leaves alone. */
#pragma once

#include "messages.h"

#include <pthread.h>

/* Who is told what arrives, in the thread of the connection; must not wait for anything that thread does. */
typedef struct {
    void (*joined)(const maya_joined *message);
    void (*request_failed)(const maya_request_failed *message);
    void (*done)(const maya_done *message, const void *payload, size_t payload_bytes);
    void (*failed)(const maya_failed *message);
    void (*abandoned)(const maya_abandoned *message);
    /* There will be no answers any more; `why` is NULL at the end of the process. */
    void (*lost)(const char *why);
} maya_receiver;

/* Connects, if that has not been tried yet; `receiver` may be NULL for who sends nothing that it is told of. NULL, or why there
 * is no connection: valid as long as the process. */
MAYA_API const char *maya_coordinator_connect(const maya_receiver *receiver);

/* Threads wait on `condition` for nothing but answers of the coordinator (stacks.c tells it so). */
MAYA_API void maya_threads_wait_on(const pthread_cond_t *condition);

/* Adds a message to the batch: maya_pack_...(maya_outgoing_begin(), &message); maya_outgoing_end(...). Nothing is sent
 * before maya_outgoing_send() but at the next opportunity. `payload` was allocated with malloc and is taken over; NULL: the
 * message has none. Without a connection all of this does nothing. */
MAYA_API maya_packer *maya_outgoing_begin(void);
MAYA_API void maya_outgoing_end(void *payload, size_t payload_bytes);
MAYA_API void maya_outgoing_send(void);

/* Whether this very process has a connection that still serves. */
bool maya_coordinator_is_connected(void);
