// The rules by which sequences are cut, and the cut that each gives to the sequence at a place: for the host, whatever
// the rule, and for one thread block of a GPU.
#pragma once
#include <cstdint>

#include "plan/search/costs.h"
#include "plan/search/cut.h"
#include "plan/search/lengths.h"
#include "plan/search/policies.h"
#include "plan/search/rows.h"
#include "problem/problem.h"

namespace deltarelay {

using plan::kMostChunks;

// Segments behind the first ones, of all sequences, that a plan may have: of one head of 128 x 128 their states and
// transitions are 48 GiB.
constexpr int64_t kMostSegments = int64_t{1} << 18;

// How the sequences of a plan are cut.
enum class CutRule : int32_t {
  kWhole,   // not at all
  kSearch,  // where the cost model gains (search.h)
  kCount,   // into `cut_value` segments
  kLength,  // into segments of `cut_value` chunks
  kGrain,   // at absolute multiples of `cut_value` chunks, states folded (grain.h)
  kPolicy,  // as another system would (policies.h)
};

// Scratch of one table.
struct TableSpace {
  int64_t* tail;
  plan::Run* runs;
  plan::Key* keys;
  int32_t* sorted;
};

// The sequences of one call, ordered, and the rule by which they are cut.
struct TableInput {
  Sequences sequences;
  int32_t chunk = 0;  // tokens
  TableSpace space{};
  plan::Lengths lengths{};
  CutRule rule = CutRule::kWhole;
  int32_t value = 0;                  // of the rule
  plan::Decision decision;            // kSearch
  const PolicyCut* policy = nullptr;  // kPolicy: one per sequence
};

// The cut of the sequence at a place, by every rule but the grain.
struct CutBy {
  const TableInput& input;
  plan::Shape shape;

  DR_HD explicit CutBy(const TableInput& in)
      : input(in), shape{in.decision.segment, in.decision.first, in.decision.ratio} {}
  DR_HD_CALL plan::Cut operator()(int32_t place, int32_t chunks) const {
    switch (input.rule) {
      case CutRule::kSearch:
        return place < input.decision.cut_seqs ? plan::balanced_cut(chunks, shape) : plan::whole_cut(chunks);
      case CutRule::kCount:
        return plan::count_cut(chunks, input.value);
      case CutRule::kLength:
        return plan::length_cut(chunks, input.value);
      case CutRule::kPolicy: {
        const PolicyCut& cut = input.policy[input.space.keys[place].sequence];
        if (cut.pieces < 2) return plan::whole_cut(chunks);
        const int64_t each = plan::min_of(plan::ceil_div(cut.tokens, input.chunk), kMostChunks);
        return plan::length_cut(chunks, static_cast<int32_t>(each),
                                static_cast<int32_t>(plan::min_of(cut.pieces, kMostChunks)));
      }
      default:
        return plan::whole_cut(chunks);
    }
  }
};

// Chunks of a sequence that have all their tokens.
struct FullChunks {
  const TableInput& input;
  DR_HD int64_t operator()(int32_t sequence) const { return input.sequences.length(sequence) / input.chunk; }
};

}  // namespace deltarelay
