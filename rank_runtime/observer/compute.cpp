// Computes an op, or makes its results placeholders.
//
// inputs known          -> computed; the results are known. Integers that come from the host are computed up to a larger size.
//                          Once the program has made a choice (choices.h), ops on integers are computed at any size, and ops on
//                          floating-point numbers that follow from it up to a larger size
// tiny, inputs unknown  -> computed from the placeholder zeros, with non-finite results replaced by zero; the results stay
//                          placeholders, but consistent ones: isfinite(loss) is true, loss > 10 is false
// otherwise             -> the results are placeholders (placeholder_results.cpp)

#include "compute.h"

#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <mutex>
#include <unordered_set>

#include "../shim/device/internal.h"
#include "choices.h"
#include "cpu_call.h"
#include "cpu_equivalents.h"
#include "kernel_free_ops.h"
#include "placeholder_results.h"
#include "result_cache.h"

namespace maya {
namespace {

bool is_written_argument(const Call& call, const TensorView& output) {
  for (size_t i = 0; i < call.arguments.size(); i++) {
    if (!call.writes[i]) continue;
    for (const TensorView& view : call.arguments[i].tensors) {
      if (view.data == output.data) return true;
    }
  }
  return false;
}

// Runs the op and copies its results to the call's outputs.
void compute_uncached(const Call& call) {
  PlainDispatch plain;
  const std::vector<at::Tensor> results = results_of(call);
  for (const auto& [index, original] : call.originals) {
    if (call.writes[index]) cpu_alias(call.arguments[index].tensors[0]).copy_(original);
  }
  TORCH_CHECK(results.size() >= call.outputs.size(), "its CPU kernel has ", results.size(), " results instead of ",
              call.outputs.size());
  for (size_t i = 0; i < call.outputs.size(); i++) {
    const TensorView& output = call.outputs[i];
    if (!output.on_gpu() || output.bytes == 0) continue;
    // A CPU kernel has written to the argument itself, an equivalent to memory of its own.
    if (call.originals.empty() && is_written_argument(call, output) && cpu_equivalent_for(*call.op) == nullptr) continue;
    if (!results[i].defined() || results[i].const_data_ptr() == output.data) continue;
    at::Tensor target = cpu_alias(output);
    TORCH_CHECK(results[i].numel() == target.numel(), "result ", i, " of its CPU kernel has shape ", results[i].sizes(),
                " instead of ", target.sizes());
    target.copy_(results[i].reshape(target.sizes()));
  }
}

// Computes the call by the cheapest way. With --compute all the cache is not used: few calls repeat there.
void compute(const Call& call, bool all) {
  if (compute_without_kernel(call)) return;
  if (all || !call.originals.empty()) return compute_uncached(call);
  const CachedCall cached(call);
  if (cached.load()) return;
  compute_uncached(call);
  cached.store();
}

bool results_are_integers(const Call& call) {
  const auto others = [](const TensorView& view) { return view.on_gpu() && !has_integers(view); };
  for (size_t i = 0; i < call.arguments.size(); i++) {
    const auto& tensors = call.arguments[i].tensors;
    if (call.writes[i] && std::any_of(tensors.begin(), tensors.end(), others)) return false;
  }
  return std::none_of(call.outputs.begin(), call.outputs.end(), others);
}

bool sets_zero(const Operator& op, c10::ArrayRef<const c10::IValue> values) {
  return op.fills && values[1].isScalar() && !values[1].toScalar().isComplex() && values[1].toScalar().toDouble() == 0.0;
}

// A tensor of zeros is known without touching a page.
bool set_zero(const Call& call) {
  const TensorView& target = call.arguments[0].tensors[0];
  const c10::ArrayRef<const c10::IValue> values(call.values.data(), call.values.size());
  if (!sets_zero(*call.op, values) || !target.dense) return false;
  constexpr char kZero = 0;
  maya_values_fill(target.data, &kZero, sizeof kZero, target.bytes, target.bytes);
  return true;
}

size_t result_bytes(const Call& call, bool integers) {
  size_t bytes = 0;
  for (const TensorView& output : call.outputs) bytes += output.on_gpu() && has_integers(output) == integers ? output.bytes : 0;
  return bytes;
}

// Whether the results of a call that is not small can be kept.
bool have_room(const Call& call) {
  const size_t integers = result_bytes(call, true), others = result_bytes(call, false);
  return (integers == 0 || maya_values_room_to_compute(integers, MAYA_CONTENT_OTHER)) &&
         (others == 0 || maya_values_room_to_compute(others, MAYA_CONTENT_FLOATING));
}

// The same for an op that no choice comes before: it works on integers from the host, and nothing is displaced for it.
bool is_data_with_room(const Call& call) {
  bool is_data = call.op->joins;
  int64_t bytes = 0;
  for (const Argument& argument : call.arguments) {
    for (const TensorView& view : argument.tensors) {
      bytes += view.on_gpu() ? static_cast<int64_t>(view.bytes) : 0;
      is_data = is_data || (view.on_gpu() && maya_values_are_large_integers(view.data));
    }
  }
  is_data = is_data || bytes <= kMostOfAnyOrigin;
  return is_data && results_are_integers(call) && maya_values_room_left(result_bytes(call, true));
}

void mark_results(const Call& call, bool assumed) {
  const bool large = static_cast<int64_t>(call.gpu_bytes()) > maya_get_settings()->compute_bytes;
  const bool joins_objects = call.op->joins && call.outputs[0].dtype == c10::ScalarType::Byte;
  if (assumed) for_each_result(call, [](const TensorView& view) { mark_computed(view, true); });
  else if (large && !joins_objects) for_each_result(call, [](const TensorView& view) { mark_computed(view, false); });
  else for_each_result(call, mark_known);
}

// A choice among scores that are placeholders, follow from other choices, or are too large to be computed from.
bool choose(const Call& call, bool known, bool assumed) {
  if (call.place < 0) return false;
  if (known && !assumed && static_cast<int64_t>(call.gpu_bytes()) <= maya_get_settings()->compute_bytes) return false;
  for_each_result(call, mark_placeholder);
  try {
    PlainDispatch plain;
    choose_by_rule(call, known && assumed);
  } catch (const std::exception& error) {
    report_once(*call.op, error.what());
    write_placeholders(call);
  }
  return true;
}

// Whether the op puts known elements into every place of its first argument, such as the inverse of a permutation into new
// memory: then what that held before does not count.
bool replaces_all(const Call& call) {
  if (!call.op->replaces || !call.originals.empty()) return false;
  for (size_t i = 1; i < call.arguments.size(); i++) {
    for (const TensorView& view : call.arguments[i].tensors) {
      if (!is_known(view)) return false;
    }
  }
  try {
    PlainDispatch plain;
    std::vector<c10::IValue> stack = stack_of(call);
    const auto& arguments = call.op->handle->schema().arguments();
    stack[0] = at::zeros_like(stack[0].toTensor());
    for (size_t i = 1; i < stack.size(); i++) {
      const std::string& name = arguments[i].name();
      if (name == "accumulate" && stack[i].toBool()) return false;
      if (name == "values" || name == "source" || name == "src") stack[i] = at::ones_like(stack[i].toTensor());
      if (name == "value") stack[i] = c10::IValue(c10::Scalar(1));
    }
    call.op->handle->redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    return stack[0].toTensor().all().item<bool>();
  } catch (const std::exception&) {
    return false;
  }
}

void apply(const Call& call) {
  const bool all = maya_get_settings()->compute == MAYA_COMPUTE_ALL;
  const bool large = !all && call.any_size && static_cast<int64_t>(call.gpu_bytes()) > maya_get_settings()->compute_bytes;
  if (large && set_zero(call)) return;
  if (large && !(choices_exist() ? have_room(call) : is_data_with_room(call))) {
    write_placeholders(call);
    return;
  }
  const ValuesHeld values_held;
  const bool known = inputs_are_known(call) || replaces_all(call);
  const bool assumed = inputs_are_assumed(call);
  if (choose(call, known, assumed)) return;
  if (large && !assumed && !results_are_integers(call)) {
    write_placeholders(call);
    return;
  }
  if (!known && !all && (call.gpu_bytes() >= kGuessBytes || call.op->reports_errors || call.tally.elements > 0)) {
    write_placeholders(call);
    return;
  }
  try {
    compute(call, all);
    if (!known && !all) for_each_result(call, replace_non_finite);
    // Mark results that were known before as well: they may have been lazy zeros, for which no page was touched.
    if (known) mark_results(call, assumed);
    else for_each_result(call, mark_guessed);
  } catch (const c10::Error& error) {
    report_once(*call.op, error.what_without_backtrace());
    write_placeholders(call);
  } catch (const std::exception& error) {
    report_once(*call.op, error.what());
    write_placeholders(call);
  }
}

void run_call(void* argument) { apply(*static_cast<Call*>(argument)); }

void release_call(void* argument) { delete static_cast<Call*>(argument); }

bool is_large_integers(const c10::IValue& value) {
  if (value.isTensorList()) {
    const auto& list = value.toListRef();
    return std::any_of(list.begin(), list.end(), is_large_integers);
  }
  return value.isTensor() && starts_with_large_integers(value.toTensor());
}

// Whether the op may work on integers from the host, as far as can be said before it runs. Small ones that are joined become
// large.
bool reads_data(const Operator& op, c10::ArrayRef<const c10::IValue> inputs, const Scan& scan) {
  if (scan.gpu_bytes <= kMostOfAnyOrigin || maya_commands_are_queued() || maya_captures_exist()) return true;
  return op.joins || std::any_of(inputs.begin(), inputs.end(), is_large_integers);
}

}  // namespace

void report_once(const Operator& op, const char* problem) {
  static std::mutex lock;
  static auto& said = *new std::unordered_set<const Operator*>;  // never destroyed, as in result_cache.cpp
  const maya_settings* settings = maya_get_settings();
  if (settings->compute != MAYA_COMPUTE_ALL && settings->debug == 0) return;
  std::lock_guard<std::mutex> guard(lock);
  if (!said.insert(&op).second) return;
  std::string first_line(problem);
  first_line.resize(std::min(first_line.find('\n'), first_line.size()));
  maya_message("%s%s%s cannot be computed, so its results are placeholders: %s", op.name.c_str(),
               op.overload.empty() ? "" : ".", op.overload.c_str(), first_line.c_str());
}

int64_t limit_of_computing(const Operator& op, c10::ArrayRef<const c10::IValue> inputs, const Scan& scan) {
  if (maya_get_settings()->compute != MAYA_COMPUTE_SMALL) return 0;
  if (op.is_gemm || op.takes_generator || op.draws_by_default) return 0;
  if (!choices_exist()) {
    const bool is_data = scan.all_integers && !op.fills && scan.gpu_bytes > 0 && reads_data(op, inputs, scan);
    return is_data ? std::min(kMostIntegerBytes, (1 + kMostGrowth) * scan.gpu_bytes) : 0;
  }
  if (scan.all_integers || sets_zero(op, inputs)) return INT64_MAX;
  return scan.gpu_bytes <= kMostAssumedBytes ? kMostAssumedBytes : 0;
}

bool is_certainly_placeholder(const Operator& op, c10::ArrayRef<const c10::IValue> inputs, int64_t gpu_bytes) {
  if (maya_get_settings()->compute == MAYA_COMPUTE_ALL) return false;
  if (gpu_bytes < static_cast<int64_t>(kGuessBytes) && !op.reports_errors && !op.tallies) return false;
  if (maya_commands_are_queued() || maya_captures_exist()) return false;  // its inputs may be known when it runs
  for (size_t i = 0; i < inputs.size() && i < op.reads.size(); i++) {
    if (!op.reads_argument(inputs, i) || (i == 0 && op.replaces)) continue;
    if (inputs[i].isTensor() && starts_with_placeholder(inputs[i].toTensor())) return true;
    if (!inputs[i].isTensorList()) continue;
    for (const c10::IValue& element : inputs[i].toListRef()) {
      if (starts_with_placeholder(element.toTensor())) return true;
    }
  }
  return false;
}

void apply_in_stream(void* stream, Call& call) {
  if (!maya_commands_are_queued() && !maya_stream_is_capturing(stream)) {
    apply(call);
    return;
  }
  submit(stream, run_call, release_call, new Call(std::move(call)));
}

bool writes_argument(const Operator& op, c10::ArrayRef<const c10::IValue> inputs, size_t index) {
  if (index >= op.writes.size()) return false;
  if (op.writes[index]) return true;
  const int position = static_cast<int>(index);
  const bool is_statistic = op.first_statistic >= 0 && (position == op.first_statistic || position == op.first_statistic + 1);
  return is_statistic && inputs[op.training_flag].isBool() && inputs[op.training_flag].toBool();
}

}  // namespace maya
