// Autograd nodes: what the engine evaluates in backward.
#pragma once

#include <ATen/record_function.h>

#include <string>

#include "frames.h"

namespace maya {

using StartCallback = at::RecordFunctionCallback::StartCallback;

// "autograd::engine::evaluate_function: MmBackward0" -> true
bool announces_node(const at::RecordFunction& function);
// A frame for the node that the thread's engine evaluates now, announced by `function`; node_ends when that is over.
void node_begins(Thread& self, const void* function);
void node_ends(Thread& self);
// Name of the node that is being evaluated: "MmBackward0".
std::string current_node_name();
// From now on the engine's announcements are taken over before they are made, as long as `only_observer` is all that would
// hear them.
void take_over_announcements(StartCallback only_observer);

}  // namespace maya
