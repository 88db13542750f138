// Ops that launched their kernels and then threw, so that torch has no outputs of them.

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "cpu_call.h"

namespace maya {
namespace {

// A block that PyTorch's caching allocator returned.
struct Block {
  void* address;
  size_t size;
};

void apply_to_blocks(const Call& call, const std::vector<Block>& blocks) {
  const ValuesHeld values_held;
  if (!inputs_are_known(call)) return;
  std::vector<at::Tensor> results;
  try {
    PlainDispatch plain;
    results = results_of(call);
  } catch (const std::exception& error) {
    report_once(*call.op, error.what());
    return;
  }
  // Blocks are matched to results of their size, in order; dropout allocates its second result, the mask, first.
  if (call.op->name == "aten::native_dropout") std::reverse(results.begin(), results.end());
  uint32_t taken = 0;  // a bit for every block
  for (const at::Tensor& result : results) {
    if (!result.defined() || result.nbytes() == 0 || !result.is_non_overlapping_and_dense()) continue;
    for (size_t i = 0; i < blocks.size(); i++) {
      const Block& block = blocks[i];
      const size_t rounded = (result.nbytes() + 511) / 512 * 512;  // as the allocator rounds
      if (taken >> i & 1 || block.size != rounded) continue;
      taken |= 1u << i;
      memcpy(block.address, result.const_data_ptr(), result.nbytes());
      maya_values_known(block.address, result.nbytes());
      break;
    }
  }
}

struct Abandoned {
  Call call;
  std::vector<Block> blocks;
};

void run_abandoned(void* argument) {
  const auto* job = static_cast<Abandoned*>(argument);
  apply_to_blocks(job->call, job->blocks);
}

void release_abandoned(void* argument) { delete static_cast<Abandoned*>(argument); }

}  // namespace

void apply_to_new_blocks(void* stream, Call& call, uint32_t blocks_before) {
  const maya_thread* thread = maya_this_thread();
  const uint32_t count = thread->blocks - blocks_before;
  if (count == 0 || count > MAYA_RECENT_BLOCKS) return;
  std::vector<Block> blocks;
  for (uint32_t i = 0; i < count; i++) {
    const auto& block = thread->recent_blocks[(blocks_before + i) % MAYA_RECENT_BLOCKS];
    blocks.push_back({block.address, block.size});
  }
  if (!maya_commands_are_queued()) apply_to_blocks(call, blocks);
  else submit(stream, run_abandoned, release_abandoned, new Abandoned{std::move(call), std::move(blocks)});
}

}  // namespace maya
