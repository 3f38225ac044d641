// DR_CHUNK_LOCAL: what a chunk has without its state.
#if defined(DELTARELAY_CPU_STAGES_LOCAL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTARELAY_CPU_STAGES_LOCAL_INL_H_
#undef DELTARELAY_CPU_STAGES_LOCAL_INL_H_
#else
#define DELTARELAY_CPU_STAGES_LOCAL_INL_H_
#endif

#include <cmath>
#include <limits>

#include "kernels/cpu/stages/chunk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltarelay::cpu::HWY_NAMESPACE {
namespace {  // internal linkage: several translation units compile this file with different instructions
namespace hn = hwy::HWY_NAMESPACE;

// Logarithms of decays. A decay below 0 is outside the contract and reads as 0.
HWY_INLINE Vec log_of(Vec x) {
  const F32 d;
  alignas(64) float lanes[kLanes];
  hn::Store(x, d, lanes);
  for (float& lane : lanes) lane = lane < 0.0f ? -std::numeric_limits<float>::infinity() : std::log(lane);
  return hn::Load(d, lanes);
}

// Sums of log-decays from the chunk's start up to and including each token. They are stored and not used: all decays
// come from single gates.
inline void store_sums(const StageArgs& args, const StageChunk& chunk, const StageInputs& inputs, int32_t tokens,
                       const StageScratch& s) {
  const Problem& problem = args.problem;
  const int32_t columns = gate_columns(problem), padded = padded_gates(problem);
  const HeadInputs& in = inputs.in;
  for (int32_t t = 0; t < tokens; ++t) {
    load_row(at(in.g, in.dtype_g, t * in.layout_g), in.dtype_g, columns, s.sums + t * padded);
    std::fill(s.sums + t * padded + columns, s.sums + (t + 1) * padded, 0.0f);
  }
  with_gate_kind(inputs.gate, [&]<GateForm kForm, bool kFloor>(GateKind<kForm, kFloor>) HWY_ATTR {
    const F32 d;
    const Vec to_base = hn::Set(d, 1.0f / natural_of(problem.chunks));
    for (int32_t c = 0; c < padded; c += kLanes) {
      Vec sum = hn::Zero(d);
      for (int32_t t = 0; t < tokens; ++t) {
        float* at_token = s.sums + t * padded + c;
        const Vec x = log_decay<kForm, kFloor>(inputs.gate, hn::LoadU(d, at_token), c);
        sum = hn::Add(sum, kForm == GateForm::kLinear ? log_of(x) : x);
        hn::StoreU(hn::Mul(sum, to_base), d, at_token);
      }
    }
  });
  void* const to = args.tensors.intermediates->gate_sums;
  const HeadRows<void*> rows = rows_of(args, chunk, to, columns, DType::kFp32);
  for (int32_t t = 0; t < tokens; ++t)
    store_row(s.sums + t * padded, columns, at(rows.base, rows.type, t * rows.stride), rows.type);
}

// Leaves T as a left operand in s.triangle. `operands` of a prepared chunk, unless T is given.
inline void take_inverse(const StageArgs& args, const StageChunk& chunk, int32_t tokens, const StageScratch& s) {
  const Chunks& chunks = args.problem.chunks;
  if (chunks.gives(DR_INVERSE)) {
    const void* const inverse = args.tensors.intermediates->inverse;
    load_triangle(rows_of(args, chunk, inverse, chunks.chunk), tokens, chunks.chunk, s.square);
  } else {
    invert(s.operands.minus_akk, tokens, chunks.chunk, s.square);
  }
  pack_panels(s.square, chunks.chunk, chunks.chunk, 1.0f, s.triangle);
}

// W in panels, in place of beta k_from_start.
inline void solve_keys(const Problem& problem, int32_t tokens, const StageScratch& s) {
  const int32_t chunk = problem.chunks.chunk;
  for (int32_t c = 0; c < problem.dk; c += kCols) apply_inverse(s.triangle, tokens, chunk, s.keys + int64_t{c} * chunk);
}

inline void store_solved(const StageArgs& args, const StageChunk& chunk, int32_t tokens, const StageScratch& s) {
  const Problem& problem = args.problem;
  const Chunks& chunks = problem.chunks;
  const dr_intermediates& to = *args.tensors.intermediates;
  take_inverse(args, chunk, tokens, s);
  if (chunks.wants(DR_INVERSE))
    store_triangle(s.triangle, 1.0f, tokens, chunks.chunk, rows_of(args, chunk, to.inverse, chunks.chunk));
  if (chunks.wants(DR_W)) {
    solve_keys(problem, tokens, s);
    store_panels(s.keys, problem.dk, tokens, chunks.chunk, rows_of(args, chunk, to.w, problem.dk));
  }
  if (!chunks.wants(DR_U)) return;
  const HeadRows<const void*> v = rows_of(args, chunk, args.tensors.v, problem.dtype, problem.v, chunk.head);
  for (int32_t c = 0; c < problem.dv; c += kCols) {
    values_of_panel(v, c, args, s, tokens);
    store_columns(s.values, c, problem.dv, tokens, rows_of(args, chunk, to.u, problem.dv));
  }
}

inline void chunk_local(const StageArgs& args, const StageChunk& chunk, int32_t tokens, const StageScratch& s) {
  const Problem& problem = args.problem;
  const Chunks& chunks = problem.chunks;
  const dr_intermediates& to = *args.tensors.intermediates;
  const int32_t channels = padded_channels(problem.dk);
  const StageInputs inputs = stage_inputs(args, chunk, tokens, s);
  const bool solves = chunks.wants(DR_INVERSE | DR_W | DR_U);
  StageWants wants;
  wants.scores = chunks.wants(DR_AQK) || (solves && !chunks.gives(DR_INVERSE));
  wants.columns = chunks.wants(DR_K_TO_END);
  if (chunks.wants(DR_W)) wants.keys = s.keys;
  if (chunks.wants(DR_Q_FROM_START)) wants.queries = s.queries;
  if (wants.scores || wants.columns || wants.keys != nullptr || wants.queries != nullptr)
    prepare_stage(args, inputs, tokens, s, wants);
  else if (solves)  // U from a given inverse
    with_tokens(chunks.chunk, [&]<int32_t kTokens>(std::integral_constant<int32_t, kTokens>) HWY_ATTR {
      load_betas<kTokens>(problem, inputs.in, {0, tokens, channels}, s.operands.beta);
    });

  if (chunks.wants(DR_GATE_SUMS)) store_sums(args, chunk, inputs, tokens, s);
  if (chunks.wants(DR_AQK))
    store_triangle(s.operands.aqk, problem.scale, tokens, chunks.chunk, rows_of(args, chunk, to.aqk, chunks.chunk));
  if (chunks.wants(DR_K_TO_END)) {
    const HeadRows<void*> rows = rows_of(args, chunk, to.k_to_end, problem.dk);
    for (int32_t t = 0; t < tokens; ++t)
      store_row(s.operands.k_to_end + t * channels, problem.dk, at(rows.base, rows.type, t * rows.stride), rows.type);
  }
  if (chunks.wants(DR_Q_FROM_START))
    store_panels(s.queries, problem.dk, tokens, chunks.chunk, rows_of(args, chunk, to.q_from_start, problem.dk));
  if (solves) store_solved(args, chunk, tokens, s);
}

}  // namespace
}  // namespace deltarelay::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
