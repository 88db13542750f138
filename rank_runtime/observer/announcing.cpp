// What announcing costs: --host-time measured leaves it out, as no program on a real GPU pays for it.
//
// A small op on the host is called many times, announced and not announced. The least of several attempts counts: others
// share the processor.

#include "announcing.h"

#include <ATen/ops/add.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "frames.h"

namespace maya {
namespace {

uint64_t least_ns(at::Tensor& tensor, bool announced) {
  constexpr int kAttempts = 40, kCalls = 50;
  const at::RecordFunctionGuard guard(announced);
  uint64_t least = UINT64_MAX;
  for (int attempt = 0; attempt < kAttempts; attempt++) {
    const uint64_t start = maya_now_ns();
    for (int call = 0; call < kCalls; call++) at::_ops::add__Scalar::call(tensor, 0, 1);
    least = std::min(least, maya_now_ns() - start);
  }
  return least / kCalls;
}

}  // namespace

uint64_t cost_of_announcing() {
  const c10::InferenceMode no_autograd;
  const bool measures = maya_measures_host;
  maya_measures_host = false;
  Thread& self = this_thread();
  self.computing = self.calibrating = true;
  at::Tensor tensor = at::zeros({1});
  const uint64_t announced = least_ns(tensor, true), silent = least_ns(tensor, false);
  self.computing = self.calibrating = false;
  maya_measures_host = measures;
  const uint64_t cost = announced > silent ? announced - silent : 0;
  if (maya_get_settings()->debug) maya_message("announcing an op takes %d ns", static_cast<int>(cost));
  return cost;
}

}  // namespace maya
