/* Library calls that occupy the device: GEMMs, convolutions, attention, FFTs.
 *
 * Formatting the signature costs more than the rest of a call. A program makes the same few hundred calls over and over, so the
 * format and its arguments are hashed first, and each thread caches the numbers of its signatures and the argument types of
 * each format. */

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

/* The arguments of a format: one letter for each conversion. */
typedef struct {
    const char *format;
    uint8_t count;
    char kinds[55];
} conversions;

enum { WORD = 'w', LONG_WORD = 'l', NUMBER = 'g', TEXT = 's' };

/* false: the format has an unknown conversion, or too many. */
static bool read_format(conversions *read, const char *format) {
    *read = (conversions){.format = NULL};
    for (const char *at = strchr(format, '%'); at; at = strchr(at + 1, '%')) {
        at++;
        while (*at == '.' || (*at >= '0' && *at <= '9')) at++;
        bool is_long = false;
        for (; *at == 'l' || *at == 'z'; at++) is_long = true;
        char kind;
        switch (*at) {
            case 'd':
            case 'i':
            case 'u':
            case 'x':
            case 'c': kind = is_long ? LONG_WORD : WORD; break;
            case 's': kind = TEXT; break;
            case 'g':
            case 'f': kind = NUMBER; break;
            case '%': continue;
            default: return false;
        }
        if (read->count == sizeof read->kinds) return false;
        read->kinds[read->count++] = kind;
    }
    read->format = format;
    return true;
}

static call_hash hash_call(const conversions *taken, va_list arguments) {
    call_hash hash = {(uintptr_t)taken->format, ~(uintptr_t)taken->format};
    for (uint8_t i = 0; i < taken->count; i++) {
        switch (taken->kinds[i]) {
            case WORD: add(&hash, va_arg(arguments, unsigned)); break;
            case LONG_WORD: add(&hash, va_arg(arguments, uint64_t)); break;
            case TEXT: add_text(&hash, va_arg(arguments, const char *)); break;
            default: {
                double number = va_arg(arguments, double);
                uint64_t bits;
                memcpy(&bits, &number, sizeof bits);
                add(&hash, bits);
            }
        }
    }
    return hash;
}

static uint32_t make_signature(const char *format, va_list arguments) {
    char text[4096];
    int length = vsnprintf(text, sizeof text, format, arguments);
    if (length < 0 || length >= (int)sizeof text) {
        maya_message("internal error: the signature of a library call is longer than %zu bytes: %.60s...", sizeof text, text);
        abort();
    }
    return maya_intern(text, (size_t)length);
}

/* A thread's cache: formats (literals, of which there are a few dozen) and its recent calls. */
typedef struct {
    conversions formats[16];
    struct {
        call_hash hash;
        uint32_t signature;
    } calls[512];
} memory;

#define LENGTH(array) (sizeof(array) / sizeof *(array))

static uint32_t signature_of(const char *format, va_list arguments) {
    static __thread memory *remembered;
    if (remembered == NULL) maya_thread_table((void **)&remembered, sizeof *remembered);
    conversions *taken = &remembered->formats[(uintptr_t)format / 16 % LENGTH(remembered->formats)];
    if (taken->format != format && !read_format(taken, format)) return make_signature(format, arguments);
    va_list again;
    va_copy(again, arguments);
    call_hash hash = hash_call(taken, again);
    va_end(again);
    size_t slot = hash.first % LENGTH(remembered->calls);
    uint32_t *signature = &remembered->calls[slot].signature;
    bool is_known = memcmp(&remembered->calls[slot].hash, &hash, sizeof hash) == 0;
    /* a signature of 0: recording was off when it was made */
    if (!is_known || (*signature == 0 && maya_is_recording())) {
        *signature = make_signature(format, arguments);
        remembered->calls[slot].hash = hash;
    }
    return *signature;
}

int maya_library_call(void *stream, const char *format, ...) {
    MAYA_OWN_TIME;
    if (maya_get_settings()->bare) return 0;
    va_list arguments;
    va_start(arguments, format);
    maya_command command = {.kind = MAYA_RECORD_LIBRARY, .signature = signature_of(format, arguments)};
    va_end(arguments);
    return maya_submit(stream, &command);
}
