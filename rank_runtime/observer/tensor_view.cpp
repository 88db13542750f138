// Views of tensors, and which of their bytes are known.

#include "tensor_view.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

#include <vector>

#include "../shim/device/internal.h"

namespace maya {

TensorView view_of(const at::Tensor& tensor) {
  TensorView view;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  view.device = impl->device_type() == c10::DeviceType::CUDA ? impl->device() : c10::Device(c10::DeviceType::CPU);
  view.dtype = c10::typeMetaToScalarType(impl->dtype());
  if (is_symbolic(tensor)) return view;
  view.strided = impl->layout() == c10::Layout::Strided && impl->has_storage() && !tensor.is_nested();
  if (!view.strided) {
    if (!tensor.is_nested()) view.sizes.assign(impl->sizes().begin(), impl->sizes().end());
    return view;
  }
  view.sizes.assign(impl->sizes().begin(), impl->sizes().end());
  view.strides.assign(impl->strides().begin(), impl->strides().end());
  // data_ptr() would materialise copy-on-write storage.
  const auto& storage = impl->unsafe_storage();
  auto* base = const_cast<char*>(static_cast<const char*>(storage.unsafeGetStorageImpl()->data()));
  view.bytes = static_cast<size_t>(impl->numel()) * impl->itemsize();
  view.data = base == nullptr ? nullptr : base + impl->storage_offset() * impl->itemsize();
  view.wrapped = impl->is_wrapped_number();
  view.conjugate = tensor.is_conj();
  view.negative = tensor.is_neg();
  view.dense = tensor.is_non_overlapping_and_dense();
  return view;
}

at::Tensor cpu_alias(const TensorView& view) {
  auto options = at::TensorOptions().dtype(view.dtype).device(c10::DeviceType::CPU);
  if (view.data == nullptr) return at::empty_strided(view.sizes, view.strides, options);
  at::Tensor alias = at::for_blob(view.data, view.sizes).strides(view.strides).options(options).make_tensor();
  if (view.wrapped) alias.unsafeGetTensorImpl()->set_wrapped_number(true);
  if (view.conjugate) alias._set_conj(true);
  if (view.negative) alias._set_neg(true);
  return alias;
}

namespace {

// Calls visit(address, bytes) for each contiguous stretch of memory that the tensor's elements occupy.
template <typename Visit>
void for_each_stretch(const TensorView& view, const Visit& visit) {
  if (view.bytes == 0 || view.data == nullptr) return;
  if (view.dense) {
    visit(view.data, view.bytes);
    return;
  }
  const size_t item = c10::elementSize(view.dtype);
  // The innermost contiguous dimensions form one stretch.
  size_t stretch = item;
  size_t outer = view.sizes.size();
  while (outer > 0 && (view.sizes[outer - 1] == 1 || static_cast<size_t>(view.strides[outer - 1]) * item == stretch)) {
    stretch *= static_cast<size_t>(view.sizes[outer - 1]);
    outer--;
  }
  std::vector<int64_t> index(outer, 0);
  for (;;) {
    int64_t offset = 0;
    for (size_t d = 0; d < outer; d++) offset += index[d] * view.strides[d];
    visit(static_cast<char*>(view.data) + offset * static_cast<int64_t>(item), stretch);
    size_t d = outer;
    while (d > 0 && ++index[d - 1] == view.sizes[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

}  // namespace

bool is_known(const TensorView& view) {
  if (!view.on_gpu()) return true;
  bool known = true;
  for_each_stretch(view, [&](void* address, size_t bytes) { known = known && maya_values_are_known(address, bytes); });
  return known;
}

namespace {

// nullptr: the tensor has no memory on the GPU.
const char* first_element(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!tensor.defined() || impl->device_type() != c10::DeviceType::CUDA || !impl->has_storage() || is_symbolic(tensor) ||
      impl->numel() == 0) {
    return nullptr;
  }
  const auto* base = static_cast<const char*>(impl->unsafe_storage().unsafeGetStorageImpl()->data());
  return base == nullptr ? nullptr : base + impl->storage_offset() * static_cast<int64_t>(impl->itemsize());
}

}  // namespace

bool starts_with_placeholder(const at::Tensor& tensor) {
  const char* first = first_element(tensor);
  return first != nullptr && !maya_values_are_known(first, tensor.unsafeGetTensorImpl()->itemsize());
}

bool starts_with_large_integers(const at::Tensor& tensor) {
  const char* first = first_element(tensor);
  return first != nullptr && maya_values_are_large_integers(first);
}

bool is_assumed(const TensorView& view) {
  if (!view.on_gpu()) return false;
  bool assumed = false;
  for_each_stretch(view, [&](void* address, size_t bytes) { assumed = assumed || maya_values_are_assumed(address, bytes); });
  return assumed;
}

bool has_integers(const TensorView& view) { return c10::isIntegralType(view.dtype, /*includeBool=*/true); }

void mark_known(const TensorView& view) {
  if (static_cast<int64_t>(view.bytes) >
      maya_get_settings()->small_bytes) {  // at such a size only pickled objects are computed (concatenated)
    for_each_stretch(view, [](void* address, size_t bytes) { maya_values_joined(address, bytes); });
    return;
  }
  for_each_stretch(view, [](void* address, size_t bytes) { maya_values_known(address, bytes); });
}

void mark_computed(const TensorView& view, bool assumed) {
  const maya_content content = has_integers(view) ? MAYA_CONTENT_OTHER : MAYA_CONTENT_FLOATING;
  for_each_stretch(view, [&](void* address, size_t bytes) {
    maya_values_computed(address, bytes, content);
    if (assumed) maya_values_assumed(address, bytes);
  });
}

void mark_guessed(const TensorView& view) {
  for_each_stretch(view, [](void* address, size_t bytes) { maya_values_guessed(address, bytes); });
}

void mark_placeholder(const TensorView& view) {
  constexpr size_t kTooManyStretches = 1 << 20;
  if (!view.dense && view.bytes > kTooManyStretches) {
    // For a large strided view, everything between its first and last element counts as overwritten.
    int64_t last = 0;
    for (size_t d = 0; d < view.sizes.size(); d++) last += (view.sizes[d] - 1) * view.strides[d];
    const size_t item = c10::elementSize(view.dtype);
    maya_values_set_placeholder(view.data, (static_cast<size_t>(last) + 1) * item);
    return;
  }
  for_each_stretch(view, [](void* address, size_t bytes) { maya_values_set_placeholder(address, bytes); });
}

}  // namespace maya
