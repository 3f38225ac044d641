#include "check/measure.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace deltarelay::check {
namespace {

// Floor of a block's scale, relative to the tensor's rms, so that nearly silent blocks are not compared with their own
// rms. The rms of a few numbers is no reliable scale: one number may be the rest of a cancellation, and then 2e-5 is
// below what fp32 can give (4 ulp of its terms over 0.01). So short blocks use a tenth, and blocks of one to three
// numbers use all of it.
constexpr double kFloor = 0.01;
constexpr double kFloorOfShortBlocks = 0.1;
constexpr int64_t kShortBlock = 64;
constexpr double kFloorOfTinyBlocks = 1.0;
constexpr int64_t kTinyBlock = 4;

double floor_of(int64_t count) {
  return count < kTinyBlock ? kFloorOfTinyBlocks : count < kShortBlock ? kFloorOfShortBlocks : kFloor;
}

double rms(double sum, int64_t count) { return count > 0 ? std::sqrt(sum / static_cast<double>(count)) : 0.0; }

double ratio(double error, double reference) {
  if (error == 0.0) return 0.0;
  return reference > 0.0 ? error / reference : std::numeric_limits<double>::infinity();
}

}  // namespace

void Measure::merge(const Measure& other) {
  for (size_t i = 0; i < blocks_.size(); ++i) {
    blocks_[i].error += other.blocks_[i].error;
    blocks_[i].reference += other.blocks_[i].reference;
    blocks_[i].rounding += other.blocks_[i].rounding;
    blocks_[i].count += other.blocks_[i].count;
  }
  not_finite_ += other.not_finite_;
}

TensorError Measure::finish(std::string tensor, double tolerance, double storage) const {
  TensorError result;
  result.tensor = std::move(tensor);
  result.tolerance = tolerance;
  result.not_finite = not_finite_;
  Block total;
  for (const Block& block : blocks_) {
    total.error += block.error;
    total.reference += block.reference;
    total.count += block.count;
  }
  result.measured = total.count + not_finite_;
  const double whole = rms(total.reference, total.count);
  result.whole = ratio(rms(total.error, total.count), whole);
  double most_over = -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Block& block = blocks_[i];
    const double reference = std::max(rms(block.reference, block.count), floor_of(block.count) * whole);
    const double error = ratio(rms(block.error, block.count), reference);
    const double rounding = storage > 0.0 ? ratio(rms(block.rounding, block.count), reference) : 0.0;
    const double allowed = tolerance - storage + std::max(storage, rounding);
    if (!(error - allowed <= most_over)) {
      most_over = error - allowed;
      result.worst = error;
      result.tolerance = allowed;
      result.worst_sequence = static_cast<int64_t>(i) / heads_;
      result.worst_head = static_cast<int64_t>(i) % heads_;
    }
  }
  return result;
}

}  // namespace deltarelay::check
