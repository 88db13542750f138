// Computes an op with torch's CPU kernels, on CPU tensors over the same memory, in stream order.
#pragma once

#include <ATen/core/ivalue.h>

#include <map>
#include <optional>
#include <vector>

#include "operators.h"
#include "argument_scan.h"
#include "signature.h"

namespace maya {

// An op call, kept until its turn in the stream comes (and, inside a CUDA graph, for every launch of the graph).
struct Call {
  const Operator* op = nullptr;
  Fingerprint fingerprint;          // of the arguments
  std::vector<Argument> arguments;  // tensors, as views
  std::vector<c10::IValue> values;  // host tensors and everything that is no tensor, by position; None for GPU tensors
  std::vector<TensorView> outputs;
  std::vector<bool> writes;                // per argument
  std::map<size_t, at::Tensor> originals;  // what known arguments held before the op, if ops inside it may overwrite them
  Tally tally;
  bool any_size = false;                        // it may be computed although it is not small: see limit_of_computing
  int place = -1;                               // of a call that may choose by rule (choices.h): where it is; -1: another call
  uint32_t choices = 0;                         // the marks of choices that its arguments follow from (shim/device/routing.h)
  uint64_t random_seed = 0, random_offset = 0;  // of the CUDA generator before the op drew from it

  size_t gpu_bytes() const;
  // Whether the results depend on the argument's contents.
  bool reads_argument(size_t index) const;
};

constexpr size_t kGuessBytes = 1024;  // an op is tiny when its tensors together are smaller

// Once the program has chosen by rule (choices.h), ops are computed at any size as far as MAYA_KEPT_BYTES has room for the
// results: those on integers without a limit, and those on floating-point numbers up to this size of all tensors if their
// results are integers or follow from a choice.
constexpr int64_t kMostAssumedBytes = 64 << 20;

// Ops on large integers that the program has brought from the host (identifiers, lengths) decide sizes as well, so they are
// computed up to this size of all tensors, if their results are at most kMostGrowth times as large as their arguments:
// masks of attention grow more, and decide nothing.
constexpr int64_t kMostIntegerBytes = 64 << 20, kMostGrowth = 8;
constexpr int64_t kMostOfAnyOrigin = 256 << 10;  // of all arguments; up to here it costs little wherever they come from

// The largest size, in bytes of all tensors, at which the op is computed although it is not small; 0: it is not.
int64_t limit_of_computing(const Operator& op, c10::ArrayRef<const c10::IValue> inputs, const Scan& scan);
// true if it is certain before the op runs that its results are placeholders, because it reads placeholders. Most small ops of
// a training step do: they read gradients, which are not computed. `gpu_bytes`: total size of its arguments.
bool is_certainly_placeholder(const Operator& op, c10::ArrayRef<const c10::IValue> inputs, int64_t gpu_bytes);
// Computes the op's results in `stream`'s order, or marks them as placeholders. Moves from `call` only if the work is queued.
void apply_in_stream(void* stream, Call& call);
// An op that overwrites an argument may be composed of ops that do so before it ends, and is computed when it ends. Keeps what
// small known arguments hold. Call it when the stream has come to the op.
void keep_originals(Call& call);
bool overwrites_input(const Call& call);
Tally tally_of(const Operator& op, c10::ArrayRef<const c10::IValue> inputs);
// Marks the memory that an op writes as placeholders, in `stream`'s order, for an op that is too large to compute.
void mark_results_as_placeholders(void* stream, const Operator& op, const Written& written);
// With --compute all or MAYA_DEBUG: tells the user, once per op, why it is not computed.
void report_once(const Operator& op, const char* problem);
// Whether the op writes the argument. Batch norm in training updates its running statistics, which its schema does not say.
bool writes_argument(const Operator& op, c10::ArrayRef<const c10::IValue> inputs, size_t index);
// For an op that launched its kernels and then threw, so that torch has no outputs: writes the results to the blocks that the
// thread was given since it had `blocks_before`. Non-reentrant activation checkpointing stops a recomputation with an exception
// out of its last op, and then uses that op's result.
void apply_to_new_blocks(void* stream, Call& call, uint32_t blocks_before);
// The number of elements that nonzero, unique, ... will return; -1 if it is not known. `guessed`: it is the number for tiny
// placeholders, whose bytes are consistent.
int64_t count_of_elements(const Call& call, bool* guessed);
// What an op that compares will return, and whether that says nothing about a real run, because it reads placeholders.
struct Comparison {
  bool result = true, is_guess = false;
};
std::optional<Comparison> result_of_comparison(const Call& call);

}  // namespace maya
