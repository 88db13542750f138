/* The bytes of an operation among several ranks: what leaves the send buffer, and what comes into the receive buffer. Only
 * those travel that are known, one part after the other.
 *
 * Bytes travel if the larger of an operation's buffers is small (settings->small_bytes) or at most MAYA_COLLECTIVE_BYTES.
 * Integers, by which programs steer, travel at any size that memory is kept for; objects, which are uint8 vectors from the
 * host, up to MAYA_OBJECT_BYTES, and larger ones are an error: nobody could unpickle zeros. Where no bytes arrive, the receive
 * buffer is made up, except, if none arrive at all, for what this rank itself contributes to it.
 *
 * A few integers travel even if they are made up, as long as there is something in them: counts by which ranks tell each other
 * how much they are going to send. They stay made up. */

#include "nccl_internal.h"

#include <stdatomic.h>
#include <stdlib.h>

static bool is_floating(nccl_type type) { return type > NCCL_UINT64; }

/* ---- out ---- */

/* Of each known part, the whole elements. */
static size_t whole_elements(int64_t *parts, size_t count, int64_t element) {
    size_t kept = 0;
    for (size_t i = 0; i < count; i += 2) {
        int64_t start = (parts[i] + element - 1) / element * element, end = parts[i + 1] / element * element;
        if (start >= end) continue;
        parts[kept++] = start;
        parts[kept++] = end;
    }
    return kept;
}

/* The scalar of ncclRedOpCreatePreMulSum, by which what is known is multiplied; NULL: nobody knows it. */
static const void *known_scalar(const nccl_operation *operation) {
    const void *scalar = operation->scaling.device_scalar;
    if (scalar == NULL) return operation->scaling.host_scalar;
    return maya_values_are_known(scalar, nccl_type_size(operation->type)) ? scalar : NULL;
}

/* Guesses that others have to know of. */
static bool is_guess(const nccl_operation *operation, size_t sent) {
    nccl_type type = operation->type;
    bool of_integers = type == NCCL_INT32 || type == NCCL_UINT32 || type == NCCL_INT64 || type == NCCL_UINT64;
    if (!of_integers || (int64_t)sent > maya_get_settings()->compute_bytes) return false;
    return !maya_values_are_known(operation->send, sent) && maya_values_are_dirty(operation->send, sent);
}

/* Programs may steer by these. A large tensor of zeros, which is known as well, is no loss. */
static void say_not_carried(const nccl_operation *operation, size_t sent, int64_t larger) {
    static _Atomic bool said;
    if (is_floating(operation->type) || !maya_values_are_dirty(operation->send, sent) || atomic_exchange(&said, true)) return;
    maya_message(
        "NCCL: %lld bytes of integers are received as placeholders (zeros), and so may be others from here on: "
        "MAYA_KEPT_BYTES is %lld. If the program reads them, set it to more",
        (long long)larger, (long long)maya_get_settings()->kept_bytes);
}

/* The largest buffer whose contents travel. */
static int64_t most_bytes(const nccl_operation *operation) {
    const maya_settings *settings = maya_get_settings();
    /* More than kept_bytes nobody could keep: a tensor of zeros is known at any size. */
    int64_t most = is_floating(operation->type) ? settings->collective_bytes : settings->kept_bytes;
    return most > settings->small_bytes ? most : settings->small_bytes;
}

/* A large buffer's largest parts; of a small one all, which are at most every second byte. Everything is small where
 * everything is computed, and then known in few parts. */
static size_t most_parts(size_t sent) {
    enum { OF_LARGE = 64, OF_SMALL = 32 << 10 };
    size_t all = sent / 2 + 1;
    if ((int64_t)sent > maya_get_settings()->small_bytes || all < OF_LARGE) return OF_LARGE;
    return all < OF_SMALL ? all : OF_SMALL;
}

static void read_known(nccl_contribution *given, const nccl_operation *operation, size_t sent) {
    const void *scalar = operation->scaling.used ? known_scalar(operation) : NULL;
    if (operation->scaling.used && scalar == NULL) return;
    size_t element = nccl_type_size(operation->type), room = 2 * most_parts(sent);
    int64_t *parts = given->known = malloc(room * sizeof *parts);
    if (parts == NULL) abort();
    given->guessed = is_guess(operation, sent);
    if (given->guessed) parts[0] = 0, parts[1] = (int64_t)sent, given->known_count = 2;
    else given->known_count = maya_values_known_parts(operation->send, sent, parts, room);
    if (scalar) given->known_count = whole_elements(parts, given->known_count, (int64_t)element);
    if (given->known_count == 0) return;
    for (size_t i = 0; i < given->known_count; i += 2) given->size += (size_t)(parts[i + 1] - parts[i]);
    char *to = given->bytes = malloc(given->size);
    if (to == NULL) abort();
    for (size_t i = 0; i < given->known_count; i += 2) {
        size_t size = (size_t)(parts[i + 1] - parts[i]);
        maya_values_copy(to, (const char *)operation->send + parts[i], size);
        to += size;
    }
    if (scalar) nccl_scale(given->bytes, given->bytes, scalar, given->size / element, operation->type);
}

void nccl_read_contribution(nccl_contribution *given, const nccl_operation *operation) {
    size_t sent = nccl_send_bytes(operation), received = nccl_receive_bytes(operation);
    int64_t larger = (int64_t)(sent > received ? sent : received), most = most_bytes(operation);
    *given = (nccl_contribution){0};
    if (sent == 0) return;
    if (operation->type == NCCL_UINT8) {
        const maya_settings *settings = maya_get_settings();
        maya_object object = maya_values_find_object(operation->send, sent);
        bool is_real = object != MAYA_NO_OBJECT || maya_values_are_dirty(operation->send, sent);
        if (is_real && most < settings->object_bytes) most = settings->object_bytes;
        given->lost = object == MAYA_LOST_OBJECT || (object == MAYA_OBJECT && larger > most);
    }
    if (larger > most) {
        say_not_carried(operation, sent, larger);
        return;
    }
    maya_values_hold();
    read_known(given, operation, sent);
    maya_values_release();
}

/* ---- in ---- */

/* What this rank contributes to its own receive buffer, as far as no arithmetic is involved. */
static size_t own_part(const nccl_operation *operation, const char **source, char **target) {
    size_t bytes = operation->count * nccl_type_size(operation->type);
    size_t offset = (size_t)operation->communicator->rank * bytes;
    *source = operation->send;
    *target = operation->receive;
    switch (operation->call) {
        case NCCL_ALL_GATHER:
        case NCCL_GATHER: *target += offset; return bytes;
        case NCCL_ALL_TO_ALL:
            *source += offset;
            *target += offset;
            return bytes;
        case NCCL_SCATTER:
            if (operation->peer != operation->communicator->rank) return 0;
            *source += offset;
            return bytes;
        case NCCL_BROADCAST: return operation->peer == operation->communicator->rank ? bytes : 0;
        default: return 0;
    }
}

void nccl_write_nothing(const nccl_operation *operation) {
    size_t bytes = nccl_receive_bytes(operation);
    const char *source;
    char *target;
    if (bytes == 0) return;
    size_t own = own_part(operation, &source, &target);
    if (own == 0) {
        maya_values_made_up(operation->receive, bytes);
        return;
    }
    size_t before = (size_t)(target - (char *)operation->receive);
    maya_values_copy(target, source, own);
    maya_values_made_up(operation->receive, before);
    maya_values_made_up(target + own, bytes - before - own);
}

static maya_content content_of(nccl_type type) {
    if (is_floating(type)) return MAYA_CONTENT_FLOATING;
    return type == NCCL_UINT8 ? MAYA_CONTENT_OBJECT : MAYA_CONTENT_OTHER;
}

bool nccl_write_result(const nccl_operation *operation, const void *bytes, size_t size, maya_numbers known, bool guessed) {
    size_t buffer = nccl_receive_bytes(operation), last = 0, total = 0;
    bool in_order = known.count % 2 == 0;
    for (size_t i = 0; in_order && i < known.count; i += 2) {
        int64_t start = known.items[i], end = known.items[i + 1];
        in_order = start >= (int64_t)last && start < end && end <= (int64_t)buffer;
        last = (size_t)end;
        total += (size_t)(end - start);
    }
    if (in_order && total == size) {
        maya_content content = content_of(operation->type);
        bool kept = maya_values_receive(operation->receive, buffer, bytes, known.items, known.count, content);
        if (guessed) maya_values_guessed(operation->receive, buffer);
        return kept || content != MAYA_CONTENT_OBJECT;
    }
    maya_message(
        "NCCL: the coordinator answers an operation that receives %zu bytes with %zu that do not fit; they are left out",
        buffer, size);
    nccl_write_nothing(operation);
    return true;
}
