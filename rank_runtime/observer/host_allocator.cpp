// torch's CPU allocator, except for blocks that may hold placeholders: those are mapped, so that pages that nobody touches take
// no memory, and tracked.

#include "host_allocator.h"

#include <c10/core/CPUAllocator.h>

#include "../shim/device/host_values.h"

namespace maya {
namespace {

thread_local int all_sizes = 0;  // depth of TracksAllSizes
c10::Allocator* torchs_own = nullptr;

void free_block(void* address) {
  if (address == nullptr) return;
  if (!maya_host_block_unmap(address)) {  // raw_deallocate() of a block of torch's own allocator
    torchs_own->raw_deallocate(address);
    return;
  }
  c10::profiledCPUMemoryReporter().Delete(address);
}

struct HostAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const bool is_tracked = bytes > 0 && (all_sizes > 0 || maya_host_makes_placeholders(bytes));
    void* block = is_tracked ? maya_host_block_map(bytes) : nullptr;
    if (block == nullptr) return torchs_own->allocate(bytes);
    c10::profiledCPUMemoryReporter().New(block, bytes);
    return {block, block, &free_block, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }

  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

}  // namespace

void replace_cpu_allocator() {
  constexpr uint8_t kPriority = 10;  // above torch's own
  torchs_own = c10::GetDefaultCPUAllocator();
  auto* allocator = new HostAllocator;
  c10::SetCPUAllocator(allocator, kPriority);
  maya_set_default_allocator(static_cast<c10::Allocator*>(allocator));
}

TracksAllSizes::TracksAllSizes() { all_sizes++; }

TracksAllSizes::~TracksAllSizes() { all_sizes--; }

}  // namespace maya
