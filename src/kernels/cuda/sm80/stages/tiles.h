// Sizes of the kernels of the stages, in plain C++: plans ask for them, and the kernels are compiled with them.
#pragma once
#include <cstdint>

#include "kernels/cuda/sm80/record.h"

namespace deltarelay::cuda::sm80 {

constexpr int32_t kStageThreads = 128;
constexpr int32_t kStageTokens = 64;  // of the longest chunk
constexpr int32_t kBlock = 16;        // tokens of a block. A warp has one
constexpr int32_t kSlab = 32;         // columns that are taken at once
constexpr int32_t kPassSlab = 64;     // columns of W, U and the keys that a pass takes at once
constexpr int32_t kPassColumns = 64;  // value columns, or columns of M, that a CTA of a pass walks

// A chain: columns that one thread folds, and a CTA.
constexpr int32_t kChainThreads = 256, kChainEach = 8;
constexpr int32_t chain_lanes(int32_t dk) { return dk <= 128 ? 128 : 256; }  // threads that share a column
constexpr int32_t chain_columns(int32_t dk) { return kChainEach * (kChainThreads / chain_lanes(dk)); }

// Tiles of a chain: of its states, and of its composed summary, which has DV + DK columns.
struct ChainTiles {
  int32_t states, composed;
  constexpr int32_t all() const { return states + composed; }
};
constexpr ChainTiles chain_tiles(int32_t dk, int32_t dv, bool states, bool composed) {
  return {states ? tiles_of(dv, chain_columns(dk)) : 0, composed ? tiles_of(dv + dk, chain_columns(dk)) : 0};
}

// Tiles of a row of a pass. `summarizes`: rows to summarize have tiles of M too.
constexpr int32_t pass_tiles(int32_t dk, int32_t dv, bool summarizes) {
  return tiles_of(dv, kPassColumns) + (summarizes ? tiles_of(dk, kPassColumns) : 0);
}

}  // namespace deltarelay::cuda::sm80
