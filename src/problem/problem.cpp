#include "problem/problem.h"

#include <limits>

namespace deltarelay {

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
