// CPU equivalents of ops that count: histc of integers, which torch has for CUDA only.

#include <ATen/ops/histc.h>

#include "cpu_equivalents.h"

namespace maya {
namespace {

Results histc(const Arguments& arguments) {
  const at::Tensor counted = arguments.tensor("self");
  const bool integers = c10::isIntegralType(counted.scalar_type(), /*includeBool=*/true);
  const at::Tensor counts = at::histc(integers ? counted.to(at::kDouble) : counted, arguments.integer("bins", 100),
                                      arguments.number("min"), arguments.number("max"));
  return {counts.to(counted.scalar_type())};
}

}  // namespace

CpuEquivalent count_equivalent(const std::string& name) { return name == "aten::histc" ? histc : nullptr; }

}  // namespace maya
