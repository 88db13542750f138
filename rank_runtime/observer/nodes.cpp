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

namespace maya {
namespace {

StartCallback our_callback = nullptr;

// In place of RecordFunction(scope): true if it was made here, without callbacks.
bool announcement_begins(void* function, uint8_t scope) {
  MAYA_OWN_TIME;
  if (static_cast<at::RecordScope>(scope) != at::RecordScope::FUNCTION) return false;
  const at::StepCallbacks callbacks = at::getStepCallbacks(at::RecordScope::FUNCTION);
  if (callbacks.callbacks_.size() != 1 || callbacks.callbacks_[0].start_ != our_callback) return false;
  new (function) at::RecordFunction(at::StepCallbacks());
  maya_boxing_ends();  // nothing is boxed for it
  // Other announcements of this scope ("detach", "record_param_comms") are made inside of ops and nodes that have a frame.
  Thread& self = this_thread();
  const auto node = torch::autograd::get_current_node();
  if (node && node.get() != self.node.address && !self.computing) node_begins(self, function);
  return true;
}

// Before any RecordFunction is destroyed.
void announcement_ends(void* function) {
  MAYA_OWN_TIME;
  Thread& self = this_thread();
  if (self.node.address == nullptr || self.computing) return;
  const Frame* top = self.top();
  if (top->is_node && top->function == function) node_ends(self);
}

// The engine makes a thread's observers those of the thread that called backward(), and back, for every node; each time torch
// goes through all observers of all scopes. Most threads have none of their own, before and after.
bool observers_are_set(const void* observers) {
  const auto& wanted = *static_cast<const at::RecordFunctionTLS*>(observers);
  const auto& present = at::get_record_function_tls_();
  return wanted.tls_record_function_enabled_ == present.tls_record_function_enabled_ && wanted.sorted_tls_callbacks_.empty() &&
         present.sorted_tls_callbacks_.empty();
}

}  // namespace

bool announces_node(const at::RecordFunction& function) {
  constexpr std::string_view kEngine = "autograd::engine::evaluate_function: ";
  return std::strncmp(function.name(), kEngine.data(), kEngine.size()) == 0;
}

void node_begins(Thread& self, const void* function) {
  Frame& frame = self.push(function);
  frame.is_node = true;
  frame.around = self.node;
  const auto node = torch::autograd::get_current_node();
  if (node) self.node = {node.get(), static_cast<int64_t>(node->sequence_nr())};
  frame.sequence = self.node.sequence;
}

void node_ends(Thread& self) {
  const uint32_t work = self.device->device_work - self.top()->work_before;
  if (work > 0) {
    const uint32_t known = self.top()->signature;
    self.record(MAYA_RECORD_OP, known != 0 ? known : self.signature_of_name(current_node_name().c_str()));
  }
  self.pop(work);
}

std::string current_node_name() {
  const auto node = torch::autograd::get_current_node();
  return node ? node->name() : "autograd node";
}

void take_over_announcements(StartCallback only_observer) {
  our_callback = only_observer;
  static const maya_announcement_observer observer = {announcement_begins, announcement_ends, observers_are_set};
  maya_set_announcement_observer(&observer);
}

}  // namespace maya
