// The bytes of a tensor without the gaps between its rows, and whether two tensors share a byte.
//
// Views of one packed row (q, k, v and o side by side in every token) lie in the same address range and share no byte.
// Address ranges alone cannot show that. A footprint is a run of `width` bytes, repeated along up to three axes.
#pragma once
#include <cstdint>
#include <initializer_list>

namespace deltarelay {

// Holds the distance of any two addresses and products of strides.
__extension__ typedef __int128 Wide;
inline Wide floor_div(Wide a, Wide b) { return a / b - (a % b < 0 ? 1 : 0); }  // b > 0

struct FootprintAxis {
  int64_t count;
  int64_t stride;  // bytes
};

class Footprint {
 public:
  static constexpr int32_t kMostAxes = 3;

  Footprint() = default;  // no bytes
  // Axes may come in any order, nested as strides.h requires: sorted by stride, each axis steps over everything inside
  // it. An axis with one index is ignored. An axis with none leaves no bytes.
  Footprint(const void* data, int64_t width, std::initializer_list<FootprintAxis> axes);

  bool empty() const { return width_ == 0; }
  uintptr_t start() const { return start_; }
  // Do the address ranges overlap? Almost always they do not, so this test comes first.
  bool near(const Footprint& other) const { return start_ <= other.last_ && other.start_ <= last_; }

 private:
  friend class FootprintComparison;

  uintptr_t start_ = 1;
  uintptr_t last_ = 0;  // below `start_`: no bytes
  int64_t width_ = 0;
  int32_t rank_ = 0;
  // The first rank_ entries count: outermost first, and no axis continues the axis inside it.
  FootprintAxis axes_[kMostAxes];
  // extent_[i]: bytes from the first to past the last inside axis i; extent_[rank_] is the width.
  int64_t extent_[kMostAxes + 1];
};

enum class Shared : int32_t {
  kNothing,
  kBytes,
  kUnknown,  // the search was given up: the strides have too small a common divisor
};

// Do two footprints share a byte? The answer is exact and needs no search if their axes have equal strides or one of
// them is contiguous, as in views of one allocation. Otherwise the search stops after kMostSteps.
Shared compare_near(const Footprint& a, const Footprint& b);
inline Shared compare(const Footprint& a, const Footprint& b) {
  return a.near(b) ? compare_near(a, b) : Shared::kNothing;
}

}  // namespace deltarelay
