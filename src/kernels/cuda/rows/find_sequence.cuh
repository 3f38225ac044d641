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

// Returns false if the call has fewer chunks than the grid. An empty sequence owns no chunk.
__device__ __forceinline__ bool find_chunk(const Tables& tables, int chunk, int chunk_tokens, ChunkPlace& place) {
  int low = 0, high = static_cast<int>(tables.num_seqs);  // finds the last sequence that begins at or before the chunk
  if (chunk >= tables.chunk_begin()[high]) return false;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (tables.chunk_begin()[middle] <= chunk)
      low = middle;
    else
      high = middle;
  }
  const int64_t begin = tables.token_begin()[low], length = tables.token_begin()[low + 1] - begin;
  const int64_t offset = static_cast<int64_t>(chunk - tables.chunk_begin()[low]) * chunk_tokens;
  place.sequence = low;
  place.sequence_at = tables.batched ? low : 0;
  place.token = (tables.batched ? 0 : begin) + offset;
  place.valid = static_cast<int>(length - offset < chunk_tokens ? length - offset : chunk_tokens);
  return true;
}

}  // namespace deltarelay::cuda
