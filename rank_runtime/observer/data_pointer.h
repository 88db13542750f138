// The sizes of tensors whose addresses Python code passes to kernels.
#pragma once

namespace maya {

// From now on, calls of Tensor.data_ptr in Python note the tensor's size in bytes for the next launch.
void watch_data_pointers();

}  // namespace maya
