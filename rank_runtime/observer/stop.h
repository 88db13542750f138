// Ends the program after a number of optimizer steps (maya-torchrun --stop-after).
#pragma once

#include <cstdint>

namespace maya {

// Ends the program if `steps` are enough.
void stop_after(uint64_t steps);

}  // namespace maya
