// How many CTAs that have a whole head (or strip) each walk the items of a call: each can take several, one after the other (fused/items.cuh).
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/args.h"

namespace deltarelay::cuda::sm90 {

// Items of a single CTA. No more, so that where a multiprocessor is busy with other work, not all that would have been walked on it comes late.
constexpr int kMostItems = 8;
// Parts of a share (kernels/relay.h): one a lane of who finds them. KDA has no shared memory for more than the above.
constexpr int kMostItemsGdn = 32;

// Rows of this phase, for every strip: of which some may not be in use.
inline unsigned items_of(const WalkArgs& args) {
  return static_cast<unsigned>(args.row_bound) * static_cast<unsigned>(args.strips.all);
}

// Whether the rows of this phase, which come longest first, are known to be of one length.
inline bool rows_alike(const WalkArgs& args) {
  const Tables& tables = args.tables;
  if (tables.memory != nullptr) return false;  // only the device can read them
  const bool third = args.phase == 3;
  const int32_t count = tables.counts()[third ? 2 : 0];
  const Row* rows = third ? tables.rows3() : tables.rows1();
  return count > 0 && rows[0].chunks == rows[count - 1].chunks;
}

// Items a multiprocessor from which on what one CTA has more to do than another is little of the whole.
constexpr unsigned kManyRounds = 4;

// No more than the GPU has room for, where each can take `most` items. Who has which item is settled then; so one CTA for each, of which the next
// starts where a multiprocessor is free first, if rows differ in length and there are but a few rounds of them. CTAs come in clusters of
// `together`, which divides the number of strips. Where rows are handed on, one CTA for each share.
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
