// Descriptions of an op's arguments, for signatures and for computing the op.
#pragma once

#include <ATen/core/ivalue.h>

#include "compute.h"
#include "signature.h"

namespace maya {

void read_argument(const c10::IValue& value, Argument& argument);
// Copies into `call` the values that computing needs besides views of GPU tensors: numbers, lists, and host tensors.
void keep_values(Call& call, const std::vector<Argument>& arguments, c10::ArrayRef<const c10::IValue> inputs);
// Saves seed and offset of the op's CUDA generator, before the op draws from it.
void keep_random_state(Call& call, c10::ArrayRef<const c10::IValue> inputs);

}  // namespace maya
