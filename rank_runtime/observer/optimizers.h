// Steps of optimizers, told apart by what they update.
#pragma once

#include <cstdint>

namespace maya {

// torch.optim announces every step as an annotation "Optimizer.step#AdamW.step".
bool is_optimizer_step(const char* name);
// The optimizer whose step begins on the calling thread: 1, 2, ... in the order of their first steps. Optimizers of the same
// first parameter are one: a script may make a new one every epoch. 0: it could not be found.
uint32_t find_optimizer();
// Number of the text {"op": name, "optimizer": number}.
uint32_t optimizer_signature(const char* name, uint32_t optimizer);
// A step of the optimizer has ended. true if none has made as many: a script's iterations, if several optimizers take turns.
bool count_optimizer_step(uint32_t optimizer);

}  // namespace maya
