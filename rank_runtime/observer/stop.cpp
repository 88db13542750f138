// The program ends as if it had called sys.exit() in its main thread: finally blocks, context managers and atexit functions
// run, and queued collectives complete (shim/device/drain.c). A pending call raises SystemExit, because an exception cannot
// leave a RecordFunction callback.

#include "stop.h"

#include <atomic>

#include "../shim/device/device.h"
#include "python_api.h"

namespace maya {
namespace {

int raise_system_exit(void*) {
  const Python& python = Python::get();
  python.set_error(*python.system_exit);
  return -1;
}

}  // namespace

void stop_after(uint64_t steps) {
  static std::atomic<bool> stopping{false};
  const int64_t limit = maya_get_settings()->stop_after;
  const Python& python = Python::get();
  if (limit == 0 || steps < static_cast<uint64_t>(limit) || !python.usable() || stopping.exchange(true)) return;
  if (python.add_pending_call(raise_system_exit, nullptr) != 0) stopping = false;  // too many are pending: at the next step
}

}  // namespace maya
