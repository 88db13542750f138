/* Another order of events (schedule.h). */

#include "schedule.h"
#include "process.h"

#include <time.h>

enum {
    FEWEST = 8,            /* one of so many things waits for long; of as many as there are ranks, if these are more */
    LONG_MILLISECONDS = 200, /* to twice that */
    SHORT_SHARE = 4,       /* and one of so many for a moment ... */
    SHORT_MICROSECONDS = 2000, /* ... up to this */
};

/* The finaliser of SplitMix64: every bit of the input changes half of the output's. */
uint64_t maya_schedule_mix(uint64_t which, uint64_t number) {
    uint64_t bits = which * 0x9E3779B97F4A7C15u + number + 0xD1B54A32D192ED03u;
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9u;
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EBu;
    return bits ^ bits >> 31;
}

uint64_t maya_schedule_ns(maya_scheduled what, uint64_t which) {
    const maya_settings *settings = maya_get_settings();
    if (settings->schedule_seed < 0) return 0;
    uint64_t bits = maya_schedule_mix((uint64_t)settings->schedule_seed, (uint64_t)settings->rank);
    bits = maya_schedule_mix(maya_schedule_mix(bits, what), which);
    uint64_t amount = maya_schedule_mix(bits, 1);
    uint64_t share = settings->world_size > FEWEST ? (uint64_t)settings->world_size : FEWEST;
    if (bits % share == 0) return (LONG_MILLISECONDS + amount % LONG_MILLISECONDS) * 1000000u;
    if (maya_schedule_mix(bits, 2) % SHORT_SHARE == 0) return amount % SHORT_MICROSECONDS * 1000u;
    return 0;
}

void maya_sleep_ns(uint64_t ns) {
    if (ns == 0) return;
    struct timespec left = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    while (nanosleep(&left, &left) != 0) {}
}

void maya_schedule_begin_rank(void) { maya_sleep_ns(maya_schedule_ns(MAYA_RANK_BEGINS, 0)); }
