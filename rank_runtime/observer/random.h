// Random numbers for ops that are really computed.
//
// The CUDA generator is a seed and an offset. Computing on the CPU draws from a CPU generator that starts from the same seed
// and goes on where the previous op stopped, so that a program that seeds and draws only on "cuda" sees the numbers that it
// would see on "cpu". When the program sets the offset back (activation checkpointing does), the CPU generator goes back, too.
//
// The default CPU generator is the program's own, which may be drawing from it on another thread: it is never touched.
#pragma once

#include <ATen/core/Generator.h>

#include "operators.h"

namespace maya {

at::Generator cpu_generator(uint64_t seed, uint64_t offset);

bool is_generator_argument(const Operator& op, size_t index);

}  // namespace maya
