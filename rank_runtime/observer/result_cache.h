// A cache of the results of small ops.
//
// A training step computes the same few small ops each time: token positions, scale factors, norms of placeholder gradients.
// Calling a CPU kernel takes some ten microseconds, mostly because its code and data have left the CPU caches; comparing the
// inputs with those of an earlier call takes a fraction of one.
#pragma once

#include "compute.h"

namespace maya {

// An op call together with everything that its results depend on. Construct it before the op is computed, because the op may
// overwrite its inputs.
class CachedCall {
 public:
  explicit CachedCall(const Call& call);

  // Writes the cached results to the call's outputs; false if the cache has none.
  bool load() const;
  // Stores the call's results, which have been computed by now.
  void store() const;

 private:
  const Call& call_;
  bool possible_ = false;
  Fingerprint key_;
  std::vector<char> inputs_;
};

}  // namespace maya
