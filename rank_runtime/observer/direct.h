// Small ops that are frequent and so simple that calling a kernel costs many times what they do.
#pragma once

#include "compute.h"

namespace maya {

// Computes the op in place; false if it is none of those, or its tensors are not plain enough.
bool compute_directly(const Call& call);

}  // namespace maya
