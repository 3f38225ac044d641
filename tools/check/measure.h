// How far a result is from the reference. For each block, here a (sequence, value head):
//
//     error = rms(out - reference) / max(rms(reference of the block), 0.01 * rms(reference of the whole tensor))
//
// The worst block is the error of the tensor; the ratio over the whole tensor is kept as well. A number that is not
// finite while the reference is finite fails. If results are stored in fewer bits, a block may have at least the error
// that storing the reference itself has: a block with a few dominant numbers may lose twice the average.
#pragma once
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace deltarelay::check {

struct TensorError {
  std::string tensor;  // "o", "final", "w", ...
  double worst = 0.0;
  int64_t worst_sequence = 0;
  int64_t worst_head = 0;
  double whole = 0.0;
  int64_t not_finite = 0;  // NaN or Inf where the reference is finite, or elements left unwritten
  double tolerance = 0.0;  // of the worst block
  int64_t measured = 0;    // numbers that were held against the reference

  bool passes() const { return not_finite == 0 && worst <= tolerance; }  // false for a NaN error
};

class Measure {
 public:
  Measure(int64_t sequences, int64_t heads) : heads_(heads), blocks_(static_cast<size_t>(sequences * heads)) {}

  void add(int64_t sequence, int64_t head, double out, double reference) {
    add(sequence, head, out, reference, reference);
  }
  // `stored`: the reference in the type of the result.
  void add(int64_t sequence, int64_t head, double out, double reference, double stored) {
    if (!std::isfinite(reference)) return;
    if (!std::isfinite(out)) {
      ++not_finite_;
      return;
    }
    Block& block = blocks_[static_cast<size_t>(sequence * heads_ + head)];
    block.error += (out - reference) * (out - reference);
    block.reference += reference * reference;
    if (std::isfinite(stored)) block.rounding += (stored - reference) * (stored - reference);
    ++block.count;
  }
  // Adds an element without a reference: it must at least be finite.
  void add_unmeasured(double out) { not_finite_ += std::isfinite(out) ? 0 : 1; }

  // Adds the results of another measure of the same tensor.
  void merge(const Measure& other);

  // `storage`: the part of `tolerance` that allows for storing in fewer bits.
  TensorError finish(std::string tensor, double tolerance, double storage = 0.0) const;

 private:
  struct Block {
    double error = 0.0;  // sums of squares
    double reference = 0.0;
    double rounding = 0.0;
    int64_t count = 0;
  };
  int64_t heads_;
  std::vector<Block> blocks_;
  int64_t not_finite_ = 0;
};

}  // namespace deltarelay::check
