// Frequent small ops that are computed without a CPU kernel, because the call would cost many times the computation.
#pragma once

#include "compute.h"

namespace maya {

// Computes the op in place; false if it is not one of these ops, or its tensors are not dense.
bool compute_without_kernel(const Call& call);

}  // namespace maya
