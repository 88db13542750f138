// What the results of an op hold that is not computed.
#pragma once

#include "compute.h"

namespace maya {

// Makes the results of a call placeholders: zeros, but true for `all`, and even counts for ops that count into bins.
void write_placeholders(const Call& call);
// Replaces infinities and NaNs, the numbers with all exponent bits set, by zero.
void replace_non_finite(const TensorView& view);

}  // namespace maya
