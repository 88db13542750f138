// Access to private members of torch: the "is observed" flag of an operator, the callbacks of a RecordFunction and whether they
// need outputs, the dispatch keys of a tensor, and the function that numbers ops. C++ does not check access where an explicit
// template instantiation names a member, so the compiler takes its offset from the headers of the installed torch; a torch
// without the member does not compile (docs/internals.md).

#include "torch_private.h"

namespace maya {
namespace {

template <auto Member, typename Tag>
struct Reveal {
  friend constexpr auto member(Tag) { return Member; }
};

struct Definition {
  friend constexpr auto member(Definition);
};
template struct Reveal<&c10::OperatorHandle::operatorDef_, Definition>;

struct Observed {
  friend constexpr auto member(Observed);
};
template struct Reveal<&c10::impl::OperatorEntry::is_observed_, Observed>;

struct Callbacks {
  friend constexpr auto member(Callbacks);
};
template struct Reveal<&at::RecordFunction::step_callbacks_, Callbacks>;

struct SequenceNumber {
  friend constexpr auto member(SequenceNumber);
};
template struct Reveal<&c10::Dispatcher::sequenceNumberForRunningRecordFunction, SequenceNumber>;

struct Keys {
  friend constexpr auto member(Keys);
};
template struct Reveal<&c10::TensorImpl::key_set_, Keys>;

}  // namespace

void stop_observing(const c10::OperatorHandle& handle) {
  const bool& flag = (handle.*member(Definition()))->op.*member(Observed());
  const_cast<volatile bool&>(flag) = false;
}

bool is_only_callback(at::RecordFunctionCallback::StartCallback callback, const at::RecordFunction& function) {
  const auto& callbacks = (function.*member(Callbacks())).callbacks_;
  return callbacks.size() == 1 && callbacks[0].start_ == callback;
}

int64_t sequence_number_of(c10::DispatchKeySet keys) { return member(SequenceNumber())(keys.highestPriorityTypeId(), keys); }

void add_key(c10::TensorImpl& tensor, c10::DispatchKey key) {
  c10::DispatchKeySet& keys = tensor.*member(Keys());
  keys = keys.add(key);
}

void remove_key(c10::TensorImpl& tensor, c10::DispatchKey key) {
  c10::DispatchKeySet& keys = tensor.*member(Keys());
  keys = keys.remove(key);
}

void skip_outputs(const at::RecordFunction& function) {
  auto& callbacks = const_cast<at::StepCallbacks&>(function.*member(Callbacks()));
  if (callbacks.callbacks_.size() == 1) callbacks.needs_outputs_ = false;
}

}  // namespace maya
