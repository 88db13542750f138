// One pass over an op's arguments.

#include "argument_scan.h"

#include <algorithm>

namespace maya {
namespace {

void scan_tensor(const at::Tensor& tensor, Scan& scan) {
  if (!tensor.defined()) {
    scan.fingerprint.add(1);
    return;
  }
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const bool on_gpu = impl->device_type() == c10::DeviceType::CUDA;
  const bool strided =
      impl->layout() == c10::Layout::Strided && impl->unsafe_storage() && !tensor.is_nested() && !is_symbolic(tensor);
  scan.touches_gpu = scan.touches_gpu || on_gpu;
  scan.all_strided = scan.all_strided && strided;
  const c10::ScalarType type = c10::typeMetaToScalarType(impl->dtype());
  const auto dtype = static_cast<uint64_t>(type);
  if (on_gpu) scan.all_integers = scan.all_integers && c10::isIntegralType(type, /*includeBool=*/true);
  scan.fingerprint.add(2 | dtype << 8 | static_cast<uint64_t>(on_gpu) << 16 | static_cast<uint64_t>(strided) << 17 |
                       static_cast<uint64_t>(impl->dim()) << 24);
  if (!strided) return;
  int64_t elements = 1;
  const auto sizes = impl->sizes(), strides = impl->strides();
  for (size_t i = 0; i < sizes.size(); i++) {
    scan.fingerprint.add(static_cast<uint64_t>(sizes[i]) * 0x9FB21C651E98DF25ull + static_cast<uint64_t>(strides[i]));
    elements *= sizes[i];
  }
  if (on_gpu) scan.gpu_bytes += elements * static_cast<int64_t>(impl->itemsize());
}

void scan_value(const c10::IValue& value, Scan& scan) {
  if (value.isTensor()) {
    scan_tensor(value.toTensor(), scan);
  } else if (value.isInt()) {
    scan.fingerprint.add(3 | static_cast<uint64_t>(value.toInt()) << 8);
  } else if (value.isBool()) {
    scan.fingerprint.add(4 | static_cast<uint64_t>(value.toBool()) << 8);
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    const auto elements = value.toListRef();
    scan.fingerprint.add(5 | elements.size() << 8);
    for (const c10::IValue& element : elements) {
      if (element.isTensor()) scan_tensor(element.toTensor(), scan);
      else scan.fingerprint.add(1);
    }
  } else if (value.isIntList()) {
    const auto elements = value.toListRef();
    scan.fingerprint.add(6 | elements.size() << 8);
    for (const c10::IValue& element : elements) scan.fingerprint.add(static_cast<uint64_t>(element.toInt()));
  } else if (value.isString()) {
    for (char c : value.toStringView()) scan.fingerprint.add(7 | static_cast<uint64_t>(c) << 8);
  } else {
    scan.fingerprint.add(value.isNone() ? 8 : value.isDouble() ? 9 : 10);
  }
}

}  // namespace

Scan scan_arguments(const Operator& op, c10::ArrayRef<const c10::IValue> inputs) {
  Scan scan;
  scan.fingerprint.add(reinterpret_cast<uintptr_t>(&op));
  for (const c10::IValue& value : inputs) scan_value(value, scan);
  return scan;
}

void Written::clear() {
  ranges.clear();
  views.clear();
  tally = {};
}

bool Written::overlaps(const void* address, size_t size) const {
  const auto* first = static_cast<const char*>(address);
  const auto meets = [&](const void* start, size_t bytes) {
    const auto* other = static_cast<const char*>(start);
    return first < other + bytes && other < first + size;
  };
  return std::any_of(ranges.begin(), ranges.end(), [&](const maya_range& each) { return meets(each.address, each.size); }) ||
         std::any_of(views.begin(), views.end(), [&](const TensorView& each) { return meets(each.data, each.bytes); });
}

void Written::add(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (impl->device_type() != c10::DeviceType::CUDA || impl->layout() != c10::Layout::Strided || !impl->has_storage() ||
      tensor.is_nested() || is_symbolic(tensor)) {
    return;
  }
  if (!tensor.is_non_overlapping_and_dense()) {
    views.push_back(view_of(tensor));
    return;
  }
  const auto* base = static_cast<const char*>(impl->unsafe_storage().unsafeGetStorageImpl()->data());
  if (base == nullptr) return;
  ranges.push_back({base + impl->storage_offset() * static_cast<int64_t>(impl->itemsize()),
                    static_cast<size_t>(impl->numel()) * impl->itemsize()});
}

void Written::add(const c10::IValue& value) {
  if (value.isTensor()) {
    add(value.toTensor());
  } else if (value.isTensorList()) {
    for (const c10::IValue& element : value.toListRef()) add(element.toTensor());
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) add(element);
  }
}

}  // namespace maya
