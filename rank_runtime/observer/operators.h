// Properties of a torch operator, looked up once.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <array>
#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace maya {

struct Operator {
  std::string name;                           // "aten::add"
  std::string overload;                       // "Tensor"
  std::optional<c10::OperatorHandle> handle;  // nullopt: no operator (an autograd node, a user's annotation)
  std::vector<bool> writes;                   // per argument: the op writes it
  std::vector<bool> reads;                    // per argument: the results depend on its contents
  bool has_out = false, is_pointwise = false;
  mutable std::atomic<bool> changes_inside{false};  // ops inside it change an argument that it reads and writes
  std::vector<bool> is_out;                         // per argument: an `out` tensor, which the op writes and returns
  bool writes_any = false;
  // Where its tensor results are: all in arguments, all in a few newly allocated blocks, or anywhere.
  enum class Results : uint8_t { kArguments, kNewBlocks, kAnywhere } results = Results::kAnywhere;
  int first_statistic = -1, training_flag = -1;  // batch norm: positions of running_mean and of training
  int beta = -1;  // of addmm and the like: position of the first argument's factor; the argument is not read if it is 0
  bool may_launch = true;  // false: it launches nothing itself; at most it calls other ops
  enum class KernelFree : uint8_t { kNone, kCopy, kAddNumber } kernel_free = KernelFree::kNone;  // see kernel_free_ops.h
  // It has a fast form for large integer tensors; see integer_ops.h.
  enum class FastForm : uint8_t { kNone, kNonzero, kMaskedSelect, kSum, kSort } fast_form = FastForm::kNone;
  // It chooses the best of several alternatives by their scores; see choices.h.
  enum class Choice : uint8_t { kNone, kTop, kSort, kBest, kBestWithScore } choice = Choice::kNone;
  // It picks parts of its first argument, or puts others there (`puts`), by an index or a mask.
  enum class Indexing : uint8_t { kNone, kRows, kElements, kMask } indexing = Indexing::kNone;
  bool puts = false;
  bool replaces = false;        // what it puts there replaces what was there
  bool reports_errors = false;  // returns an "info" that the host checks; computed from placeholders, it would report an error
  bool takes_generator = false;
  bool draws_by_default = false;  // takes no generator, but draws random numbers: dropout
  bool is_gemm = false;           // a GEMM: aten::mm and the like
  bool joins = false;             // aten::cat
  bool is_collective = false;     // an op of torch.distributed's process groups
  bool fills = false;             // aten::fill_ with a number
  bool tallies = false;           // counts into bins (bincount, histc)
  // What becomes of an op with a large host tensor (host_tensors.cpp).
  enum class HostForm : uint8_t { kPass, kRandom, kFill, kCopy, kRead, kGeneral } host_form = HostForm::kPass;
  bool counts_elements = false;  // the size of its result depends on its inputs' values (nonzero, unique)
  bool compares = false;         // returns a bool that its kernels find out by reading back a tensor of their own (equal)

  bool has_cpu_kernel() const;
  // Whether the results depend on what an argument holds.
  bool reads_argument(c10::ArrayRef<const c10::IValue> values, size_t index) const;
};

// A thread's cache of operators, by the address of the schema's name.
using RecentOperators = std::array<std::pair<const char*, const Operator*>, 256>;

const Operator& operator_of(const c10::FunctionSchema& schema, RecentOperators& recent);
// The operator behind a RecordFunction, or nullptr if it is none.
const Operator* operator_of(const at::RecordFunction& function, RecentOperators& recent);

// Looks up all operators that are registered now, and visits each.
void describe_all_operators(const std::function<void(const Operator&)>& visit);

}  // namespace maya
