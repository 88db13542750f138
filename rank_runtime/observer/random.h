// Random numbers for ops that are really computed.
//
// The CUDA generator is a seed and an offset. Computing on the CPU draws from a CPU generator that starts from the same seed
// and goes on where the previous op stopped, so that a program that seeds and draws only on "cuda" sees the numbers that it
// would see on "cpu". When the program sets the offset back (activation checkpointing does), the CPU generator goes back, too.
#pragma once

#include <ATen/core/Generator.h>

#include "operators.h"

namespace maya {

at::Generator cpu_generator(uint64_t seed, uint64_t offset);

// While it lives, the default CPU generator draws what cpu_generator() would: for ops that take no generator, such as
// dropout. What the program itself draws on the CPU afterwards is not affected.
class DefaultGeneratorLoan {
 public:
  DefaultGeneratorLoan(uint64_t seed, uint64_t offset);
  ~DefaultGeneratorLoan();
  DefaultGeneratorLoan(const DefaultGeneratorLoan&) = delete;
  DefaultGeneratorLoan& operator=(const DefaultGeneratorLoan&) = delete;

 private:
  at::Generator lender_;
  at::Tensor programs_state_;
};

bool is_generator_argument(const Operator& op, size_t index);

}  // namespace maya
