// Which operators torch announces to observers.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace maya {

// Torch keeps a flag per operator that says whether RecordFunction observes it; for a few operators it is off. Announcing
// an op costs about half a microsecond, and six of seven ops never launch anything, so the flag is turned off for those, too.
void stop_observing(const c10::OperatorHandle& handle);

}  // namespace maya
