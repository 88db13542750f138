// Ops that leave large zeros on the host as they are.
#pragma once

#include "operators.h"

namespace maya {

// The position of the tensor that the op returns unchanged, because it multiplies zeros by a number in place (an optimizer's
// state before its first step); nullopt: it is another op, or changes something.
std::optional<size_t> scaled_zeros(const Operator& op, c10::ArrayRef<const c10::IValue> values);

}  // namespace maya
