// Random numbers for ops that the observer computes.
//
// The state of a CUDA generator is a seed and an offset. Ops that are computed on the CPU draw from a CPU generator that starts
// from the same seed and continues where the previous op stopped, so a program that seeds and draws only on "cuda" gets the
// numbers that it would get on "cpu". When the program resets the offset (activation checkpointing does), the CPU generator is
// reset to the state that it had there.
//
// The default CPU generator belongs to the program, which may draw from it on another thread, so it is never used.
#pragma once

#include <ATen/core/Generator.h>

#include "operators.h"

namespace maya {

at::Generator cpu_generator(uint64_t seed, uint64_t offset);

bool is_generator_argument(const Operator& op, size_t index);

}  // namespace maya
