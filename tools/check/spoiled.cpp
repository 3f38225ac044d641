#include "check/spoiled.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>

#include "check/parallel.h"

namespace deltarelay::check {
namespace {

constexpr int64_t kChunk = 64;  // of the contract, whatever chunk a backend has

enum Input : size_t { kQ, kK, kV, kG, kBeta, kALog, kDtBias, kInitial, kInputs };
constexpr std::array<const char*, kInputs> kNames = {"q", "k", "v", "g", "beta", "a_log", "dt_bias", "initial"};

// What one value head reads.
class Head {
 public:
  Head(const TensorSet& tensors, int64_t head) : tensors_(tensors), c_(tensors.of()), head_(head) {}

  // First token of every sequence with open results.
  std::vector<int64_t> read() {
    // Value heads of one key head read the same q and k, which count once.
    const int64_t group = c_.heads_v / c_.heads_qk, head_qk = head_ / group;
    const bool first = head_ % group == 0;
    const bool parameters = read_parameters();
    std::vector<int64_t> open_from;
    for (int64_t n = 0; n < c_.num_seqs(); ++n) {
      bool open = parameters;
      open |= read_initial(n);
      int64_t from = open ? 0 : Spoiled::kNever;
      for (int64_t t = 0; t < c_.lengths[static_cast<size_t>(n)]; ++t) {
        bool found = read_row(tensors_.q(), kQ, n, t, head_qk, first);
        found |= read_row(tensors_.k(), kK, n, t, head_qk, first);
        found |= read_row(tensors_.v(), kV, n, t, head_, true);
        found |= read_row(tensors_.beta(), kBeta, n, t, head_, true);
        found |= read_gates(n, t);
        if (found) from = std::min(from, t / kChunk * kChunk);
      }
      open_from.push_back(from);
    }
    return open_from;
  }

  struct Count {
    int64_t nans = 0, infinities = 0;
  };
  const std::array<Count, kInputs>& counts() const { return counts_; }
  int64_t gates_outside() const { return gates_outside_; }

 private:
  bool spoils(Input input, double value, bool counted = true) {
    if (std::isfinite(value)) return false;
    if (counted) ++(std::isnan(value) ? counts_[input].nans : counts_[input].infinities);
    return true;
  }

  bool read_row(const TokenTensor& x, Input input, int64_t n, int64_t t, int64_t head, bool counted) {
    bool found = false;
    const int64_t at = x.at(n, t, head, 0);
    for (int64_t i = 0; i < x.width; ++i) found |= spoils(input, x.get(at + i), counted);
    return found;
  }

  bool read_gates(int64_t n, int64_t t) {
    const TokenTensor& g = tensors_.g();
    const bool log = c_.gate_form == DR_GATE_LOG, linear = c_.gate_form == DR_GATE_LINEAR;
    bool found = false;
    const int64_t at = g.at(n, t, head_, 0);
    for (int64_t i = 0; i < g.width; ++i) {
      const double gate = g.get(at + i);
      if (log && gate == -HUGE_VAL) continue;
      if (spoils(kG, gate)) {
        found = true;
      } else if ((log && gate > 0) || (linear && (gate < 0 || gate > 1))) {
        ++gates_outside_;
      }
    }
    return found;
  }

  bool read_parameters() {
    const dr_tensors& pointers = tensors_.tensors();
    bool found = false;
    if (pointers.a_log != nullptr) found |= spoils(kALog, load(pointers.a_log, c_.dtype_a_log, head_));
    const int64_t gates = c_.rule == DR_KDA ? c_.dk : 1;
    for (int64_t i = 0; pointers.dt_bias != nullptr && i < gates; ++i)
      found |= spoils(kDtBias, load(pointers.dt_bias, c_.dtype_dt_bias, head_ * gates + i));
    return found;
  }

  bool read_initial(int64_t n) {
    const StateTensor& states = tensors_.initial();
    if (!states.used() || states.slots[static_cast<size_t>(n)] < 0) return false;
    bool found = false;
    const int64_t at = states.slots[static_cast<size_t>(n)] * states.stride_slot + head_ * states.stride_head;
    for (int64_t i = 0; i < states.stride_head; ++i) found |= spoils(kInitial, states.get(at + i));
    return found;
  }

  const TensorSet& tensors_;
  const cases::Case& c_;
  int64_t head_;
  std::array<Count, kInputs> counts_{};
  int64_t gates_outside_ = 0;
};

}  // namespace

Spoiled find_spoiled(const TensorSet& tensors) {
  const cases::Case& c = tensors.of();
  Spoiled spoiled;
  spoiled.heads = c.heads_v;
  std::array<Head::Count, kInputs> counts{};
  std::vector<int64_t> open_from(static_cast<size_t>(c.num_seqs() * c.heads_v));
  std::mutex mutex;
  in_parallel(c.heads_v, 1, [&](int64_t begin, int64_t end) {
    for (int64_t h = begin; h < end; ++h) {
      Head head(tensors, h);
      const std::vector<int64_t> from = head.read();
      const std::lock_guard<std::mutex> lock(mutex);
      for (size_t n = 0; n < from.size(); ++n)
        open_from[n * static_cast<size_t>(c.heads_v) + static_cast<size_t>(h)] = from[n];
      for (size_t i = 0; i < kInputs; ++i) {
        counts[i].nans += head.counts()[i].nans;
        counts[i].infinities += head.counts()[i].infinities;
      }
      spoiled.gates_outside += head.gates_outside();
    }
  });
  for (size_t i = 0; i < kInputs; ++i)
    if (counts[i].nans + counts[i].infinities > 0)
      spoiled.inputs.push_back({kNames[i], counts[i].nans, counts[i].infinities});
  if (!spoiled.inputs.empty()) spoiled.open_from = std::move(open_from);
  return spoiled;
}

}  // namespace deltarelay::check
