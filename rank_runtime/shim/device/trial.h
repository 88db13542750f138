/* Trials: work that is launched to choose between candidates, and not recorded (trial.c). */
#pragma once

#include "device.h"

/* Whether the trace does without this record of the calling thread. */
bool maya_trial_hides(maya_thread *thread, maya_record_kind kind, uint32_t signature, uint64_t value);
