// What small ops came to, to be used again.
//
// A training step computes the same few small things each time: positions of tokens, factors, norms of gradients that nobody
// computed. Calling a CPU kernel for one takes some ten microseconds, most of them for code and data that are in no cache by
// then; comparing what it reads with what it read before takes a fraction of one.
#pragma once

#include "compute.h"

namespace maya {

// An op call and all that its results depend on. Made before the op is computed, which may overwrite what it reads.
class Remembered {
 public:
  explicit Remembered(const Call& call);

  // Puts the results where they belong, if the call was computed before; false if not.
  bool apply() const;
  // The results are there now: for the next time.
  void keep() const;

 private:
  const Call& call_;
  bool possible_ = false;
  Fingerprint key_;
  std::vector<char> inputs_;
};

}  // namespace maya
