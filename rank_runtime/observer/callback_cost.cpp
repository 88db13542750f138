// The overhead of RecordFunction callbacks. --host-time measured subtracts it, because a program on a real GPU does not pay it.
//
// A small CPU op is called many times, with callbacks enabled and disabled. The minimum of several attempts is used, because
// other processes share the CPU.

#include "callback_cost.h"

#include <ATen/ops/add.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "frames.h"

namespace maya {
namespace {

uint64_t least_ns(at::Tensor& tensor, bool observed) {
  constexpr int kAttempts = 40, kCalls = 50;
  const at::RecordFunctionGuard guard(observed);
  uint64_t least = UINT64_MAX;
  for (int attempt = 0; attempt < kAttempts; attempt++) {
    const uint64_t start = maya_now_ns();
    for (int call = 0; call < kCalls; call++) at::_ops::add__Scalar::call(tensor, 0, 1);
    least = std::min(least, maya_now_ns() - start);
  }
  return least / kCalls;
}

}  // namespace

uint64_t cost_of_callback() {
  const c10::InferenceMode no_autograd;
  const bool measures = maya_measures_host;
  maya_measures_host = false;
  Thread& self = this_thread();
  self.computing = self.calibrating = true;
  at::Tensor tensor = at::zeros({1});
  const uint64_t observed = least_ns(tensor, true), unobserved = least_ns(tensor, false);
  self.computing = self.calibrating = false;
  maya_measures_host = measures;
  const uint64_t cost = observed > unobserved ? observed - unobserved : 0;
  if (maya_get_settings()->debug) maya_message("RecordFunction callbacks take %d ns per op", static_cast<int>(cost));
  return cost;
}

}  // namespace maya
