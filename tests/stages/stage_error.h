// The error of a stage's tensors against the reference: docs/numerics.md.
#pragma once
#include "stage_call.h"

namespace deltarelay::test {

// rms of the differences of a block over rms of the block, at least 0.01 of that of the tensor. Gates
// of -infinity have sums of -infinity, which must be equal.
class Measure {
 public:
  void add(double expected, double found) {
    if (!std::isfinite(expected) || !std::isfinite(found)) {
      EXPECT_TRUE(expected == found) << "expected " << expected << ", found " << found;
      return;
    }
    error_ += (found - expected) * (found - expected);
    size_ += expected * expected;
    ++count_;
  }
  double rms() const { return count_ > 0 ? std::sqrt(size_ / count_) : 0.0; }
  double relative(double rms_of_tensor) const {
    const double floor = (count_ < 4 ? 1.0 : count_ < 64 ? 0.1 : 0.01) * rms_of_tensor;
    const double scale = std::max(rms(), floor);
    if (error_ == 0.0) return 0.0;
    return scale > 0.0 ? std::sqrt(error_ / count_) / scale : std::numeric_limits<double>::infinity();
  }

 private:
  double error_ = 0.0, size_ = 0.0;
  double count_ = 0.0;
};

// The block of each row of a tensor: its sequence.
inline std::vector<int64_t> blocks_of_rows(const StageCall& x, Tensor tensor, int64_t rows) {
  const Problem& p = x.resolved;
  std::vector<int64_t> blocks;
  const bool tokens = tensor != Tensor::kFinal && tensor != Tensor::kSummaries && tensor != Tensor::kComposed;
  for (int64_t n = 0; n < p.num_seqs && tokens; ++n) {
    const bool chunks = tensor == Tensor::kStates && p.op == Op::kStatePass;
    const int64_t count = chunks ? (p.length(n) + p.chunks.chunk - 1) / p.chunks.chunk : p.length(n);
    blocks.insert(blocks.end(), static_cast<size_t>(count), n);
  }
  for (int64_t row = static_cast<int64_t>(blocks.size()); row < rows; ++row) blocks.push_back(tokens ? -1 : row);
  return blocks;
}

// Error of the worst block of a tensor, against numbers that the reference has stored in its place.
inline double worst_error(const StageCall& x, Tensor tensor, const std::vector<double>& expected) {
  const int64_t heads = x.resolved.heads_v, dk = x.resolved.dk, dv = x.resolved.dv;
  int64_t stride = 0, width = 0, rows = 0;
  if (tensor == Tensor::kO) {
    stride = x.resolved.o.token, width = dv, rows = x.resolved.num_tokens;
  } else {
    rows = tensor == Tensor::kFinal || tensor == Tensor::kSummaries || tensor == Tensor::kComposed
               ? x.resolved.num_seqs
               : x.resolved.num_tokens;
    if (tensor == Tensor::kStates || tensor == Tensor::kFinal)
      width = dk * dv;
    else if (tensor == Tensor::kSummaries || tensor == Tensor::kComposed)
      width = (dv + dk) * dk;
    else
      width = static_cast<int64_t>(expected.size()) / (rows * heads);
    if (tensor == Tensor::kStates) rows = static_cast<int64_t>(expected.size()) / (heads * width);
    stride = heads * width;
  }
  const int64_t head_stride = tensor == Tensor::kO ? x.resolved.o.head : width;
  const std::vector<int64_t> blocks = blocks_of_rows(x, tensor, rows);
  Measure whole;
  for (const double number : expected)
    if (std::isfinite(number)) whole.add(number, number);
  double worst = 0.0;
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t row = 0; row < rows;) {
      Measure block;
      const int64_t of_block = blocks[static_cast<size_t>(row)];
      for (; row < rows && blocks[static_cast<size_t>(row)] == of_block; ++row) {
        for (int64_t c = 0; c < width; ++c) {
          const int64_t index = row * stride + head * head_stride + c;
          const double found = x.at(tensor, index);
          if (of_block < 0) EXPECT_EQ(found, 0.0) << "past the last offset";
          block.add(expected[static_cast<size_t>(index)], found);
        }
      }
      worst = std::max(worst, block.relative(whole.rms()));
    }
  }
  return worst;
}

}  // namespace deltarelay::test
