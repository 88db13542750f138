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
void node_begins(Thread& self, const void* function, const torch::autograd::Node* node);
void node_ends(Thread& self);
// Name of the node that the thread evaluates, "MmBackward0", and the number of the text {"op": name}.
std::string name_of_node(const Thread& self);
uint32_t signature_of_node(Thread& self);

// In place of RecordFunction(scope): true if it was made here, without callbacks. That is done if `observer` is all that would
// hear of it.
bool make_announcement(void* function, uint8_t scope, StartCallback observer);
// The engine makes a thread's observers those of the thread that called backward(), and back, for every node; each time torch
// goes through all observers of all scopes. Most threads have none of their own, before and after: true if it is so.
bool observers_are_set(const void* observers);

}  // namespace maya
