// Which bytes a tensor really has, gaps between its rows left out, and whether two tensors have one in common.
//
// Views of one packed row (q, k, v and o side by side in every token) lie in the same range of addresses and share nothing, so
// ranges alone cannot tell. A footprint is a run of `width` bytes, repeated along up to three axes.
#pragma once
#include <cstdint>
#include <initializer_list>

namespace deltarelay {

struct FootprintAxis {
  int64_t count;
  int64_t stride;  // bytes
};

class Footprint {
 public:
  static constexpr int32_t kMostAxes = 3;

  Footprint() = default;  // of no bytes
  // Axes in any order, nested as strides.h asks: sorted by stride, each steps over everything inside it. An axis with one
  // index is not looked at; one without any leaves no bytes.
  Footprint(const void* data, int64_t width, std::initializer_list<FootprintAxis> axes);

  bool empty() const { return width_ == 0; }
  uintptr_t start() const { return start_; }
  // Is any byte of one between the first and the last of the other? Nearly always not, which is the quick answer.
  bool near(const Footprint& other) const { return start_ <= other.last_ && other.start_ <= last_; }

 private:
  friend class FootprintComparison;

  uintptr_t start_ = 1;
  uintptr_t last_ = 0;  // before `start_`: no byte
  int64_t width_ = 0;
  int32_t rank_ = 0;
  // Of these, rank_ axes: outermost first, none that continues the one inside it.
  FootprintAxis axes_[kMostAxes];
  // Bytes from the first to behind the last of what is inside so many axes less than all; [rank_] is the width.
  int64_t extent_[kMostAxes + 1];
};

enum class Shared : int32_t {
  kNothing,
  kBytes,
  kUnknown,  // strides that have so little in common that the search was given up
};

// Do two footprints have a byte in common? Exact, and without a search, where their axes have equal strides or one of them
// is contiguous, as views of one piece of memory do. Otherwise as far as kMostSteps go.
Shared compare_near(const Footprint& a, const Footprint& b);
inline Shared compare(const Footprint& a, const Footprint& b) {
  return a.near(b) ? compare_near(a, b) : Shared::kNothing;
}

}  // namespace deltarelay
