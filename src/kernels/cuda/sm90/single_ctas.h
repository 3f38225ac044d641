// How many CTAs with a whole strip each walk the items of a call. A CTA can take several items, one after the other
// (fused/items.cuh).
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/args.h"

namespace deltarelay::cuda::sm90 {

// Most items of one CTA. With more, a multiprocessor that is busy with other work would delay too many items.
constexpr int kMostItems = 8;
// Most pieces of a share (kernels/relay.h): one per lane of the warp that finds them. KDA has shared memory for
// kMostItems only.
constexpr int kMostItemsGdn = 32;

// Rows of this phase times strips; some rows may be unused.
inline unsigned items_of(const WalkArgs& args) {
  return static_cast<unsigned>(args.row_bound) * static_cast<unsigned>(args.strips.all);
}

// Are all rows of this phase, which come longest first, known to have one length?
inline bool rows_alike(const WalkArgs& args) {
  const Tables& tables = args.tables;
  if (tables.memory != nullptr) return false;  // only the device can read them
  const bool third = args.phase == 3;
  const int32_t count = tables.counts()[third ? 2 : 0];
  const Row* rows = third ? tables.rows3() : tables.rows1();
  return count > 0 && rows[0].chunks == rows[count - 1].chunks;
}

// From this many items per multiprocessor on, the difference in work between two CTAs is small against the whole.
constexpr unsigned kManyRounds = 4;

// Grid of CTAs that can take `most` items each: at most one wave. The launch then fixes which CTA has which item. So if
// rows differ in length and there are few waves of items, there is one CTA per item instead: the next CTA starts on the
// first free multiprocessor. CTAs come in clusters of `together`, which divides the number of strips. If rows are
// handed on, there is one CTA per share.
inline unsigned single_ctas(const WalkArgs& args, unsigned most, int32_t units, unsigned together = 1) {
  const RelayLine& line = args.relay.line;
  if (line.shares > 0) return static_cast<unsigned>(line.places());
  const unsigned items = items_of(args);
  const unsigned at_once = static_cast<unsigned>(units) / together * together;
  if (items < kManyRounds * at_once && !rows_alike(args)) return items;
  const unsigned in_cluster = most * together, needed = (items + in_cluster - 1) / in_cluster * together;
  return std::min(items, std::max(at_once, needed));
}

}  // namespace deltarelay::cuda::sm90
