// Descriptions of an op's arguments.

#include "arguments.h"

#include <ATen/Context.h>

#include "../shim/device/internal.h"

namespace maya {
namespace {

void read_tensor_list(const c10::IValue& value, Argument& argument) {
  argument.kind = Argument::Kind::kTensorList;
  if (value.isTensorList()) {
    for (const auto& element : value.toListRef()) {
      const at::Tensor& tensor = element.toTensor();
      argument.tensors.push_back(tensor.defined() ? view_of(tensor) : TensorView());
    }
    return;
  }
  argument.optional_list = true;
  for (const auto& element : value.toListRef()) {
    const bool defined = element.isTensor() && element.toTensor().defined();
    argument.tensors.push_back(defined ? view_of(element.toTensor()) : TensorView());
  }
}

}  // namespace

void read_argument(const c10::IValue& value, Argument& argument) {
  argument.kind = Argument::Kind::kOther;
  argument.integer = 0;
  argument.optional_list = false;
  argument.tensors.clear();
  argument.integers.clear();
  argument.text = {};
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    argument.kind = tensor.defined() ? Argument::Kind::kTensor : Argument::Kind::kNone;
    if (tensor.defined()) argument.tensors.push_back(view_of(tensor));
  } else if (value.isNone()) {
    argument.kind = Argument::Kind::kNone;
  } else if (value.isInt()) {
    argument.kind = Argument::Kind::kInteger;
    argument.integer = value.toInt();
  } else if (value.isBool()) {
    argument.kind = Argument::Kind::kBool;
    argument.integer = value.toBool();
  } else if (value.isDouble()) {
    argument.kind = Argument::Kind::kFloat;
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    read_tensor_list(value, argument);
  } else if (value.isIntList()) {
    argument.kind = Argument::Kind::kIntegerList;
    for (int64_t integer : value.toIntVector()) argument.integers.push_back(integer);
  } else if (value.isString()) {
    argument.kind = Argument::Kind::kString;
    argument.text = value.toStringView();
  }
}

void keep_values(Call& call, const std::vector<Argument>& arguments, c10::ArrayRef<const c10::IValue> inputs) {
  call.values.clear();
  for (size_t i = 0; i < inputs.size(); i++) {
    const Argument& argument = arguments[i];
    const bool gpu_tensor = argument.kind == Argument::Kind::kTensor && argument.tensors[0].on_gpu();
    if (gpu_tensor || argument.kind == Argument::Kind::kTensorList) call.values.emplace_back();
    else call.values.push_back(inputs[i]);
  }
}

void keep_random_state(Call& call, c10::ArrayRef<const c10::IValue> inputs) {
  at::Generator generator;
  for (const c10::IValue& value : inputs) {
    if (value.isGenerator()) generator = value.toGenerator();
  }
  if (!generator.defined()) {
    generator = at::globalContext().defaultGenerator(
        c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(maya_current_device())));
  }
  if (generator.device().type() != c10::DeviceType::CUDA) return;
  call.random_seed = generator.current_seed();
  call.random_offset = generator.get_offset();
}

}  // namespace maya
