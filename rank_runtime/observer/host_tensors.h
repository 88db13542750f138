// Large host tensors, whose ops are skipped where their contents are placeholders.
#pragma once

namespace maya {

// Registers with torch's dispatcher; once per process, in the zygote if there is one.
void watch_host_tensors();

}  // namespace maya
