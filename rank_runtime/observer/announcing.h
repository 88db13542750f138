// What announcing costs.
#pragma once

#include <cstdint>

namespace maya {

// How many nanoseconds longer torch takes for an op because it tells us of it, without what we do then.
uint64_t cost_of_announcing();

}  // namespace maya
