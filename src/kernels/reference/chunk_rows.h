// Which chunk of which sequence a row of the stages is. Rows lie in sequence order.
#pragma once
#include <algorithm>
#include <cstdint>

#include "problem/problem.h"

namespace deltarelay::reference {

// Row of the first token of sequence n in tensors without gaps; for n = num_seqs the row behind the last token.
inline int64_t first_token(const Sequences& sequences, int64_t n) {
  return sequences.seq_len > 0 ? n * sequences.seq_len : sequences.offsets[n];
}

// Tokens [begin, begin + count) of a sequence.
struct Chunk {
  int64_t row;
  int64_t sequence;
  int64_t begin;
  int32_t count;
};

// A cursor: rows and sequences that are asked for in order cost one walk over the sequences, and no table is needed.
class ChunkRows {
 public:
  ChunkRows(const Sequences& sequences, int32_t chunk) : sequences_(sequences), chunk_(chunk) {}

  // Chunks of all sequences.
  static int64_t count(const Sequences& sequences, int32_t chunk) {
    ChunkRows rows(sequences, chunk);
    return rows.first(sequences.num_seqs);
  }

  // Row of the first chunk of a sequence.
  int64_t first(int64_t sequence) {
    if (sequence < sequence_) sequence_ = first_ = 0;
    while (sequence_ < sequence) next();
    return first_;
  }

  // The chunk of a row below count().
  Chunk at(int64_t row) {
    if (row < first_) sequence_ = first_ = 0;
    while (row - first_ >= chunks(sequence_)) next();
    return chunk(row - first_);
  }

  int64_t chunks(int64_t sequence) const { return (sequences_.length(sequence) + chunk_ - 1) / chunk_; }
  // Chunk `index` of the sequence that first() or at() found last.
  Chunk chunk(int64_t index) const {
    const int64_t begin = index * chunk_;
    const int64_t rest = sequences_.length(sequence_) - begin;
    return {first_ + index, sequence_, begin, static_cast<int32_t>(std::min<int64_t>(chunk_, rest))};
  }

 private:
  void next() { first_ += chunks(sequence_++); }

  const Sequences sequences_;
  const int32_t chunk_;
  int64_t sequence_ = 0;
  int64_t first_ = 0;
};

}  // namespace deltarelay::reference
