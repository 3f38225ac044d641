// From a chunk of the call to its sequence and tokens.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"

namespace deltarelay::cuda {

struct ChunkPlace {
  int sequence;
  int sequence_at;  // batched: the sequence; packed: 0
  int64_t token;    // first token: row of the packed tensor, or of the sequence
  int valid;        // tokens of the chunk that exist, 1 .. chunk_tokens
};

// `chunk_begin(n)` and `token_begin(n)` read the tables. Returns false if the call has fewer chunks than the grid. An
// empty sequence owns no chunk.
template <class ChunkBegin, class TokenBegin>
__device__ __forceinline__ bool find_chunk(const Tables& tables, const ChunkBegin& chunk_begin,
                                           const TokenBegin& token_begin, int chunk, int chunk_tokens,
                                           ChunkPlace& place) {
  int low = 0, high = static_cast<int>(tables.num_seqs);  // finds the last sequence that begins at or before the chunk
  if (chunk >= chunk_begin(high)) return false;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (chunk_begin(middle) <= chunk)
      low = middle;
    else
      high = middle;
  }
  const int64_t begin = token_begin(low), length = token_begin(low + 1) - begin;
  const int64_t offset = static_cast<int64_t>(chunk - chunk_begin(low)) * chunk_tokens;
  place.sequence = low;
  place.sequence_at = tables.batched ? low : 0;
  place.token = (tables.batched ? 0 : begin) + offset;
  place.valid = static_cast<int>(length - offset < chunk_tokens ? length - offset : chunk_tokens);
  return true;
}
__device__ __forceinline__ bool find_chunk(const Tables& tables, int chunk, int chunk_tokens, ChunkPlace& place) {
  return find_chunk(
      tables, [&](int n) { return tables.chunk_begin()[n]; }, [&](int n) { return tables.token_begin()[n]; }, chunk,
      chunk_tokens, place);
}

// The same for `tables` in the parameters of the kernel itself (__grid_constant__). A small table travels there; read
// without a pointer it comes from constant memory.
__device__ __forceinline__ bool find_chunk_in_parameters(const Tables& tables, int chunk, int chunk_tokens,
                                                         ChunkPlace& place) {
  if (tables.memory != nullptr) return find_chunk(tables, chunk, chunk_tokens, place);
  const auto chunk_begin = [&](int n) {
    return *reinterpret_cast<const int32_t*>(&tables.image[tables.at_chunk_begin + sizeof(int32_t) * n]);
  };
  const auto token_begin = [&](int n) {
    return *reinterpret_cast<const int64_t*>(&tables.image[tables.at_token_begin + sizeof(int64_t) * n]);
  };
  return find_chunk(tables, chunk_begin, token_begin, chunk, chunk_tokens, place);
}

}  // namespace deltarelay::cuda
