// Extents of tensors that are passed to kernels by their address.
#pragma once

namespace maya {

// From now on, calls of Tensor.data_ptr in Python note the tensor's bytes.
void watch_data_pointers();

}  // namespace maya
