// Inputs that hold NaN or infinity, and the results that the contract leaves open because of them: those of the same
// sequence and value head, from the 64-token chunk of such an input on. Drawn inputs have none.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "check/tensors.h"

namespace deltarelay::check {

struct Spoiled {
  struct Input {
    std::string tensor;
    int64_t nans = 0;
    int64_t infinities = 0;  // a log-decay of -infinity is an exact forget and does not count
  };
  std::vector<Input> inputs;       // those that hold any
  int64_t gates_outside = 0;       // finite log-decays above 0, or decays outside [0, 1]
  int64_t heads = 0;               // value heads
  std::vector<int64_t> open_from;  // [sequence, value head]: first token with open results; empty: none has any

  static constexpr int64_t kNever = INT64_MAX;
  bool open(int64_t sequence, int64_t head, int64_t token) const {
    return !open_from.empty() && open_from[static_cast<size_t>(sequence * heads + head)] <= token;
  }
  bool state_open(int64_t sequence, int64_t head) const { return open(sequence, head, kNever - 1); }
};

// Reads everything that a forward reads.
Spoiled find_spoiled(const TensorSet& tensors);

}  // namespace deltarelay::check
