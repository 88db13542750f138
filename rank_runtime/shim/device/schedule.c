/* Perturbing the order of events (schedule.h). */

#include "schedule.h"
#include "process.h"

#include <time.h>

enum {
    FEWEST = 8,         /* one event in 8 is delayed, or one in the number of ranks if that is more */
    MILLISECONDS = 200, /* delays are 200 to 400 ms: shorter ones would not reliably change the order on a busy machine */
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
    uint64_t share = settings->processes > FEWEST ? (uint64_t)settings->processes : FEWEST;
    if (bits % share != 0) return 0;
    return MILLISECONDS * 1000000u + maya_schedule_mix(bits, 0) % (MILLISECONDS * 1000000u);
}

void maya_sleep_ns(uint64_t ns) {
    if (ns == 0) return;
    struct timespec left = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    while (nanosleep(&left, &left) != 0) {
    }
}

void maya_schedule_begin_rank(void) { maya_sleep_ns(maya_schedule_ns(MAYA_RANK_BEGINS, 0)); }
