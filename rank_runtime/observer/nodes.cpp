// Autograd nodes.
//
// The engine announces every node that it evaluates, and what is announced has a name that is put together each time, out of
// a demangled type: two microseconds for something that mostly launches nothing. So the announcements are caught where they
// begin, in the constructor of RecordFunction that takes a scope (the dispatcher uses another one for ops), and if no other
// observer is there they get none of torch's callbacks: a frame is opened instead, and the name is asked for only if the
// node turns out to have done device work. shim/device/announcements.c has the other half.

#include "nodes.h"

#include <torch/csrc/autograd/function.h>

#include <cstring>
#include <new>
#include <string_view>
#include <typeinfo>

namespace maya {

bool make_announcement(void* function, uint8_t scope, StartCallback observer) {
  if (static_cast<at::RecordScope>(scope) != at::RecordScope::FUNCTION) return false;
  const at::StepCallbacks callbacks = at::getStepCallbacks(at::RecordScope::FUNCTION);
  if (callbacks.callbacks_.size() != 1 || callbacks.callbacks_[0].start_ != observer) return false;
  new (function) at::RecordFunction(at::StepCallbacks());
  maya_boxing_ends();  // nothing is boxed for it
  // Other announcements of this scope ("detach", "record_param_comms") are made inside of ops and nodes that have a frame.
  Thread& self = this_thread();
  if (self.computing) return true;
  const auto node = torch::autograd::get_current_node();
  if (node && node.get() != self.node.address) node_begins(self, function, node.get());
  return true;
}

bool observers_are_set(const void* observers) {
  const auto& wanted = *static_cast<const at::RecordFunctionTLS*>(observers);
  const auto& present = at::get_record_function_tls_();
  return wanted.tls_record_function_enabled_ == present.tls_record_function_enabled_ && wanted.sorted_tls_callbacks_.empty() &&
         present.sorted_tls_callbacks_.empty();
}

bool announces_node(const at::RecordFunction& function) {
  constexpr std::string_view kEngine = "autograd::engine::evaluate_function: ";
  return std::strncmp(function.name(), kEngine.data(), kEngine.size()) == 0;
}

void node_begins(Thread& self, const void* function, const torch::autograd::Node* node) {
  Frame& frame = self.push(function);
  frame.is_node = true;
  frame.around = self.node;
  if (node != nullptr) self.node = {node, static_cast<int64_t>(node->sequence_nr())};
  frame.sequence = self.node.sequence;
}

void node_begins(Thread& self, const void* function) { node_begins(self, function, torch::autograd::get_current_node().get()); }

void node_ends(Thread& self) {
  const uint32_t work = self.device->device_work - self.top()->work_before;
  if (work > 0) self.record(MAYA_RECORD_OP, signature_of_node(self));
  self.pop(work);
}

std::string name_of_node(const Thread& self) {
  return self.node.address != nullptr ? self.node.address->name() : "autograd node";
}

// All nodes of a type have the same name, but for those that Python defines.
uint32_t signature_of_node(Thread& self) {
  const std::type_info* type = self.node.address != nullptr ? &typeid(*self.node.address) : &typeid(void);
  auto& slot = self.node_signatures[(reinterpret_cast<uintptr_t>(type) >> 4) % self.node_signatures.size()];
  if (slot.first == type) return slot.second;
  const uint32_t signature = self.signature_of_name(name_of_node(self).c_str());
  if (std::string_view(type->name()).find("PyNode") == std::string_view::npos) slot = {type, signature};
  return signature;
}

}  // namespace maya
