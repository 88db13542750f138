// Autograd nodes, which the engine evaluates in the backward pass.
#pragma once

#include <ATen/record_function.h>

#include <string>

#include "frames.h"

namespace maya {

using StartCallback = at::RecordFunctionCallback::StartCallback;

// Whether the RecordFunction is the engine's for a node: "autograd::engine::evaluate_function: MmBackward0".
bool is_node_callback(const at::RecordFunction& function);
// Push a frame for the node that the engine evaluates on this thread, with the RecordFunction `function`; node_ends pops it.
void node_begins(Thread& self, const void* function);
void node_begins(Thread& self, const void* function, const torch::autograd::Node* node);
void node_ends(Thread& self);
// The name of the node that the thread evaluates ("MmBackward0"), and the interned number of the text {"op": name}.
std::string name_of_node(const Thread& self);
uint32_t signature_of_node(Thread& self);

// In place of the constructor RecordFunction(scope): constructs it without callbacks if `observer` is the only callback, and
// returns true; otherwise returns false.
bool make_record_function(void* function, uint8_t scope, StartCallback observer);
// In place of set_record_function_tls_, which the engine calls before and after every node to copy the callbacks of the thread
// that called backward(); torch then goes through all callbacks of all scopes. true: neither thread has callbacks of its own,
// so there is nothing to do.
bool tls_is_unchanged(const void* wanted_tls);

}  // namespace maya
