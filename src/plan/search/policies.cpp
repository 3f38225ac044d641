#include "plan/search/policies.h"

#include <algorithm>
#include <numeric>

#include "plan/search/costs.h"

namespace deltarelay {
namespace {

using plan::ceil_div;
using Cuts = std::vector<PolicyCut>;

// Lengths in chunks of one system, with the figures that the rules ask for.
struct ChunkCounts {
  std::vector<int64_t> each;
  int64_t total = 0, longest = 0;

  ChunkCounts(const std::vector<int64_t>& lengths, int64_t chunk) {
    for (const int64_t length : lengths) each.push_back(ceil_div(length, chunk));
    total = std::accumulate(each.begin(), each.end(), int64_t{0});
    longest = each.empty() ? 0 : *std::max_element(each.begin(), each.end());
  }
  // "Equivalent sequences" x heads <= limit, where equivalent sequences = total / longest.
  bool occupancy_at_most(int64_t heads, int64_t limit) const { return total * heads <= limit * longest; }
};

// 2^round(log2(sqrt(square))), with square = up / down: rounds up from 2^(k - 1/2) on.
int64_t power_of_two_near_root(int64_t up, int64_t down) {
  const int64_t half = up / down / 2;
  int64_t power = 1;
  while (half / power >= power) power *= 2;  // up >= 2 power^2 down, without products that could overflow
  return power;
}

// FLA and cuLA SM100: sequences of at least three sub-lengths are cut into near-equal pieces, at most 32. The cap
// together with a rounded-up piece can leave nothing for the last ones; such empty pieces are dropped here.
Cuts cut_into_equal(const std::vector<int64_t>& lengths, int64_t sub_chunks, int64_t chunk) {
  constexpr int64_t kLongEnough = 3, kMostPieces = 32;
  Cuts cuts;
  bool any = false;
  for (const int64_t length : lengths) {
    PolicyCut cut;
    if (length >= kLongEnough * sub_chunks * chunk) {
      const int64_t n = ceil_div(length, chunk), pieces = std::min(kMostPieces, ceil_div(n, sub_chunks));
      const int64_t each = ceil_div(n, pieces);
      cut = {each * chunk, ceil_div(n, each)};
      any = true;
    }
    cuts.push_back(cut);
  }
  return any ? cuts : Cuts{};
}

// Every sequence longer than a piece is cut; a rest of less than one chunk joins the piece before it when `merge_tail`.
Cuts cut_by_length(const std::vector<int64_t>& lengths, int64_t tokens, int64_t chunk, bool merge_tail) {
  Cuts cuts;
  bool any = false;
  for (const int64_t length : lengths) {
    PolicyCut cut;
    int64_t pieces = ceil_div(length, tokens);
    if (merge_tail && pieces > 1 && length % tokens != 0 && length % tokens < chunk) --pieces;
    if (pieces > 1) {
      cut = {tokens, pieces};
      any = true;
    }
    cuts.push_back(cut);
  }
  return any ? cuts : Cuts{};
}

Cuts fla(const PolicyRequest& r) {
  constexpr int64_t kChunk = 64, kTilesPerHead = 2, kLeastPieces = 4, kLeastSubChunks = 128, kLeastChunks = 8;
  const ChunkCounts n(r.lengths, kChunk);
  if (n.longest < kLeastChunks) return {};
  const int64_t target = std::max(kLeastPieces, r.units / (kTilesPerHead * r.heads));
  return cut_into_equal(r.lengths, std::max(ceil_div(n.longest, target), kLeastSubChunks), kChunk);
}

Cuts cula_sm100(const PolicyRequest& r) {
  constexpr int64_t kChunk = 64, kTilesPerHead = 2, kLeastSubChunks = 16, kLongChunks = 256, kMostOccupancy = 10,
                    kSubChunksPerHead = 12;
  const ChunkCounts n(r.lengths, kChunk);
  const int64_t per_sequence = kTilesPerHead * r.heads, num_seqs = static_cast<int64_t>(r.lengths.size());
  if (per_sequence * num_seqs >= r.units) return {};             // guard 0: the machine is full already
  if (n.longest < kLongChunks) return {};                        // guard 1: nothing is long
  if (!n.occupancy_at_most(r.heads, kMostOccupancy)) return {};  // guard 2: enough parallel work
  const int64_t budget = std::max(r.units - per_sequence * (num_seqs - 1), per_sequence);
  const int64_t target = std::max<int64_t>(2, budget / per_sequence);
  const int64_t sub_chunks = std::max(ceil_div(n.longest, target), kLeastSubChunks);
  if (sub_chunks < kSubChunksPerHead * r.heads) return {};  // guard 3: pieces too short for the merge
  const Cuts cuts = cut_into_equal(r.lengths, sub_chunks, kChunk);
  int64_t total = 0;
  for (const PolicyCut& cut : cuts) total += cut.pieces;
  return total * per_sequence > r.units ? Cuts{} : cuts;  // guard 4: more than one wave
}

Cuts cula_sm90(const PolicyRequest& r) {
  constexpr int64_t kChunk = 64, kLeastPiece = 4;
  const ChunkCounts n(r.lengths, kChunk);
  if (n.longest == 0) return {};
  if (!(n.occupancy_at_most(r.heads, 40) || (n.occupancy_at_most(r.heads, 56) && n.longest >= 128))) return {};
  const int64_t tokens = std::accumulate(r.lengths.begin(), r.lengths.end(), int64_t{0});
  const int64_t num_seqs = static_cast<int64_t>(r.lengths.size());
  if (num_seqs == 1) {
    if (r.heads > 32 || tokens < (r.heads <= 16 ? 4096 : 16384)) return {};
  } else {
    for (const int64_t length : r.lengths) {
      if (length % kChunk != 0) return {};
    }
    const int64_t longest = *std::max_element(r.lengths.begin(), r.lengths.end());
    const bool dominated = longest >= 32768 && 2 * longest >= tokens && r.heads <= 16;
    if (num_seqs * r.heads > 16 && !dominated) return {};
    if (tokens * r.heads <= 32768 || tokens < (r.heads <= 8 ? 8192 : 4096)) return {};
  }
  const int64_t target = std::max<int64_t>(1, r.units / r.heads);
  const int64_t piece = std::max(kLeastPiece, power_of_two_near_root(n.total * n.total, target * target));
  return cut_by_length(r.lengths, piece * kChunk, kChunk, true);
}

// The square-root rule of FlashQLA and FlashKDA: latency of a piece grows with its length, the passes over all of them
// shrink.
int64_t root_piece(const PolicyRequest& r, const ChunkCounts& n) {
  constexpr int64_t kLeastPiece = 4;
  return std::max(kLeastPiece, power_of_two_near_root(9 * r.heads * n.total, r.units));
}

Cuts flashqla(const PolicyRequest& r) {
  constexpr int64_t kChunk = 64;
  const ChunkCounts n(r.lengths, kChunk);
  if (n.longest == 0) return {};
  const bool sm100 = r.compute_capability >= 100 && r.compute_capability < 120;
  const bool on = sm100 ? (n.occupancy_at_most(r.heads, 56) && n.longest >= 256) ||
                              (n.occupancy_at_most(r.heads, 32) && n.longest >= 192)
                        : n.occupancy_at_most(r.heads, 40) || (n.occupancy_at_most(r.heads, 56) && n.longest >= 128);
  return on ? cut_by_length(r.lengths, root_piece(r, n) * kChunk, kChunk, false) : Cuts{};
}

Cuts flashkda_pr9(const PolicyRequest& r) {
  constexpr int64_t kChunk = 16;
  const ChunkCounts n(r.lengths, kChunk);
  if (n.longest == 0 || !n.occupancy_at_most(r.heads, r.units / 4)) return {};
  return cut_by_length(r.lengths, root_piece(r, n) * kChunk, kChunk, false);
}

struct Policy {
  const char* name;
  Cuts (*cuts)(const PolicyRequest&);
};
constexpr Policy kPolicies[] = {{"fla", fla},
                                {"cula-sm100", cula_sm100},
                                {"cula-sm90", cula_sm90},
                                {"flashqla", flashqla},
                                {"flashkda-pr9", flashkda_pr9}};

}  // namespace

int32_t policy_count() { return static_cast<int32_t>(sizeof kPolicies / sizeof kPolicies[0]); }

const char* policy_name(int32_t index) { return kPolicies[index].name; }

int32_t policy_find(const std::string& name) {
  for (int32_t i = 0; i < policy_count(); ++i) {
    if (name == kPolicies[i].name) return i;
  }
  return -1;
}

std::vector<PolicyCut> policy_cuts(int32_t policy, const PolicyRequest& request) {
  return kPolicies[policy].cuts(request);
}

}  // namespace deltarelay
