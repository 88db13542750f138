// The overhead of RecordFunction callbacks.
#pragma once

#include <cstdint>

namespace maya {

// How many nanoseconds longer torch takes for an op because the observer is registered, without the observer's own time.
uint64_t cost_of_callback();

}  // namespace maya
