#include "kernels/reference/stage_scratch.h"

#include <algorithm>

#include "kernels/reference/panels.h"

namespace deltarelay::reference {
namespace {

// Columns of the state that a work item may hold at once.
int32_t state_columns(const Problem& p) {
  switch (p.op) {
    case Op::kStatePass:
      return p.dv;
    case Op::kSummary:
    case Op::kCarry:
      return p.dv + p.dk;
    case Op::kOutputs:
      return kPanel;
    default:
      return 0;
  }
}

}  // namespace

StageScratch::StageScratch(const Problem& p, std::byte* memory) {
  size_t doubles = 0;
  const auto take = [&doubles, memory](int64_t height, int64_t width) -> double* {
    const size_t first = doubles;
    doubles += static_cast<size_t>(height * width);
    return memory == nullptr ? nullptr : reinterpret_cast<double*>(memory) + first;
  };
  const int64_t chunk = p.chunks.chunk;
  const int64_t dk = p.dk;
  const int64_t gates = p.rule == Rule::kKda ? dk : 1;
  q = take(chunk, dk);
  k = take(chunk, dk);
  beta = take(chunk, 1);
  for (double** log : {&sum, &step, &rest}) *log = take(chunk, gates);
  decay = take(dk, 1);
  keys = take(dk, chunk);
  for (double** square : {&kk, &aqk, &inverse}) *square = take(chunk, chunk);
  w = take(chunk, dk);
  k_to_end = take(chunk, dk);
  q_from_start = take(chunk, dk);
  rows = take(chunk, std::max<int64_t>(dk, kPanel));
  values = take(chunk, kPanel);
  state = take(panels_of(state_columns(p)) * dk, kPanel);
  if (p.op == Op::kCarry) {
    next = take(dk, kPanel);
    transition = take(dk, dk);
  }
  bytes = round_up(doubles * sizeof(double), kWorkspaceAlignment);
}

}  // namespace deltarelay::reference
