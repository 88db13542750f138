// What small ops came to.

#include "remembered.h"

#include <array>
#include <cstring>
#include <mutex>

namespace maya {
namespace {

constexpr size_t kMostBytes = 80 << 10;  // read and written by one call
constexpr size_t kMostBytesInAll = 512 << 10;
constexpr size_t kSlots = 64;

struct Entry {
  Fingerprint key;
  std::vector<char> inputs, results;

  size_t bytes() const { return inputs.size() + results.size(); }
};

// Each slot has the last two entries that belong there.
struct Table {
  std::mutex lock;
  std::array<std::array<Entry, 2>, kSlots> slots;
  size_t bytes = 0;
};

Table& table() {
  static Table remembered;
  return remembered;
}

void append(std::vector<char>& bytes, const void* data, size_t size) {
  const auto* first = static_cast<const char*>(data);
  bytes.insert(bytes.end(), first, first + size);
}

// Calls visit(view) for everything that the op writes; false if one of them is not plain memory. Many ops return what they
// wrote to.
template <typename Visit>
bool for_each_written(const Call& call, const Visit& visit) {
  const void* last = nullptr;
  const auto plain = [&](const TensorView& view) {
    if (!view.on_gpu()) return view.dtype == c10::ScalarType::Undefined;
    if (!view.dense || (view.data == nullptr && view.bytes != 0)) return false;
    if (view.bytes != 0 && view.data != last) visit(view);
    last = view.data;
    return true;
  };
  for (size_t i = 0; i < call.arguments.size(); i++) {
    if (!call.writes[i]) continue;
    for (const TensorView& view : call.arguments[i].tensors) {
      if (!plain(view)) return false;
    }
  }
  for (const TensorView& output : call.outputs) {
    if (!plain(output)) return false;
  }
  return true;
}

}  // namespace

// The fingerprint has shapes, types and whole numbers; what is not in it is put behind it.
Remembered::Remembered(const Call& call) : call_(call), key_(call.fingerprint) {
  if (call.op->takes_generator || call.op->draws_by_default) return;
  size_t written = 0;
  const bool plain = for_each_written(call, [&](const TensorView& view) {
    key_.add(static_cast<uint64_t>(view.dtype) << 48 ^ view.bytes);
    written += view.bytes;
  });
  if (!plain || written > kMostBytes) return;
  for (size_t i = 0; i < call.arguments.size(); i++) {
    const Argument& argument = call.arguments[i];
    if (argument.kind == Argument::Kind::kFloat) {
      const double number = call.values[i].toDouble();
      append(inputs_, &number, sizeof number);
    } else if (argument.kind == Argument::Kind::kOther && !call.values[i].isDevice()) {
      return;
    }
    for (const TensorView& view : argument.tensors) {
      if (view.bytes == 0 || !call.reads_argument(i)) continue;
      if (!view.dense || view.conjugate || view.negative || inputs_.size() + view.bytes + written > kMostBytes) return;
      append(inputs_, view.data, view.bytes);
    }
  }
  possible_ = true;
}

bool Remembered::apply() const {
  if (!possible_) return false;
  std::lock_guard<std::mutex> guard(table().lock);
  for (const Entry& entry : table().slots[key_.first % kSlots]) {
    if (!(entry.key == key_) || entry.inputs != inputs_) continue;
    const char* from = entry.results.data();
    for_each_written(call_, [&](const TensorView& view) {
      std::memcpy(view.data, from, view.bytes);
      from += view.bytes;
    });
    return true;
  }
  return false;
}

void Remembered::keep() const {
  if (!possible_) return;
  std::lock_guard<std::mutex> guard(table().lock);
  Table& all = table();
  auto& [newer, older] = all.slots[key_.first % kSlots];
  if (!(newer.key == key_)) std::swap(newer, older);  // one that reads something else each time takes one place, not two
  all.bytes -= newer.bytes();
  newer = {key_, inputs_, {}};
  for_each_written(call_, [&](const TensorView& view) { append(newer.results, view.data, view.bytes); });
  all.bytes += newer.bytes();
  if (all.bytes <= kMostBytesInAll) return;
  all.slots = {};
  all.bytes = 0;
}

}  // namespace maya
