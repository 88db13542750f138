// Really computing an op.
//
// known inputs      -> computed; the results are known
// tiny, not known   -> computed from the zeros that stand for made-up values, non-finite results replaced by zero; still
//                      made up, but consistent: isfinite(loss) is true, loss > 10 is false
// everything else   -> results are made up and read as zero; `all` reads as true, so that isfinite(x).all() is benign

#include "compute.h"

#include <ATen/ops/nan_to_num.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <mutex>
#include <unordered_set>

#include "../shim/device/internal.h"
#include "random.h"
#include "substitutes.h"

namespace maya {
namespace {

constexpr size_t kGuessBytes = 4096;

// CPU kernels only: no autograd, autocast, dispatch modes or observers of the program's, and none of ours.
struct PlainDispatch {
  at::RecordFunctionGuard unobserved{false};
  c10::impl::ForceDispatchKeyGuard keys{c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
                                        c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset};
};

c10::IValue alias_list(const Argument& argument) {
  if (!argument.optional_list) {
    c10::List<at::Tensor> list;
    for (const TensorView& view : argument.tensors) list.push_back(cpu_alias(view));
    return list;
  }
  c10::List<std::optional<at::Tensor>> list;
  for (const TensorView& view : argument.tensors) {
    if (view.dtype == c10::ScalarType::Undefined) list.push_back(std::nullopt);
    else list.push_back(cpu_alias(view));
  }
  return list;
}

std::vector<c10::IValue> stack_of(const Call& call) {
  std::vector<c10::IValue> stack;
  stack.reserve(call.arguments.size());
  for (size_t i = 0; i < call.arguments.size(); i++) {
    const Argument& argument = call.arguments[i];
    if (argument.kind == Argument::Kind::kTensor && argument.tensors[0].on_gpu()) {
      stack.emplace_back(cpu_alias(argument.tensors[0]));
    } else if (argument.kind == Argument::Kind::kTensorList) {
      stack.push_back(alias_list(argument));
    } else if (call.values[i].isDevice()) {
      stack.emplace_back(c10::Device(c10::DeviceType::CPU));
    } else if (call.values[i].isGenerator() || (call.op->takes_generator && is_generator_argument(*call.op, i))) {
      stack.emplace_back(cpu_generator(call.random_seed, call.random_offset));
    } else {
      stack.push_back(call.values[i]);
    }
  }
  return stack;
}

void flatten(const c10::IValue& value, std::vector<at::Tensor>& tensors) {
  if (value.isTensor()) {
    tensors.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(tensor);
  } else if (value.isTuple()) {
    for (const auto& element : value.toTupleRef().elements()) flatten(element, tensors);
  }
}

bool is_written_argument(const Call& call, const TensorView& output) {
  for (size_t i = 0; i < call.arguments.size(); i++) {
    if (i >= call.op->writes.size() || !call.op->writes[i]) continue;
    for (const TensorView& view : call.arguments[i].tensors) {
      if (view.data == output.data) return true;
    }
  }
  return false;
}

// Runs the op; throws what it throws.
void compute(const Call& call) {
  std::vector<c10::IValue> stack = stack_of(call);
  const Substitute substitute = substitute_for(*call.op);
  if (substitute != nullptr) {
    stack = substitute(Arguments(*call.op, std::move(stack)));
  } else {
    TORCH_CHECK(call.op->has_cpu_kernel(), "it has no CPU kernel");
    call.op->handle->callBoxed(stack);
  }
  std::vector<at::Tensor> results;
  for (const c10::IValue& value : stack) flatten(value, results);
  TORCH_CHECK(results.size() >= call.outputs.size(), "its CPU kernel has ", results.size(), " results instead of ",
              call.outputs.size());
  for (size_t i = 0; i < call.outputs.size(); i++) {
    const TensorView& output = call.outputs[i];
    if (!output.on_gpu() || output.bytes == 0 || is_written_argument(call, output)) continue;
    if (!results[i].defined()) continue;
    at::Tensor target = cpu_alias(output);
    TORCH_CHECK(results[i].numel() == target.numel(), "result ", i, " of its CPU kernel has shape ", results[i].sizes(),
                " instead of ", target.sizes());
    target.copy_(results[i].reshape(target.sizes()));
  }
}

// Batch norm updates its running statistics when it trains, which its schema does not say.
bool writes_argument(const Operator& op, const std::vector<Argument>& arguments, size_t index) {
  if (index >= op.writes.size()) return false;
  if (op.writes[index]) return true;
  const bool is_statistic = op.first_statistic >= 0 && (static_cast<int>(index) == op.first_statistic ||
                                                        static_cast<int>(index) == op.first_statistic + 1);
  return is_statistic && arguments[op.training_flag].integer != 0;
}

void for_each_result(const Call& call, void (*visit)(const TensorView&)) {
  for (size_t i = 0; i < call.arguments.size(); i++) {
    if (!writes_argument(*call.op, call.arguments, i)) continue;
    for (const TensorView& view : call.arguments[i].tensors) {
      if (view.on_gpu()) visit(view);
    }
  }
  for (const TensorView& output : call.outputs) {
    if (output.on_gpu()) visit(output);
  }
}

bool inputs_are_known(const Call& call) {
  for (size_t i = 0; i < call.arguments.size(); i++) {
    if (i < call.op->reads.size() && !call.op->reads[i]) continue;
    for (const TensorView& view : call.arguments[i].tensors) {
      if (!is_known(view)) return false;
    }
  }
  return true;
}

void replace_non_finite(const TensorView& view) {
  if (!c10::isFloatingType(view.dtype) || view.bytes == 0) return;
  at::Tensor alias = cpu_alias(view);
  alias.copy_(at::nan_to_num(alias.to(at::kFloat), 0.0, 0.0, 0.0));
}

void say_once(const Operator& op, const char* problem) {
  static std::mutex lock;
  static std::unordered_set<const Operator*> said;
  const maya_settings* settings = maya_get_settings();
  if (settings->compute != MAYA_COMPUTE_ALL && settings->debug == 0) return;
  std::lock_guard<std::mutex> guard(lock);
  if (!said.insert(&op).second) return;
  std::string first_line(problem);
  first_line.resize(std::min(first_line.find('\n'), first_line.size()));
  maya_message("%s%s%s cannot be computed, so its results are made up: %s", op.name.c_str(), op.overload.empty() ? "" : ".",
               op.overload.c_str(), first_line.c_str());
}

void make_up(const Call& call) {
  for_each_result(call, mark_made_up);
  if (call.op->name == "aten::all" && call.outputs.size() == 1 && call.outputs[0].bytes > 0 && call.outputs[0].dense) {
    mark_guessed(call.outputs[0]);
    memset(call.outputs[0].data, 1, call.outputs[0].bytes);
  }
}

void apply(const Call& call) {
  const bool known = inputs_are_known(call);
  const bool all = maya_get_settings()->compute == MAYA_COMPUTE_ALL;
  if (!known && !all && call.gpu_bytes() > kGuessBytes) {
    make_up(call);
    return;
  }
  try {
    PlainDispatch plain;
    compute(call);
    if (!known && !all) for_each_result(call, replace_non_finite);
    for_each_result(call, known ? mark_known : mark_guessed);
  } catch (const c10::Error& error) {
    say_once(*call.op, error.what_without_backtrace());
    make_up(call);
  } catch (const std::exception& error) {
    say_once(*call.op, error.what());
    make_up(call);
  }
}

void run_call(void* argument) { apply(*static_cast<Call*>(argument)); }

void release_call(void* argument) { delete static_cast<Call*>(argument); }

void run_make_up(void* argument) {
  for (const TensorView& view : *static_cast<std::vector<TensorView>*>(argument)) mark_made_up(view);
}

void release_views(void* argument) { delete static_cast<std::vector<TensorView>*>(argument); }

void submit(void* stream, void (*run)(void*), void (*release)(void*), void* argument) {
  maya_work work{};
  work.run = run;
  work.release = release;
  work.argument = argument;
  work.unrecorded = true;
  maya_submit(stream, &work);
}

}  // namespace

size_t Call::gpu_bytes() const {
  size_t bytes = 0;
  for (const Argument& argument : arguments) {
    for (const TensorView& view : argument.tensors) bytes += view.on_gpu() ? view.bytes : 0;
  }
  for (const TensorView& output : outputs) bytes += output.on_gpu() ? output.bytes : 0;
  return bytes;
}

void apply_in_stream(void* stream, Call&& call) {
  if (!maya_work_is_queued() && !maya_stream_is_capturing(stream)) {
    apply(call);
    return;
  }
  submit(stream, run_call, release_call, new Call(std::move(call)));
}

void results_are_made_up(void* stream, const std::vector<Argument>& arguments, size_t count, const Operator* op,
                         const std::vector<TensorView>& outputs) {
  std::vector<TensorView> later;
  const bool at_once = !maya_work_is_queued() && !maya_stream_is_capturing(stream);
  auto each = [&](const TensorView& view) {
    if (!view.on_gpu()) return;
    if (at_once) mark_made_up(view);
    else later.push_back(view);
  };
  for (size_t i = 0; op != nullptr && (op->writes_any || op->first_statistic >= 0) && i < count; i++) {
    if (!writes_argument(*op, arguments, i)) continue;
    for (const TensorView& view : arguments[i].tensors) each(view);
  }
  for (const TensorView& output : outputs) each(output);
  if (at_once && op != nullptr && op->name == "aten::all" && outputs.size() == 1 && outputs[0].dense) {
    memset(outputs[0].data, 1, outputs[0].bytes);
    mark_guessed(outputs[0]);
  }
  if (!later.empty()) submit(stream, run_make_up, release_views, new std::vector<TensorView>(std::move(later)));
}

int64_t count_of_elements(const Call& call) {
  if (!inputs_are_known(call)) return -1;
  try {
    PlainDispatch plain;
    std::vector<c10::IValue> stack = stack_of(call);
    call.op->handle->callBoxed(stack);
    return stack[0].toTensor().size(0);
  } catch (const std::exception&) {
    return -1;  // the op itself will report what is wrong with its arguments
  }
}

}  // namespace maya
