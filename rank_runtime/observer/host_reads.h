// Reads of host tensors that torch does not dispatch.
#pragma once

namespace maya {

// Replaces methods of torch.Tensor; once per process, after torch is imported.
void watch_host_reads();

}  // namespace maya
