// Turning flags of torch's off: per operator "is observed", per op call "outputs are needed". They have no setters; naming a
// private member in an explicit template instantiation is the one place where the language does not check access, and the
// compiler knows its offset in the headers of the torch that is installed.

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

}  // namespace

void stop_observing(const c10::OperatorHandle& handle) {
  const bool& flag = (handle.*member(Definition())) -> op.*member(Observed());
  const_cast<volatile bool&>(flag) = false;
}

void spare_outputs(const at::RecordFunction& function) {
  auto& callbacks = const_cast<at::StepCallbacks&>(function.*member(Callbacks()));
  if (callbacks.callbacks_.size() == 1) callbacks.needs_outputs_ = false;
}

}  // namespace maya
