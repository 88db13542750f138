// What torch announces to observers, beyond what it lets them choose.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

namespace maya {

// Torch keeps a flag per operator that says whether RecordFunction observes it; for a few operators it is off. Announcing
// an op costs about half a microsecond, and six of seven ops never launch anything, so the flag is turned off for those, too.
void stop_observing(const c10::OperatorHandle& handle);

// true if nobody but `observer` hears what `function` announces.
bool hears_alone(at::RecordFunctionCallback::StartCallback observer, const at::RecordFunction& function);

// Autograd's number of an op that is called with these dispatch keys, -1 if it has none.
int64_t sequence_number_of(c10::DispatchKeySet keys);

// For a start callback: the end callback of this op needs no outputs. Putting them together means references to tensors,
// for which torch takes the interpreter's lock. Without effect if there are other observers.
void spare_outputs(const at::RecordFunction& function);

}  // namespace maya
