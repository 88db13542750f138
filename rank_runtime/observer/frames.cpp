// A thread's stack of frames.

#include "frames.h"

#include <algorithm>

namespace maya {
namespace {

// Deletes the Thread when its thread ends. Ops that torch runs there afterwards get a new one.
struct Owner {
  std::unique_ptr<Thread> thread;
  ~Owner() { maya_this_thread()->observer = nullptr; }
};

}  // namespace

Frame& Thread::push(const void* function) {
  if (depth == frames.size()) frames.push_back(std::make_unique<Frame>());
  Frame& frame = *frames[depth++];
  frame.op = nullptr;
  frame.is_node = false;
  frame.name = nullptr;
  frame.number = maya_next_op();
  frame.parent = device->current_op;
  frame.launches_before = device->device_work;
  frame.launches_of_children = 0;
  frame.blocks_before = device->blocks;
  frame.sequence = -1;
  frame.may_compute = frame.is_changed_inside = false;
  frame.content = MAYA_CONTENT_OTHER;
  frame.is_empty_gemm = false;
  frame.is_optimizer_step = false;
  frame.optimizer = 0;
  frame.described = false;
  frame.signature = 0;
  frame.written.clear();
  frame.function = function;
  frame.argument_count = 0;
  frame.routing.clear();
  device->routed = false;
  device->current_op = frame.number;
  if (device->trials == 0) device->ops_uncounted++;
  frame.start_ns = maya_now_ns();
  return frame;
}

bool Thread::pop_to(const void* function) {
  size_t found = depth;
  while (found > 0 && frames[found - 1]->function != function) found--;
  if (found == 0) return false;
  for (; depth > found; depth--) {
    if (top()->is_node) node = top()->outer;
  }
  return true;
}

void Thread::pop(uint32_t launches) {
  if (top()->is_node) node = top()->outer;
  device->current_op = top()->parent;
  depth--;
  Frame* outer = top();
  device->routed = outer != nullptr && outer->routing.is_routed();
  if (outer != nullptr) outer->launches_of_children += launches;
}

void Thread::record(maya_record_kind kind, uint32_t signature) {
  const Frame& frame = *top();
  const uint32_t sequence = frame.sequence < 0 ? UINT32_MAX : static_cast<uint32_t>(frame.sequence);
  maya_record_op(kind, frame.number, frame.parent, signature, frame.start_ns, maya_now_ns() - frame.start_ns, sequence);
}

uint32_t Thread::find_signature(const Fingerprint& print) {
  auto& slot = signatures[print.first % signatures.size()];
  for (const auto& [seen, signature] : slot) {
    if (signature != 0 && seen == print) return signature;
  }
  slot[1] = slot[0];
  slot[0] = {print, maya::find_signature(print)};
  return slot[0].second;
}

bool Thread::is_in_optimizer_step() const {
  return std::any_of(frames.begin(), frames.begin() + static_cast<std::ptrdiff_t>(depth),
                     [](const std::unique_ptr<Frame>& frame) { return frame->is_optimizer_step; });
}

uint32_t Thread::signature_of_name(const char* name) {
  auto found = name_signatures.find(name);
  if (found != name_signatures.end()) return found->second;
  names.emplace_back(name);
  return name_signatures.emplace(names.back(), name_signature(name)).first->second;
}

// The device library keeps the pointer, because thread-local memory of a preloaded library is cheaper to access than that of
// a library loaded later.
Thread& this_thread() {
  maya_thread* device = maya_this_thread();
  if (device->observer == nullptr) {
    static thread_local Owner owner;
    owner.thread = std::make_unique<Thread>();
    device->observer = owner.thread.get();
  }
  return *static_cast<Thread*>(device->observer);
}

}  // namespace maya
