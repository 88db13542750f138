// Extents of tensors that are passed to kernels by their address.
#pragma once

namespace maya {

// From now on, whoever asks a tensor for its address in Python (Tensor.data_ptr) has the tensor's bytes noted.
void watch_data_pointers();

}  // namespace maya
