// What an op will learn when it reads back what its own kernels have found: these do not run. The observer computes the answer
// beforehand.

#include <c10/util/Exception.h>

#include "cpu_call.h"
#include "integer_ops.h"

namespace maya {

int64_t count_of_elements(const Call& call, bool* guessed) {
  const ValuesHeld values_held;
  *guessed = !inputs_are_known(call);
  if (*guessed && call.gpu_bytes() >= kGuessBytes) return -1;
  if (!*guessed && inputs_are_assumed(call)) maya_record_assumed_read(sizeof(int64_t), call.choices);
  try {
    PlainDispatch plain;
    std::vector<c10::IValue> stack = stack_of(call);
    if (call.op->name == "aten::nonzero") return count_of_nonzeros(stack[0].toTensor());
    call.op->handle->callBoxed(stack);
    const int dimension = call.op->handle->schema().argumentIndexWithName("dim").value_or(-1);
    const bool along_one = dimension >= 0 && call.values[dimension].isInt();
    return stack[0].toTensor().size(along_one ? call.values[dimension].toInt() : 0);
  } catch (const std::exception&) {
    return -1;  // the op itself will report what is wrong with its arguments
  }
}

std::optional<Comparison> result_of_comparison(const Call& call) {
  const ValuesHeld values_held;
  const bool known = inputs_are_known(call);
  if (!known && call.gpu_bytes() >= kGuessBytes) return Comparison{true, true};  // as for `all`
  if (known && inputs_are_assumed(call)) maya_record_assumed_read(sizeof(bool), call.choices);
  try {
    PlainDispatch plain;
    std::vector<c10::IValue> stack = stack_of(call);
    call.op->handle->redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    return Comparison{stack[0].toBool(), !known};
  } catch (const std::exception&) {
    return std::nullopt;  // the op itself will report what is wrong with its arguments
  }
}

}  // namespace maya
