#include "problem/problem.h"

#include <algorithm>
#include <limits>

namespace deltarelay {

Reads Problem::reads() const {
  const Chunks& c = chunks;
  switch (op) {
    case Op::kChunkLocal: {
      // U of a given inverse is the only result without a decay.
      const bool decays = (c.wanted & ~DR_U) != 0 || !c.gives(DR_INVERSE);
      return {.q = c.wants(DR_AQK | DR_Q_FROM_START),
              .k = c.wants(DR_AQK | DR_INVERSE | DR_W | DR_K_TO_END) || (c.wants(DR_U) && !c.gives(DR_INVERSE)),
              .v = c.wants(DR_U),
              .g = decays && !c.gives(DR_GATE_SUMS),
              .beta = c.wants(DR_INVERSE | DR_W | DR_U)};
    }
    case Op::kStatePass:
      return {.q = false, .k = !c.gives(DR_K_TO_END), .v = false, .g = !c.gives(DR_GATE_SUMS), .beta = false};
    case Op::kOutputs: {
      const bool scored = c.gives(DR_AQK), decayed = scored && c.gives(DR_Q_FROM_START);
      return {.q = !decayed, .k = !scored, .v = false, .g = !decayed && !c.gives(DR_GATE_SUMS), .beta = false};
    }
    case Op::kSummary: {
      const bool solved = c.gives(DR_W);
      return {.q = false, .k = !c.gives(DR_K_TO_END), .v = !solved, .g = !c.gives(DR_GATE_SUMS), .beta = !solved};
    }
    case Op::kCarry:
      return {.q = false, .k = false, .v = false, .g = false, .beta = false};
    default:
      return {};
  }
}

int64_t Problem::chunk_rows(int64_t tokens, int64_t sequences) const {
  const int64_t chunk = chunks.chunk;
  if (chunk == 0) return 0;
  const auto chunks_in = [chunk](int64_t length) { return (length + chunk - 1) / chunk; };
  if (batched()) return sequences * chunks_in(seq_len);
  if (!lengths_known) return std::min(tokens, tokens / chunk + sequences);
  int64_t rows = 0;
  for (int64_t n = 0; n < num_seqs; ++n) rows += chunks_in(length(n));
  return rows;
}

float Problem::least_gate() const {
  constexpr float kUnbounded = -std::numeric_limits<float>::infinity();
  switch (gate_form) {
    case GateForm::kLog:
    case GateForm::kLinear:
      return gate_floor < 0.0f ? gate_floor : kUnbounded;
    case GateForm::kRawSoftplus:
      return kUnbounded;
    case GateForm::kRawBounded:
      return lower_bound;  // times a sigmoid, which never exceeds 1
  }
  return kUnbounded;
}

int64_t Problem::checkpoint_rows(int64_t length) const {
  switch (checkpoints) {
    case Checkpoints::kEvery:
      return length / checkpoint_every;
    case Checkpoints::kChunks:
      return (length + kCheckpointChunk - 1) / kCheckpointChunk;
    case Checkpoints::kList:
      return length / kCheckpointAlignment;
    case Checkpoints::kNone:
      break;
  }
  return 0;
}

int64_t Problem::checkpoint_rows() const {
  if (!lengths_known) {
    const int64_t ragged =
        checkpoints == Checkpoints::kChunks ? num_seqs : 0;  // each sequence may end in a short chunk
    return checkpoint_rows(num_tokens) + ragged;
  }
  if (batched()) return num_seqs * checkpoint_rows(seq_len);
  int64_t rows = 0;
  for (int64_t n = 0; n < num_seqs; ++n) rows += checkpoint_rows(length(n));
  return rows;
}

bool Problem::checkpoints_inside(int64_t chunk) const {
  return checkpoints == Checkpoints::kList || (checkpoints == Checkpoints::kEvery && checkpoint_every % chunk != 0);
}

}  // namespace deltarelay
