// Private state of torch that the observer reads or changes.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

namespace maya {

// Turns off torch's per-operator flag "is observed", so that RecordFunction no longer sees the operator. torch itself does so
// for a few operators. A callback costs about half a microsecond per op, and six of seven ops never launch anything.
void stop_observing(const c10::OperatorHandle& handle);

// Whether `callback` is the only callback of `function`.
bool is_only_callback(at::RecordFunctionCallback::StartCallback callback, const at::RecordFunction& function);

// Autograd's sequence number of an op that is called with these dispatch keys; -1: it has none.
int64_t sequence_number_of(c10::DispatchKeySet keys);

// For a start callback: tells torch that the end callback needs no outputs. Collecting them takes references to tensors, and
// for those torch takes the GIL. No effect if there are other callbacks.
void skip_outputs(const at::RecordFunction& function);

// Adds a dispatch key to a tensor, and thereby to the views that are made of it later, or takes it away.
void add_key(c10::TensorImpl& tensor, c10::DispatchKey key);
void remove_key(c10::TensorImpl& tensor, c10::DispatchKey key);

}  // namespace maya
