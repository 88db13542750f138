// Memory of host tensors whose placeholders are tracked (shim/device/host_values.c).
#pragma once

namespace maya {

// Takes the place of torch's CPU allocator, for large blocks.
void replace_cpu_allocator();

// While it exists, the blocks that the thread allocates are tracked whatever their size.
class TracksAllSizes {
 public:
  TracksAllSizes();
  ~TracksAllSizes();
  TracksAllSizes(const TracksAllSizes&) = delete;
  TracksAllSizes& operator=(const TracksAllSizes&) = delete;
};

}  // namespace maya
