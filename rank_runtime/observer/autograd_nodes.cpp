// Autograd nodes.
//
// The engine makes a RecordFunction for every node that it evaluates, under a name that it assembles each time from a demangled
// type. That takes two microseconds, although most nodes launch nothing. So the observer takes over the constructor of
// RecordFunction that takes a scope (the dispatcher uses another constructor for ops). If no other callback is registered, the
// RecordFunction gets no callbacks; the observer pushes a frame instead, and assembles the name only if the node launched
// something. shim/device/record_function.c has the replaced functions.

#include "autograd_nodes.h"

#include <torch/csrc/autograd/function.h>

#include <cstring>
#include <new>
#include <string_view>
#include <typeinfo>

namespace maya {

bool make_record_function(void* function, uint8_t scope, StartCallback observer) {
  if (static_cast<at::RecordScope>(scope) != at::RecordScope::FUNCTION) return false;
  const at::StepCallbacks callbacks = at::getStepCallbacks(at::RecordScope::FUNCTION);
  if (callbacks.callbacks_.size() != 1 || callbacks.callbacks_[0].start_ != observer) return false;
  new (function) at::RecordFunction(at::StepCallbacks());
  maya_boxing_ends();  // torch boxes no arguments for it
  // Other RecordFunctions of this scope ("detach", "record_param_comms") are made inside ops and nodes, which have a frame.
  Thread& self = this_thread();
  if (self.computing) return true;
  const auto node = torch::autograd::get_current_node();
  if (node && node.get() != self.node.address) node_begins(self, function, node.get());
  return true;
}

bool tls_is_unchanged(const void* wanted_tls) {
  const auto& wanted = *static_cast<const at::RecordFunctionTLS*>(wanted_tls);
  const auto& present = at::get_record_function_tls_();
  return wanted.tls_record_function_enabled_ == present.tls_record_function_enabled_ && wanted.sorted_tls_callbacks_.empty() &&
         present.sorted_tls_callbacks_.empty();
}

bool is_node_callback(const at::RecordFunction& function) {
  constexpr std::string_view kEngine = "autograd::engine::evaluate_function: ";
  return std::strncmp(function.name(), kEngine.data(), kEngine.size()) == 0;
}

void node_begins(Thread& self, const void* function, const torch::autograd::Node* node) {
  Frame& frame = self.push(function);
  frame.is_node = true;
  frame.outer = self.node;
  if (node != nullptr) self.node = {node, static_cast<int64_t>(node->sequence_nr())};
  frame.sequence = self.node.sequence;
}

void node_begins(Thread& self, const void* function) { node_begins(self, function, torch::autograd::get_current_node().get()); }

void node_ends(Thread& self) {
  const uint32_t launches = self.device->device_work - self.top()->launches_before;
  if (launches > 0) self.record(MAYA_RECORD_OP, signature_of_node(self));
  self.pop(launches);
}

std::string name_of_node(const Thread& self) {
  return self.node.address != nullptr ? self.node.address->name() : "autograd node";
}

// Nodes of one C++ type have one name, except PyNode, whose name is that of the Python class.
uint32_t signature_of_node(Thread& self) {
  const std::type_info* type = self.node.address != nullptr ? &typeid(*self.node.address) : &typeid(void);
  auto& slot = self.node_signatures[(reinterpret_cast<uintptr_t>(type) >> 4) % self.node_signatures.size()];
  if (slot.first == type) return slot.second;
  const uint32_t signature = self.signature_of_name(name_of_node(self).c_str());
  if (std::string_view(type->name()).find("PyNode") == std::string_view::npos) slot = {type, signature};
  return signature;
}

}  // namespace maya
