/* The time of this machine, read at every record and at both ends of every op.
 *
 * In: the processor's time stamp counter, if the kernel uses it as well, and CLOCK_MONOTONIC. Out: nanoseconds. The kernel's
 * clock takes twice as long to read as the counter, whose rate is constant and the same on all processors. The rate is measured
 * from the time the library is loaded to the first read at least a tenth of a second later; torch takes longer to load. */
#include "recorder_clock.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static uint64_t kernel_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

#ifdef __x86_64__

#include <x86intrin.h>

typedef struct {
    uint64_t ticks, ns;
} reading;

enum { TENTH_OF_A_SECOND_NS = 100000000, ATTEMPTS = 20, RATE_SHIFT = 32 };

static reading loaded;
static _Atomic uint64_t rate; /* nanoseconds in 2^32 ticks; 0: not known */

/* Reads both clocks at once: the fastest of a few attempts, because the thread may be interrupted between the two reads. */
static reading read_both(void) {
    reading best = {0};
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < ATTEMPTS; i++) {
        uint64_t before = __rdtsc(), ns = kernel_ns(), took = __rdtsc() - before;
        if (took < least) {
            least = took;
            best = (reading){before + took / 2, ns};
        }
    }
    return best;
}

__attribute__((constructor)) static void at_load(void) { loaded = read_both(); }

static bool kernel_uses_counter(void) {
    char name[8] = "";
    int file = open("/sys/devices/system/clocksource/clocksource0/current_clocksource", O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    ssize_t length = read(file, name, sizeof name - 1);
    close(file);
    return length > 0 && strcmp(name, "tsc\n") == 0;
}

static void find_rate(void) {
    static atomic_flag tried = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&tried) || !kernel_uses_counter()) return;
    reading now = read_both();
    rate = (uint64_t)(((unsigned __int128)(now.ns - loaded.ns) << RATE_SHIFT) / (now.ticks - loaded.ticks));
}

uint64_t maya_clock_ns(void) {
    uint64_t known_rate = atomic_load_explicit(&rate, memory_order_relaxed);
    if (__builtin_expect(known_rate != 0, 1))
        return loaded.ns + (uint64_t)((unsigned __int128)(__rdtsc() - loaded.ticks) * known_rate >> RATE_SHIFT);
    uint64_t now = kernel_ns();
    if (loaded.ns != 0 && now - loaded.ns > TENTH_OF_A_SECOND_NS) find_rate();
    return now;
}

#else

uint64_t maya_clock_ns(void) { return kernel_ns(); }

#endif
