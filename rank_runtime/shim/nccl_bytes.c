/* The contents of an operation among several ranks: bytes read from the send buffer, and bytes written to the receive buffer.
 * Only known bytes are sent, one part after the other.
 *
 * Contents are sent if the larger of the operation's buffers is small (settings->small_bytes) or at most MAYA_COLLECTIVE_BYTES.
 * Integers, which often decide what a program does next, are sent up to MAYA_KEPT_BYTES. Pickled objects, which are uint8
 * vectors from the host, are sent up to MAYA_OBJECT_BYTES; a larger one is an error, because zeros cannot be unpickled. Bytes
 * of the receive buffer that do not arrive become placeholders; if none arrive at all, this rank's own part of the receive
 * buffer is still copied from its send buffer.
 *
 * Short integer buffers are sent even if they are placeholders, provided that they are not all zero: they may be counts by
 * which ranks tell each other how much they are going to send. They remain placeholders. */

#include "nccl_internal.h"

#include <stdatomic.h>
#include <stdlib.h>

static bool is_floating(nccl_type type) { return type > NCCL_UINT64; }

/* ---- send buffer ---- */

/* Rounds each known part to whole elements; returns the number of offsets left. */
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

/* The scalar of ncclRedOpCreatePreMulSum; NULL: it is a placeholder. */
static const void *known_scalar(const nccl_operation *operation) {
    const void *scalar = operation->scaling.device_scalar;
    if (scalar == NULL) return operation->scaling.host_scalar;
    return maya_values_are_known(scalar, nccl_type_size(operation->type)) ? scalar : NULL;
}

/* Whether the send buffer holds placeholder integers that other ranks need. */
static bool is_guess(const nccl_operation *operation, size_t sent) {
    nccl_type type = operation->type;
    bool of_integers = type == NCCL_INT32 || type == NCCL_UINT32 || type == NCCL_INT64 || type == NCCL_UINT64;
    if (!of_integers || (int64_t)sent > maya_get_settings()->compute_bytes) return false;
    return !maya_values_are_known(operation->send, sent) && maya_values_are_dirty(operation->send, sent);
}

/* Reports, once, integers that are not sent because of their size. A large tensor of zeros is known as well, and no loss. */
static void report_dropped_integers(const nccl_operation *operation, size_t sent, int64_t larger) {
    static _Atomic bool said;
    if (is_floating(operation->type) || !maya_values_are_dirty(operation->send, sent) || atomic_exchange(&said, true)) return;
    maya_message(
        "NCCL: %lld bytes of integers are received as placeholders (zeros), and so may be others from here on: "
        "MAYA_KEPT_BYTES is %lld. If the program reads them, set it to more",
        (long long)larger, (long long)maya_get_settings()->kept_bytes);
}

/* The largest buffer whose contents are sent. */
static int64_t byte_limit(const nccl_operation *operation) {
    const maya_settings *settings = maya_get_settings();
    /* kept_bytes bounds integers, because a tensor of zeros is known at any size and no rank could keep more. */
    int64_t most = is_floating(operation->type) ? settings->collective_bytes : settings->kept_bytes;
    return most > settings->small_bytes ? most : settings->small_bytes;
}

/* The number of known parts to send: of a large buffer only the largest parts; of a small one all, at most one for every second
 * byte. With --compute all every buffer counts as small, but is known in few parts. */
static size_t part_limit(size_t sent) {
    enum { OF_LARGE = 64, OF_SMALL = 32 << 10 };
    size_t all = sent / 2 + 1;
    if ((int64_t)sent > maya_get_settings()->small_bytes || all < OF_LARGE) return OF_LARGE;
    return all < OF_SMALL ? all : OF_SMALL;
}

static void read_known(nccl_contribution *given, const nccl_operation *operation, size_t sent) {
    const void *scalar = operation->scaling.used ? known_scalar(operation) : NULL;
    if (operation->scaling.used && scalar == NULL) return;
    size_t element = nccl_type_size(operation->type), room = 2 * part_limit(sent);
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
    int64_t larger = (int64_t)(sent > received ? sent : received), most = byte_limit(operation);
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
        report_dropped_integers(operation, sent, larger);
        return;
    }
    maya_values_hold();
    read_known(given, operation, sent);
    maya_values_release();
}

/* ---- receive buffer ---- */

/* The bytes that this rank contributes to its own receive buffer; 0 for reductions. */
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

void nccl_write_placeholders(const nccl_operation *operation) {
    size_t bytes = nccl_receive_bytes(operation);
    const char *source;
    char *target;
    if (bytes == 0) return;
    size_t own = own_part(operation, &source, &target);
    if (own == 0) {
        maya_values_set_placeholder(operation->receive, bytes);
        return;
    }
    size_t before = (size_t)(target - (char *)operation->receive);
    maya_values_copy(target, source, own);
    maya_values_set_placeholder(operation->receive, before);
    maya_values_set_placeholder(target + own, bytes - before - own);
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
        /* What the others sent follows from the same choices as what this rank sent. */
        bool assumed = maya_values_are_assumed(operation->send, nccl_send_bytes(operation));
        bool kept = maya_values_receive(operation->receive, buffer, bytes, known.items, known.count, content);
        if (guessed) maya_values_guessed(operation->receive, buffer);
        for (size_t i = 0; assumed && !guessed && kept && i < known.count; i += 2) {
            const char *part = (const char *)operation->receive + known.items[i];
            maya_values_assumed(part, (size_t)(known.items[i + 1] - known.items[i]));
        }
        return kept || content != MAYA_CONTENT_OBJECT;
    }
    maya_message(
        "NCCL: the coordinator answered an operation that receives %zu bytes with %zu bytes that do not fit; they are ignored",
        buffer, size);
    nccl_write_placeholders(operation);
    return true;
}
