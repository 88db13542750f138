// Keeps torch's CPU kernels on the calling thread. They take micro- to milliseconds, and OpenMP's threads would wait for each
// other far longer on a machine whose processors are shared by ranks. --compute all has large ones, which use all threads.
#pragma once

#include <dlfcn.h>

#include "../shim/device/internal.h"

namespace maya {

class OneThread {
 public:
  OneThread() {
    if (maya_get_settings()->compute == MAYA_COMPUTE_ALL || set() == nullptr || get() == nullptr) return;
    threads_ = get()();
    if (threads_ > 1) set()(1);
  }
  ~OneThread() {
    if (threads_ > 1) set()(threads_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  using Get = int (*)();
  using Set = void (*)(int);
  static Get get() {
    static const Get found = reinterpret_cast<Get>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
    return found;
  }
  static Set set() {
    static const Set found = reinterpret_cast<Set>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
    return found;
  }
  int threads_ = 0;  // of the calling thread before
};

}  // namespace maya
