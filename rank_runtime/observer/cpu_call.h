// Calls an op's CPU kernel on tensors over the same memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <vector>

#include "../shim/device/internal.h"
#include "compute.h"
#include "one_thread.h"

namespace maya {

// While it exists, no known bytes are evicted.
struct ValuesHeld {
  ValuesHeld() { maya_values_hold(); }
  ~ValuesHeld() { maya_values_release(); }
  ValuesHeld(const ValuesHeld&) = delete;
  ValuesHeld& operator=(const ValuesHeld&) = delete;
};

// Dispatches to CPU kernels only, without the program's autograd, autocast and dispatch modes.
struct PlainDispatch {
  c10::impl::ForceDispatchKeyGuard keys{c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
                                        c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset};
  OneThread one_thread;
};

// The call's arguments, with CPU tensors in the place of those in GPU memory.
std::vector<c10::IValue> stack_of(const Call& call);
// Runs the op; its exceptions propagate.
std::vector<at::Tensor> results_of(const Call& call);
bool inputs_are_known(const Call& call);
// Whether some input follows from a choice by rule (choices.h).
bool inputs_are_assumed(const Call& call);
// Calls visit(view) for every tensor in GPU memory that the op writes or returns.
void for_each_result(const Call& call, void (*visit)(const TensorView&));
// Runs work of the observer's own in stream order.
void submit(void* stream, void (*run)(void*), void (*release)(void*), void* argument);

}  // namespace maya
