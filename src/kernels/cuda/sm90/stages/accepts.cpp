// Which stages cuda-sm90 takes.
#include "kernels/cuda/sm90/accepts.h"

#include <cstdint>
#include <string>

#include "kernels/cuda/decline.h"
#include "kernels/cuda/sm90/record.h"

namespace deltarelay::cuda::sm90 {
namespace {

constexpr int32_t kStageChunk = 64;

// Types and sizes of the contiguous tensors that TMA copies.
std::string decline_chunks(const Problem& p) {
  const Chunks& c = p.chunks;
  if (c.chunk != kStageChunk) return found("chunks.chunk", std::to_string(kStageChunk), std::to_string(c.chunk));
  if (c.dtype != p.dtype) return found("chunks.dtype", std::string(name_of(p.dtype)) + " as dtype", name_of(c.dtype));
  if (c.dtype_states != c.dtype && (c.wants(DR_STATES) || c.gives(DR_STATES)))
    return found("chunks.dtype_states", std::string(name_of(c.dtype)) + " as chunks.dtype", name_of(c.dtype_states));
  if (p.num_tokens > kMapCoordinates)
    return found("num_tokens", "at most " + std::to_string(kMapCoordinates), std::to_string(p.num_tokens));
  if (int64_t{p.heads_v} * strips(p) > kMapCoordinates / 2)
    return found("heads_v", "at most " + std::to_string(kMapCoordinates / 2 / strips(p)) + " with this dv",
                 std::to_string(p.heads_v));
  return {};
}

std::string decline_tensor(const char* name, const Strides& strides, int64_t alignment, DType dtype) {
  if (alignment < kMapBytes)
    return found(std::string("layout_") + name + ".alignment_bytes", "at least " + std::to_string(kMapBytes),
                 std::to_string(alignment));
  return decline_strides(name, strides, dtype);
}

// DR_STATE_PASS and DR_SUMMARY.
std::string decline_pass(const Problem& p) {
  const Chunks& c = p.chunks;
  if (!c.gives(DR_W | DR_U)) return found("chunks.given", "W and U", "neither (a summary from k, v, g, beta)");
  if (c.gives(DR_K_TO_END)) return {};
  if (p.rule == Rule::kKda) return found("chunks.given", "K_TO_END too (a gate per channel)", "k and gates");
  if (p.l2norm) return found("l2norm", "0 where k is read (K_TO_END is not given)", "1");
  return decline_tensor("k", p.k, p.alignment.k, p.dtype);
}

// A CTA for each chunk and strip, or for each chunk and head.
std::string decline_ctas(const Problem& p) {
  const int64_t ctas = p.chunk_rows(p.num_tokens, p.num_seqs) * p.heads_v * strips(p);
  if (ctas <= kMapCoordinates) return {};
  return found("num_tokens", "at most " + std::to_string(kMapCoordinates) + " chunks of all heads",
               std::to_string(ctas));
}

std::string decline_outputs(const Problem& p) {
  const Chunks& c = p.chunks;
  const bool reads_q = !c.gives(DR_Q_FROM_START), reads_k = !c.gives(DR_AQK);
  if (p.rule == Rule::kKda && (reads_q || reads_k))
    return found("chunks.given", "Q_FROM_START and AQK too (a gate per channel)", reads_q ? "q" : "k");
  if (reads_k && !reads_q) return found("chunks.given", "AQK too, with Q_FROM_START", "k");
  if (p.l2norm && reads_q) return found("l2norm", "0 where q is read (Q_FROM_START is not given)", "1");
  if (p.dtype_o != p.dtype) return found("dtype_o", std::string(name_of(p.dtype)) + " as dtype", name_of(p.dtype_o));
  if (strips(p) > 1 && p.heads_v > 1 && p.o.head != p.dv)
    return found("layout_o.head", std::to_string(p.dv) + " (heads side by side, needed for dv above 128)",
                 std::to_string(p.o.head));
  std::string reason = decline_ctas(p);
  if (reason.empty()) reason = decline_tensor("o", p.o, p.alignment.o, p.dtype);
  if (reason.empty() && reads_q) reason = decline_tensor("q", p.q, p.alignment.q, p.dtype);
  if (reason.empty() && reads_k) reason = decline_tensor("k", p.k, p.alignment.k, p.dtype);
  return reason;
}

std::string decline_chunk_local(const Problem& p) {
  const Reads reads = p.reads();
  std::string reason = decline_ctas(p);
  if (reason.empty() && reads.k) reason = decline_tensor("k", p.k, p.alignment.k, p.dtype);
  if (reason.empty() && reads.q) reason = decline_tensor("q", p.q, p.alignment.q, p.dtype);
  if (reason.empty() && reads.v) reason = decline_tensor("v", p.v, p.alignment.v, p.dtype);
  return reason;
}

}  // namespace

std::string decline_stage_of(const Problem& p) {
  std::string reason = decline_chunks(p);
  if (!reason.empty()) return reason;
  if (p.op == Op::kStatePass || p.op == Op::kSummary) return decline_pass(p);
  if (p.op == Op::kOutputs) return decline_outputs(p);
  if (p.op == Op::kChunkLocal) return decline_chunk_local(p);
  return found("op", "any other stage", name_of(p.op));
}

}  // namespace deltarelay::cuda::sm90
