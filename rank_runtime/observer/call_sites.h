// The lines of the user's Python code that call collectives, for reports of hangs.
#pragma once

namespace maya {

// Notes, for the calling thread, where Python calls the collective that begins now. Call without locks: it takes the GIL.
void collective_begins();
// The collective has made its NCCL calls.
void collective_ends();

}  // namespace maya
