// What torch announces to observers, beyond what it lets them choose.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

namespace maya {

// Torch keeps a flag per operator that says whether RecordFunction observes it; for a few operators it is off. Announcing
// an op costs about half a microsecond, and six of seven ops never launch anything, so the flag is turned off for those, too.
void stop_observing(const c10::OperatorHandle& handle);

// For a start callback: the end callback of this op needs no outputs. Putting them together means references to tensors,
// for which torch takes the interpreter's lock. Without effect if there are other observers.
void spare_outputs(const at::RecordFunction& function);

}  // namespace maya
