/* The time of this machine. */
#pragma once

#include <stdint.h>

/* Nanoseconds since some time in the past, the same for all processes. */
uint64_t maya_clock_ns(void);
