// How many CTAs with a whole strip each walk the items of a call. A CTA can take several items, one after the other
// (fused/items.cuh).
#pragma once
#include <algorithm>
#include <cstdint>

namespace deltarelay::cuda::sm90 {

// Most items of one CTA. With more, a multiprocessor that is busy with other work would delay too many items.
constexpr int kMostItems = 8;
// Most pieces of a share (kernels/relay.h): one per lane of the warp that finds them. KDA has shared memory for
// kMostItems only.
constexpr int kMostItemsGdn = 32;

// The items of a call: rows of a phase times strips; some rows may be unused.
struct SingleCtas {
  unsigned items;
  int32_t places;  // shares of all rows if they are handed on, else 0
  bool alike;      // are all rows known to have one length?
};

// From this many items per multiprocessor on, the difference in work between two CTAs is small against the whole.
constexpr unsigned kManyRounds = 4;

// Grid of CTAs that can take `most` items each: at most one wave. The launch then fixes which CTA has which item. So if
// rows differ in length and there are few waves of items, there is one CTA per item instead: the next CTA starts on the
// first free multiprocessor. CTAs come in clusters of `together`, which divides the number of strips. If rows are
// handed on, there is one CTA per share.
constexpr unsigned single_ctas(const SingleCtas& call, unsigned most, int32_t units, unsigned together = 1) {
  if (call.places > 0) return static_cast<unsigned>(call.places);
  const unsigned items = call.items;
  const unsigned at_once = static_cast<unsigned>(units) / together * together;
  if (items < kManyRounds * at_once && !call.alike) return items;
  const unsigned in_cluster = most * together, needed = (items + in_cluster - 1) / in_cluster * together;
  return std::min(items, std::max(at_once, needed));
}

}  // namespace deltarelay::cuda::sm90
