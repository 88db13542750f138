// The arguments and results of an op on the CPU.

#include "cpu_call.h"

#include <c10/util/Exception.h>

#include "choices.h"
#include "cpu_equivalents.h"
#include "integer_ops.h"
#include "random.h"

namespace maya {
namespace {

// The CPU kernel is called past the dispatcher, which would resolve lazily conjugated and negated arguments for it.
at::Tensor resolved(const Call& call, size_t argument, const TensorView& view) {
  at::Tensor alias = cpu_alias(view);
  if ((!view.conjugate && !view.negative) || call.op->kernel_free == Operator::KernelFree::kCopy) return alias;
  TORCH_CHECK(!call.writes[argument], "it changes a tensor that is lazily conjugated or negated");
  return alias.resolve_conj().resolve_neg();
}

c10::IValue alias_list(const Call& call, size_t index) {
  const Argument& argument = call.arguments[index];
  if (!argument.optional_list) {
    c10::List<at::Tensor> list;
    for (const TensorView& view : argument.tensors) list.push_back(resolved(call, index, view));
    return list;
  }
  c10::List<std::optional<at::Tensor>> list;
  for (const TensorView& view : argument.tensors) {
    if (view.dtype == c10::ScalarType::Undefined) list.push_back(std::nullopt);
    else list.push_back(resolved(call, index, view));
  }
  return list;
}

// The result that belongs to an `out` argument. The op may have resized the argument and thereby moved its memory.
const TensorView* output_for(const Call& call, size_t argument) {
  if (!call.op->is_out[argument]) return nullptr;
  size_t position = 0;
  for (size_t i = 0; i < argument; i++) position += call.op->is_out[i];
  return position < call.outputs.size() && call.outputs[position].on_gpu() ? &call.outputs[position] : nullptr;
}

void flatten(const c10::IValue& value, std::vector<at::Tensor>& tensors) {
  if (value.isTensor()) {
    tensors.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(tensor);
  } else if (value.isTuple()) {
    for (const auto& element : value.toTupleRef().elements()) flatten(element, tensors);
  } else if (value.isNone()) {
    tensors.emplace_back();  // an optional result that is absent keeps its place
  }
}

}  // namespace

std::vector<c10::IValue> stack_of(const Call& call) {
  std::vector<c10::IValue> stack;
  stack.reserve(call.arguments.size());
  for (size_t i = 0; i < call.arguments.size(); i++) {
    const Argument& argument = call.arguments[i];
    if (const TensorView* output = output_for(call, i)) {
      stack.emplace_back(resolved(call, i, *output));
    } else if (const auto original = call.originals.find(i); original != call.originals.end()) {
      stack.emplace_back(original->second);
    } else if (argument.kind == Argument::Kind::kTensor && argument.tensors[0].on_gpu()) {
      stack.emplace_back(resolved(call, i, argument.tensors[0]));
    } else if (argument.kind == Argument::Kind::kTensorList) {
      stack.push_back(alias_list(call, i));
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

std::vector<at::Tensor> results_of(const Call& call) {
  std::vector<c10::IValue> stack = stack_of(call);
  const CpuEquivalent equivalent = cpu_equivalent_for(*call.op);
  if (equivalent != nullptr) {
    at::Generator generator;
    if (call.op->draws_by_default) generator = cpu_generator(call.random_seed, call.random_offset);
    stack = equivalent(Arguments(*call.op, std::move(stack), std::move(generator)));
  } else if (auto fast = fast_integer_results(*call.op, stack)) {
    return std::move(*fast);
  } else {
    TORCH_CHECK(call.op->has_cpu_kernel(), "it has no CPU kernel");
    TORCH_CHECK(!call.op->draws_by_default, "its CPU kernel would take the program's own random numbers");
    call.op->handle->redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  }
  std::vector<at::Tensor> results;
  for (const c10::IValue& value : stack) flatten(value, results);
  return results;
}

bool overwrites_input(const Call& call) {
  const auto overlap = [](const TensorView& one, const TensorView& other) {
    const auto *first = static_cast<const char*>(one.data), *second = static_cast<const char*>(other.data);
    return first < second + other.bytes && second < first + one.bytes;
  };
  for (size_t i = 0; i < call.arguments.size(); i++) {
    if (!call.op->is_out[i] || call.arguments[i].kind != Argument::Kind::kTensor) continue;
    for (size_t other = 0; other < call.arguments.size(); other++) {
      if (call.writes[other] || call.arguments[other].kind != Argument::Kind::kTensor) continue;
      if (overlap(call.arguments[i].tensors[0], call.arguments[other].tensors[0])) return true;
    }
  }
  return false;
}

void keep_originals(Call& call) {
  for (size_t i = 0; i < call.arguments.size(); i++) {
    if (!call.reads_argument(i) || call.arguments[i].kind != Argument::Kind::kTensor) continue;
    const TensorView& view = call.arguments[i].tensors[0];
    if (!view.on_gpu() || static_cast<int64_t>(view.bytes) > maya_get_settings()->small_bytes || !is_known(view)) continue;
    PlainDispatch plain;
    call.originals.emplace(i, resolved(call, i, view).clone());
  }
}

void for_each_result(const Call& call, void (*visit)(const TensorView&)) {
  for (size_t i = 0; i < call.arguments.size(); i++) {
    if (!call.writes[i]) continue;
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
    if (!call.reads_argument(i) || call.originals.count(i) > 0) continue;
    for (const TensorView& view : call.arguments[i].tensors) {
      if (!is_known(view)) return false;
    }
  }
  return true;
}

bool inputs_are_assumed(const Call& call) {
  if (!choices_exist()) return false;
  for (size_t i = 0; i < call.arguments.size(); i++) {
    if (!call.reads_argument(i)) continue;
    for (const TensorView& view : call.arguments[i].tensors) {
      if (is_assumed(view)) return true;
    }
  }
  return false;
}

void submit(void* stream, void (*run)(void*), void (*release)(void*), void* argument) {
  maya_command command{};
  command.run = run;
  command.release = release;
  command.argument = argument;
  command.unrecorded = true;
  maya_submit(stream, &command);
}

size_t Call::gpu_bytes() const {
  size_t bytes = 0;
  for (const Argument& argument : arguments) {
    for (const TensorView& view : argument.tensors) bytes += view.on_gpu() ? view.bytes : 0;
  }
  for (const TensorView& output : outputs) bytes += output.on_gpu() ? output.bytes : 0;
  return bytes;
}

bool Call::reads_argument(size_t index) const {
  return op->reads_argument(c10::ArrayRef<const c10::IValue>(values.data(), values.size()), index);
}

}  // namespace maya
