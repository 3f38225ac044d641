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

}  // namespace deltarelay
