/* Calls of libraries that occupy the device: GEMMs, convolutions, attention, FFTs.
 *
 * A signature is a formatted text, and formatting costs more than everything else about a call. A program makes the same
 * few hundred calls again and again, so the format and its arguments are hashed first, and a thread remembers the numbers
 * of the texts it has made. */

#include "device.h"
#include "host_time.h"
#include "process.h"
#include "recorder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint64_t first, second; /* two independent hashes of format and arguments */
} call_hash;

static void add(call_hash *hash, uint64_t value) {
    hash->first = (hash->first ^ value) * 0xFF51AFD7ED558CCDu;
    hash->first ^= hash->first >> 32;
    hash->second = (hash->second + value) * 0xC4CEB9FE1A85EC53u;
    hash->second ^= hash->second >> 29;
}

static void add_text(call_hash *hash, const char *text) {
    size_t length = strlen(text);
    for (; length >= 8; text += 8, length -= 8) {
        uint64_t eight;
        memcpy(&eight, text, 8);
        add(hash, eight);
    }
    uint64_t rest = 0;
    memcpy(&rest, text, length);
    add(hash, rest | (uint64_t)length << 56);
}

/* false: the format has a conversion that is not known here. */
static bool hash_call(call_hash *hash, const char *format, va_list arguments) {
    *hash = (call_hash){(uintptr_t)format, ~(uintptr_t)format};
    for (const char *at = strchr(format, '%'); at; at = strchr(at + 1, '%')) {
        at++;
        while (*at == '.' || (*at >= '0' && *at <= '9')) at++;
        int longs = 0;
        while (*at == 'l' || *at == 'z') longs += 1 + (*at++ == 'z');
        switch (*at) {
            case 'd': case 'i': case 'u': case 'x': case 'c':
                add(hash, longs ? va_arg(arguments, uint64_t) : va_arg(arguments, unsigned));
                break;
            case 's': add_text(hash, va_arg(arguments, const char *)); break;
            case 'g': case 'f': {
                double number = va_arg(arguments, double);
                uint64_t bits;
                memcpy(&bits, &number, sizeof bits);
                add(hash, bits);
                break;
            }
            case '%': break;
            default: return false;
        }
    }
    return true;
}

static uint32_t make_signature(const char *format, va_list arguments) {
    char text[4096];
    int length = vsnprintf(text, sizeof text, format, arguments);
    if (length < 0 || length >= (int)sizeof text) {
        maya_message("the description of a library call is longer than %zu bytes: %.60s...", sizeof text, text);
        abort();
    }
    return maya_intern(text, (size_t)length);
}

static uint32_t signature_of(const char *format, va_list arguments) {
    enum { REMEMBERED = 512 };
    static __thread struct {
        call_hash hash;
        uint32_t signature;
    } *remembered;
    if (remembered == NULL) maya_thread_table((void **)&remembered, REMEMBERED * sizeof *remembered);
    call_hash hash;
    va_list again;
    va_copy(again, arguments);
    bool hashed = hash_call(&hash, format, again);
    va_end(again);
    if (!hashed) return make_signature(format, arguments);
    size_t slot = hash.first % REMEMBERED;
    bool is_known = remembered[slot].hash.first == hash.first && remembered[slot].hash.second == hash.second;
    /* a signature of 0: nothing was recorded when it was made */
    if (!is_known || (remembered[slot].signature == 0 && maya_is_recording())) {
        remembered[slot].signature = make_signature(format, arguments);
        remembered[slot].hash = hash;
    }
    return remembered[slot].signature;
}

int maya_library_call(void *stream, const char *format, ...) {
    MAYA_OWN_TIME;
    if (maya_get_settings()->bare) return 0;
    va_list arguments;
    va_start(arguments, format);
    maya_work work = {.kind = MAYA_RECORD_LIBRARY, .signature = signature_of(format, arguments)};
    va_end(arguments);
    return maya_submit(stream, &work);
}
