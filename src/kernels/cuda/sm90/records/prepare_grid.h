// Grids of `prepare`, in plain C++: the planner asks, and the launch follows.
#pragma once
#include <algorithm>
#include <cstdint>

namespace deltarelay::cuda::sm90 {

namespace prepare_gdn {
constexpr int kHeads = 4;     // most value heads of a CTA: a warp makes the factors of one head
constexpr int kResident = 4;  // CTAs per multiprocessor: leaves 128 registers per thread
}  // namespace prepare_gdn

// GDN: a CTA per (chunk, q/k head) shares the products among all value heads of that head. A small call gives up some
// of this sharing until every multiprocessor has its resident CTAs.
struct GdnGrid {
  int32_t heads;  // value heads of a CTA
  int64_t ctas;
};
constexpr int64_t gdn_shares(int64_t group, int64_t heads) { return (group + heads - 1) / heads; }
constexpr GdnGrid gdn_grid(int64_t chunks, int64_t heads_qk, int64_t group, int32_t multiprocessors) {
  const int64_t pairs = chunks * heads_qk;
  if (pairs == 0) return {1, 0};
  const int64_t wanted = int64_t{prepare_gdn::kResident} * multiprocessors;
  const int64_t most_shares = std::clamp<int64_t>((wanted + pairs - 1) / pairs, 1, group);
  const int64_t heads = std::min<int64_t>((group + most_shares - 1) / most_shares, prepare_gdn::kHeads);
  return {static_cast<int32_t>(heads), pairs * gdn_shares(group, heads)};
}

// KDA: a CTA takes several chunks of a head if enough CTAs remain.
struct KdaGrid {
  int32_t chunks;  // of a CTA
  int32_t y;       // CTAs of a head
};
constexpr KdaGrid kda_grid(int32_t chunks, int32_t heads) {
  constexpr int32_t kMostPerCta = 8, kMostY = 65535, kEnough = 8 * 1024;
  int32_t per_cta = 1;
  while (per_cta < kMostPerCta && int64_t{chunks} * heads / (2 * per_cta) >= kEnough) per_cta *= 2;
  while ((chunks + per_cta - 1) / per_cta > kMostY) per_cta *= 2;
  return {per_cta, (chunks + per_cta - 1) / per_cta};
}

}  // namespace deltarelay::cuda::sm90
