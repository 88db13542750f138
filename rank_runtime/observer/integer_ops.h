// Ops on large integer and boolean tensors, as routers of mixtures of experts use them, faster than by torch's CPU kernels on
// one thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <vector>

#include "operators.h"

namespace maya {

constexpr int64_t kLeastElements = 4096;  // for fewer, torch's kernels are fast enough

// The results of the op for these arguments, on the CPU; nullopt: another op, or arguments that have no fast form.
std::optional<std::vector<at::Tensor>> fast_integer_results(const Operator& op, const std::vector<c10::IValue>& stack);
// The number of elements that are not zero.
int64_t count_of_nonzeros(const at::Tensor& tensor);

}  // namespace maya
