// Really computing an op: by torch's CPU kernels, on CPU tensors over the same memory, in stream order.
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "operators.h"
#include "scan.h"
#include "signature.h"

namespace maya {

// An op call, kept until its turn in the stream comes (and, inside a CUDA graph, for every launch of the graph).
struct Call {
  const Operator* op = nullptr;
  Fingerprint fingerprint;          // of the arguments
  std::vector<Argument> arguments;  // tensors, as views
  std::vector<c10::IValue> values;  // everything else and host tensors, by position; GPU tensors are None here
  std::vector<TensorView> outputs;
  std::vector<bool> writes;  // per argument
  Tally tally;
  uint64_t random_seed = 0, random_offset = 0;  // of the CUDA generator before the op drew from it

  size_t gpu_bytes() const;
  // Whether the results depend on what it holds.
  bool reads_argument(size_t index) const;
};

// true if it is certain, before the op has run, that it will not be computed because of what it reads. Most small ops of a
// training step are like that: they work on gradients, which nobody computed. `gpu_bytes`: of its arguments.
bool is_certainly_made_up(const Operator& op, c10::ArrayRef<const c10::IValue> inputs, int64_t gpu_bytes);
// Do, in `stream`'s order, what the op does to values: compute it, guess it, or declare its results made up.
// The call is moved from only if it has to wait for its turn.
void apply_in_stream(void* stream, Call& call);
Tally tally_of(const Operator& op, c10::ArrayRef<const c10::IValue> inputs);
// The same for an op that is too large to compute, and writes there.
void results_are_made_up(void* stream, const Operator& op, const Written& written);
// With --compute all: tells the user, once per op, why it is not computed.
void say_once(const Operator& op, const char* problem);
// Batch norm updates its running statistics when it trains, which its schema does not say.
bool writes_argument(const Operator& op, c10::ArrayRef<const c10::IValue> inputs, size_t index);
// For an op that launched its kernels and then failed, so that its outputs are not known: finds them among the blocks that
// the thread was given since it had `blocks_before`. Non-reentrant activation checkpointing stops a recomputation that way,
// with an exception out of its last op, and goes on to use what that op computed.
void apply_to_new_blocks(void* stream, Call& call, uint32_t blocks_before);
// Number of elements that nonzero, unique, ... will report; -1 if their inputs are not known.
int64_t count_of_elements(const Call& call);

}  // namespace maya
