// Describing an op's arguments.
#pragma once

#include <ATen/core/ivalue.h>

#include "compute.h"
#include "signature.h"

namespace maya {

void read_argument(const c10::IValue& value, Argument& argument);
// Keep what computing the op needs beyond the views: numbers, lists, and tensors in host memory.
void keep_values(Call& call, const std::vector<Argument>& arguments, c10::ArrayRef<const c10::IValue> inputs);
// Where the op's generator stands before it draws.
void keep_random_state(Call& call, c10::ArrayRef<const c10::IValue> inputs);

}  // namespace maya
