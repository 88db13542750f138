// What torch keeps to itself: flags per operator, "is observed", and per op call, "outputs are needed"; who is to be told of a
// call; and how it numbers ops. Naming a private member in an explicit template instantiation is the one place where the
// language does not check access, and the compiler knows where it is from the headers of the torch that is installed.

#include "observed.h"

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

}  // namespace

void stop_observing(const c10::OperatorHandle& handle) {
  const bool& flag = (handle.*member(Definition()))->op.*member(Observed());
  const_cast<volatile bool&>(flag) = false;
}

bool hears_alone(at::RecordFunctionCallback::StartCallback observer, const at::RecordFunction& function) {
  const auto& callbacks = (function.*member(Callbacks())).callbacks_;
  return callbacks.size() == 1 && callbacks[0].start_ == observer;
}

int64_t sequence_number_of(c10::DispatchKeySet keys) { return member(SequenceNumber())(keys.highestPriorityTypeId(), keys); }

void spare_outputs(const at::RecordFunction& function) {
  auto& callbacks = const_cast<at::StepCallbacks&>(function.*member(Callbacks()));
  if (callbacks.callbacks_.size() == 1) callbacks.needs_outputs_ = false;
}

}  // namespace maya
