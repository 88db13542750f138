// Optimizer steps. Optimizers are told apart by their first parameter.
#pragma once

#include <cstdint>

namespace maya {

// Whether an annotation is torch.optim's for a step, "Optimizer.step#AdamW.step".
bool is_optimizer_step(const char* name);
// The number of the optimizer whose step begins on the calling thread: 1, 2, ... in the order of their first steps; 0: it could
// not be found. Optimizers with the same first parameter have one number, because a script may make a new one every epoch.
uint32_t find_optimizer();
// The interned number of the text {"op": name, "optimizer": number}.
uint32_t optimizer_signature(const char* name, uint32_t optimizer);
// Counts a step of the optimizer. true if no other optimizer has made as many, which counts iterations of a script whose
// optimizers take turns. If there is only one optimizer, ends the trace after the steps of --record-steps, and the program
// after those of --stop-after.
bool count_optimizer_step(uint32_t optimizer);
// Ends the trace or the program if several optimizers take turns and this one begins a step more than --record-steps or
// --stop-after allows: the others have made theirs.
void optimizer_step_begins(uint32_t optimizer);

}  // namespace maya
