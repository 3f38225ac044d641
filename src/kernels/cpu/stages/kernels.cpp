// The stages, compiled once per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/stages/kernels.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target, as Highway requires.
#include "hwy/highway.h"
#include "kernels/cpu/stages/chain-inl.h"
#include "kernels/cpu/stages/local-inl.h"
#include "kernels/cpu/stages/outputs-inl.h"
#include "kernels/cpu/stages/segment-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltarelay::cpu::HWY_NAMESPACE {
namespace {

size_t stage_scratch_bytes(const Problem& problem, int32_t panels) {
  Carver carver(nullptr);
  if (problem.op == Op::kCarry)
    carve_chain(problem, panels, carver);
  else
    carve_stage(problem, panels, carver);
  return carver.used();
}

void run_chunk(const StageArgs& args, const StageChunk& chunk, std::byte* memory) {
  const Problem& problem = args.problem;
  Carver carver(memory);
  const StageScratch s = carve_stage(problem, 1, carver);
  const auto tokens = static_cast<int32_t>(
      std::min<int64_t>(problem.chunks.chunk, args.sequences.length(chunk.sequence) - chunk.begin));
  if (problem.op == Op::kChunkLocal)
    chunk_local(args, chunk, tokens, s);
  else
    chunk_outputs(args, chunk, tokens, s);
}

}  // namespace

// One for every target; the Kernels of the target refer to it.
extern const StageKernels kStageKernels;
const StageKernels kStageKernels{stage_scratch_bytes, run_chunk, run_segment, run_chain};

}  // namespace deltarelay::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
