// Random numbers for ops that the observer computes: states of CPU generators, by the CUDA generator's seed and offset.

#include "random.h"

#include <ATen/CPUGeneratorImpl.h>

#include <map>
#include <mutex>

namespace maya {
namespace {

struct Sequence {
  at::Generator generator;
  std::map<uint64_t, at::Generator> at_offset;  // saved states
};

constexpr size_t kStatesKept = 512;  // 2.5 KB each

}  // namespace

at::Generator cpu_generator(uint64_t seed, uint64_t offset) {
  static std::mutex lock;
  static auto& sequences = *new std::map<uint64_t, Sequence>;  // never destroyed, as in result_cache.cpp
  std::lock_guard<std::mutex> guard(lock);
  Sequence& sequence = sequences[seed];
  auto seen = sequence.at_offset.find(offset);
  if (offset == 0) {
    sequence.generator = at::detail::createCPUGenerator(seed);
    sequence.at_offset.clear();
  } else if (seen != sequence.at_offset.end()) {
    sequence.generator = seen->second.clone();
  } else if (!sequence.generator.defined()) {
    // The first draw is not at offset 0: any state that depends only on seed and offset will do.
    sequence.generator = at::detail::createCPUGenerator(seed ^ offset * 0x9E3779B97F4A7C15ull);
  }
  sequence.at_offset[offset] = sequence.generator.clone();
  if (sequence.at_offset.size() > kStatesKept) sequence.at_offset.erase(sequence.at_offset.begin());
  return sequence.generator;
}

bool is_generator_argument(const Operator& op, size_t index) {
  const auto& arguments = op.handle->schema().arguments();
  if (index >= arguments.size()) return false;
  const auto type = arguments[index].type();
  if (type->kind() == c10::TypeKind::GeneratorType) return true;
  return type->kind() == c10::TypeKind::OptionalType &&
         type->expectRef<c10::OptionalType>().getElementType()->kind() == c10::TypeKind::GeneratorType;
}

}  // namespace maya
