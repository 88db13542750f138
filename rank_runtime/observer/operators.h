// What is worth knowing about an operator, looked up once and kept.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace maya {

struct Operator {
  std::string name;                           // "aten::add"
  std::string overload;                       // "Tensor"
  std::optional<c10::OperatorHandle> handle;  // nullopt: not an operator (an autograd node, a user's annotation)
  std::vector<bool> writes;                   // per argument: the op writes to it ...
  std::vector<bool> reads;                    // ... and what it held before matters
  std::vector<bool> is_out;                   // per argument: it is returned, as the result that is written to it
  bool writes_any = false;
  // Where its results, if they are no numbers, are: all of them arguments; memory that it takes for them, a few blocks at
  // most; or anywhere.
  enum class Results : uint8_t { kArguments, kNewBlocks, kAnywhere } results = Results::kAnywhere;
  int first_statistic = -1, training_flag = -1;  // batch norm: positions of running_mean and of training
  int beta = -1;           // of addmm and the like: position of the factor of the first argument, which is not read if it is 0
  bool may_launch = true;  // false: whatever it does on a device, other ops do for it
  enum class Shortcut : uint8_t { kNone, kCopy, kAddNumber } shortcut = Shortcut::kNone;  // see direct.h
  bool reports_errors = false;  // returns an "info" that the host checks: computed from made-up zeros, it would be alarming
  bool takes_generator = false;
  bool draws_by_default = false;  // takes no generator, but draws random numbers: dropout
  bool is_product = false;        // aten::mm and the like
  bool joins = false;             // aten::cat
  bool tallies = false;           // counts into bins (bincount, histc)
  bool counts_elements = false;   // its result has as many elements as its inputs' values say (nonzero, unique)

  bool has_cpu_kernel() const;
  // Whether the results depend on what an argument holds.
  bool reads_argument(c10::ArrayRef<const c10::IValue> values, size_t index) const;
};

// Most calls on a thread repeat a few operators.
using RecentOperators = std::array<std::pair<const char*, const Operator*>, 256>;

const Operator& operator_of(const c10::FunctionSchema& schema, RecentOperators& recent);
// The operator behind a RecordFunction, or nullptr if it is none.
const Operator* operator_of(const at::RecordFunction& function, RecentOperators& recent);

// Looks up all operators that torch has now.
void describe_all_operators(const std::function<void(const Operator&)>& visit);

}  // namespace maya
