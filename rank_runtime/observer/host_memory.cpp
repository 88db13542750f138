// Host tensors -> ranges of tracked memory.

#include "host_memory.h"

#include <cstring>

#include "../shim/device/host_values.h"
#include "../shim/device/internal.h"

namespace maya {
namespace {

// Calls visit(address, bytes) for every contiguous part, unless there are too many. The innermost contiguous dimensions form
// one part.
template <typename Visit>
bool for_each_part(const at::Tensor& tensor, const HostMemory& memory, const Visit& visit) {
  constexpr size_t kMostParts = 1 << 16;
  if (memory.empty()) return true;
  if (memory.dense) {
    visit(memory.start, memory.bytes);
    return true;
  }
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  const size_t item = tensor.itemsize();
  size_t part = item, outer = sizes.size();
  while (outer > 0 && (sizes[outer - 1] == 1 || static_cast<size_t>(strides[outer - 1]) * item == part)) {
    part *= static_cast<size_t>(sizes[outer - 1]);
    outer--;
  }
  if (memory.bytes / part > kMostParts) return false;
  std::vector<int64_t> index(outer, 0);
  for (;;) {
    int64_t offset = 0;
    for (size_t d = 0; d < outer; d++) offset += index[d] * strides[d];
    visit(memory.start + offset * static_cast<int64_t>(item), part);
    size_t d = outer;
    while (d > 0 && ++index[d - 1] == sizes[d - 1]) index[--d] = 0;
    if (d == 0) return true;
  }
}

}  // namespace

bool is_on_host(const at::Tensor& tensor) {
  if (!tensor.defined()) return false;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return impl->device_type() == c10::DeviceType::CPU && impl->layout() == c10::Layout::Strided && !tensor.is_nested() &&
         impl->has_storage();
}

HostMemory memory_of(const at::Tensor& tensor) { return memory_of(*tensor.unsafeGetTensorImpl()); }

HostMemory memory_of(const c10::TensorImpl& tensor) {
  HostMemory memory;
  const c10::TensorImpl* impl = &tensor;
  // data_ptr() would materialise copy-on-write storage.
  auto* base = const_cast<char*>(static_cast<const char*>(impl->unsafe_storage().unsafeGetStorageImpl()->data()));
  if (base == nullptr || impl->numel() == 0) return memory;
  memory.start = base + impl->storage_offset() * static_cast<int64_t>(impl->itemsize());
  memory.bytes = static_cast<size_t>(impl->numel()) * impl->itemsize();
  memory.dense = impl->is_non_overlapping_and_dense();
  memory.span = memory.bytes;
  if (memory.dense) return memory;
  int64_t last = 0;
  for (int64_t d = 0; d < impl->dim(); d++) last += (impl->sizes()[d] - 1) * impl->strides()[d];
  memory.span = static_cast<size_t>(last + 1) * impl->itemsize();
  return memory;
}

bool HostMemory::is_tracked() const { return !empty() && maya_host_is_tracked(start, span); }

bool HostMemory::has_placeholder() const { return !empty() && maya_host_has_placeholder(start, span); }

bool HostMemory::is_zero_and_large() const {
  return !empty() && dense && maya_host_is_large(bytes) && maya_host_holds_zeros(start, bytes);
}

bool HostMemory::is_untouched_and_large() const {
  return !empty() && static_cast<int64_t>(bytes) > maya_get_settings()->copy_bytes && is_tracked() &&
         maya_host_is_zero(start, span);
}

bool set_placeholder(const at::Tensor& tensor) {
  const HostMemory memory = memory_of(tensor);
  if (memory.empty()) return true;
  if (!memory.is_tracked()) return false;
  if (!memory.dense && maya_host_is_zero(memory.start, memory.span)) {
    maya_host_set_placeholder(memory.start, memory.span);  // the gaps are zeros as well
    return true;
  }
  return for_each_part(tensor, memory, maya_host_set_placeholder);
}

void set_zero(const HostMemory& memory) { maya_host_set_zero(memory.start, memory.bytes); }

void set_known(const at::Tensor& tensor) {
  const HostMemory memory = memory_of(tensor);
  if (!memory.is_tracked()) return;
  if (!for_each_part(tensor, memory, maya_host_set_known)) maya_host_set_known(memory.start, memory.span);
}

void mark_computed_placeholder(const at::Tensor& tensor) {
  const HostMemory memory = memory_of(tensor);
  if (memory.is_tracked()) for_each_part(tensor, memory, maya_host_mark_placeholder);
}

}  // namespace maya
