#include "problem/footprint.h"

#include <algorithm>
#include <numeric>

namespace deltarelay {
namespace {

// Limit of the search, about 20 us. Views of one allocation take about 12 steps.
constexpr int32_t kMostSteps = 256;

Wide mod(Wide a, Wide b) { return (a % b + b) % b; }

// Returns x with a x = 1 (mod m). a and m have no common factor.
int64_t inverse_mod(int64_t a, int64_t m) {
  Wide r0 = m, r1 = a % m, x0 = 0, x1 = 1;
  while (r1 != 0) {
    const Wide quotient = r0 / r1;
    std::swap(r0 -= quotient * r1, r1);
    std::swap(x0 -= quotient * x1, x1);
  }
  return static_cast<int64_t>(mod(x0, m));
}

// The integers from `first` to `last`.
struct Range {
  Wide first, last;
  Wide count() const { return last < first ? 0 : last - first + 1; }
};

// All n in [0, count) with low < n * stride < high.
Range steps_between(Wide low, Wide high, const FootprintAxis& axis) {
  return {std::max<Wide>(0, floor_div(low, axis.stride) + 1),
          std::min<Wide>(axis.count - 1, floor_div(high - 1, axis.stride))};
}

}  // namespace

Footprint::Footprint(const void* data, int64_t width, std::initializer_list<FootprintAxis> axes)
    : start_(reinterpret_cast<uintptr_t>(data)), width_(data == nullptr ? 0 : width) {
  for (const FootprintAxis& axis : axes) {
    if (axis.count <= 0) width_ = 0;
    if (axis.count > 1) axes_[rank_++] = axis;
  }
  if (width_ == 0) {
    *this = Footprint();
    return;
  }
  std::sort(axes_, axes_ + rank_, [](const FootprintAxis& a, const FootprintAxis& b) { return a.stride > b.stride; });
  // From the inside out: merge an axis with the axis inside it if it continues that axis without a gap.
  for (int32_t i = rank_ - 1; i >= 0; --i) {
    const bool innermost = i == rank_ - 1;
    const Wide inside = innermost ? width_ : static_cast<Wide>(axes_[i + 1].count) * axes_[i + 1].stride;
    if (axes_[i].stride == inside) {
      if (innermost) {
        width_ *= axes_[i].count;
      } else {
        axes_[i + 1].count *= axes_[i].count;
      }
      std::copy(axes_ + i + 1, axes_ + rank_, axes_ + i);
      --rank_;
    }
  }
  extent_[rank_] = width_;
  for (int32_t i = rank_ - 1; i >= 0; --i) extent_[i] = (axes_[i].count - 1) * axes_[i].stride + extent_[i + 1];
  // A bogus pointer may run past the end of the address space.
  if (__builtin_add_overflow(start_, static_cast<uintptr_t>(extent_[0] - 1), &last_)) last_ = ~uintptr_t{0};
}

// Removes axes, outermost first, until two runs of bytes are left. Inside a removed axis only the distances at which
// the two footprints can meet are searched.
class FootprintComparison {
 public:
  FootprintComparison(const Footprint& a, const Footprint& b) : a_(a), b_(b) {}

  // Do the bytes inside axis `of_a` of a and inside axis `of_b` of b meet, if b starts `distance` bytes after a?
  bool meet(int32_t of_a, int32_t of_b, Wide distance) {
    const Wide extent_a = a_.extent_[of_a], extent_b = b_.extent_[of_b];
    if (distance >= extent_a || -distance >= extent_b) return false;
    const bool run_a = of_a == a_.rank_, run_b = of_b == b_.rank_;
    if (distance == 0 || (run_a && run_b)) return true;  // equal starts share their first byte
    if (++steps_ > kMostSteps) return false;

    // Remove an axis of a, of b, or of both: whichever leaves the smallest extent.
    const Wide inner_a = run_a ? 0 : a_.extent_[of_a + 1], inner_b = run_b ? 0 : b_.extent_[of_b + 1];
    const Range steps_a = run_a ? Range{0, -1} : steps_between(distance - inner_a, distance + extent_b, a_.axes_[of_a]);
    const Range steps_b =
        run_b ? Range{0, -1} : steps_between(-distance - inner_b, extent_a - distance, b_.axes_[of_b]);
    // What starts inside a run has its first byte in the run.
    if (run_b) {
      return steps_a.count() > 0 && (steps_a.last * a_.axes_[of_a].stride >= distance ||
                                     meet(of_a + 1, of_b, distance - steps_a.last * a_.axes_[of_a].stride));
    }
    if (run_a) {
      return steps_b.count() > 0 && (steps_b.last * b_.axes_[of_b].stride >= -distance ||
                                     meet(of_a, of_b + 1, distance + steps_b.last * b_.axes_[of_b].stride));
    }
    const int64_t divisor = std::gcd(a_.axes_[of_a].stride, b_.axes_[of_b].stride);
    const Wide of_both = (inner_a + inner_b) / divisor + 1;
    if (of_both <= std::min(steps_a.count(), steps_b.count())) return meet_inside(of_a, of_b, distance, divisor);
    if (steps_a.count() <= steps_b.count()) {
      for (Wide i = steps_a.first; i <= steps_a.last && steps_ <= kMostSteps; ++i)
        if (meet(of_a + 1, of_b, distance - i * a_.axes_[of_a].stride)) return true;
      return false;
    }
    for (Wide j = steps_b.first; j <= steps_b.last && steps_ <= kMostSteps; ++j)
      if (meet(of_a, of_b + 1, distance + j * b_.axes_[of_b].stride)) return true;
    return false;
  }

  bool given_up() const { return steps_ > kMostSteps; }

 private:
  // Removes an axis of both. The possible distances of the inner parts all leave the same remainder modulo the common
  // divisor of the strides. For each distance the smallest pair of indices, if any, must lie within the axes.
  bool meet_inside(int32_t of_a, int32_t of_b, Wide distance, int64_t divisor) {
    const FootprintAxis axis_a = a_.axes_[of_a], axis_b = b_.axes_[of_b];
    const Wide inner_a = a_.extent_[of_a + 1], inner_b = b_.extent_[of_b + 1];
    const int64_t modulus = axis_a.stride / divisor;
    const int64_t inverse = modulus == 1 ? 0 : inverse_mod(axis_b.stride / divisor, modulus);
    const Wide first = 1 - inner_b + mod(distance - (1 - inner_b), divisor);
    for (Wide inside = first; inside < inner_a && steps_ <= kMostSteps; inside += divisor) {
      // distance + j * stride_b - i * stride_a = inside
      ++steps_;
      const Wide more = inside - distance;
      const Wide least = std::max<Wide>(0, -floor_div(-more, axis_b.stride));
      const Wide remainder = mod(mod(more / divisor, modulus) * inverse, modulus);
      const Wide j = least + mod(remainder - least, modulus);
      const Wide i = (j * axis_b.stride - more) / axis_a.stride;
      if (j < axis_b.count && i < axis_a.count && meet(of_a + 1, of_b + 1, inside)) return true;
    }
    return false;
  }

  const Footprint& a_;
  const Footprint& b_;
  int32_t steps_ = 0;
};

Shared compare_near(const Footprint& a, const Footprint& b) {
  const Wide distance = static_cast<Wide>(b.start()) - static_cast<Wide>(a.start());
  FootprintComparison comparison(a, b);
  if (comparison.meet(0, 0, distance)) return Shared::kBytes;
  return comparison.given_up() ? Shared::kUnknown : Shared::kNothing;
}

}  // namespace deltarelay
