#include "kernels/cuda/sm90/accepts.h"

#include <string>

#include "kernels/cuda/args.h"
#include "kernels/cuda/decline.h"
#include "kernels/cuda/sm90/record.h"

namespace deltarelay::cuda::sm90 {
namespace {

constexpr int32_t kMostStrips = kMaxValueWidth / kWidth;

std::string decline_device(const Request& request) {
  std::string reason = decline_request(request);
  if (reason.empty()) reason = decline_math(request);
  if (reason.empty() && request.compute_capability != 90)
    reason = found("compute capability", "9.0", capability_text(request.compute_capability));
  return reason;
}

std::string decline_stride(const char* tensor, const char* axis, int64_t stride, DType dtype) {
  const auto element = static_cast<int64_t>(size_of(dtype));
  const int64_t piece = kMapBytes / element, limit = kMapStrideBytes / element;
  if (stride % piece == 0 && stride < limit) return {};
  return found(std::string("layout_") + tensor + "." + axis,
               "a multiple of " + std::to_string(piece) + " elements below " + std::to_string(limit),
               std::to_string(stride));
}

// All strips are one axis of a tensor map, and an axis has one stride: the heads must lie side by side.
std::string decline_head_stride(const char* tensor, const Problem& p, const Strides& s) {
  if (strips(p) == 1 || p.heads_v == 1 || s.head == p.dv) return {};
  return found(std::string("layout_") + tensor + ".head",
               std::to_string(p.dv) + " (heads side by side, needed for dv above " + std::to_string(kWidth) + ")",
               std::to_string(s.head));
}

std::string decline_tensors(const Problem& p) {
  const struct {
    const char* name;
    const Strides& strides;
    int64_t alignment;
  } tensors[] = {
      {"q", p.q, p.alignment.q}, {"k", p.k, p.alignment.k}, {"v", p.v, p.alignment.v}, {"o", p.o, p.alignment.o}};
  for (const auto& tensor : tensors) {
    if (tensor.alignment < kMapBytes) {
      return found(std::string("layout_") + tensor.name + ".alignment_bytes", "at least " + std::to_string(kMapBytes),
                   std::to_string(tensor.alignment));
    }
    std::string reason = decline_strides(tensor.name, tensor.strides, p.dtype);
    if (!reason.empty()) return reason;
  }
  if (int64_t{p.heads_v} * strips(p) > kMapCoordinates) {
    return found("heads_v", "at most " + std::to_string(kMapCoordinates / strips(p)) + " with this dv",
                 std::to_string(p.heads_v));
  }
  std::string reason = decline_head_stride("v", p, p.v);
  if (reason.empty()) reason = decline_head_stride("o", p, p.o);
  if (!reason.empty()) return reason;
  if (p.num_tokens > kMapCoordinates) {
    return found("num_tokens", "at most " + std::to_string(kMapCoordinates), std::to_string(p.num_tokens));
  }
  return {};
}

}  // namespace

std::string decline_strides(const char* tensor, const Strides& s, DType dtype) {
  std::string reason = decline_stride(tensor, "token", s.token, dtype);
  if (reason.empty()) reason = decline_stride(tensor, "head", s.head, dtype);
  if (reason.empty()) reason = decline_stride(tensor, "sequence", s.sequence, dtype);
  return reason;
}

std::string decline_way(const Problem& p, const std::string& name) {
  for (int32_t way = 0; way < kNumWays; ++way) {
    if (name == kWayNames[way] && takes_way(p, way)) return {};
  }
  return found("variant", takes_way(p, kFused) ? "fused or prepared" : "prepared, with these gates", name);
}

std::string decline(const Problem& p, const Request& request) {
  std::string reason = decline_device(request);
  if (reason.empty()) reason = is_stage(p.op) ? decline_stage(p, request) : decline_operation(p);
  if (!reason.empty()) return reason;
  if (p.dk != kWidth) return found("dk", std::to_string(kWidth), std::to_string(p.dk));
  if (p.dv % kWidth != 0 || p.dv > kMostStrips * kWidth) {
    return found("dv", "a multiple of " + std::to_string(kWidth) + " up to " + std::to_string(kMostStrips * kWidth),
                 std::to_string(p.dv));
  }
  if (p.dtype != DType::kBf16 && p.dtype != DType::kFp16) return found("dtype", "bf16 or fp16", name_of(p.dtype));
  if (is_stage(p.op)) return decline_stage_of(p);
  if (p.dtype_o != p.dtype) return found("dtype_o", std::string(name_of(p.dtype)) + " as dtype", name_of(p.dtype_o));
  std::string unfit = decline_tensors(p);
  return unfit.empty() && request.variant != nullptr ? decline_way(p, request.variant) : unfit;
}

bool takes_way(const Problem& p, int32_t way) {
  if (way == kPrepared) return true;
  if (p.rule == Rule::kGdn) return true;
  // The gate is an operand of TMA there.
  if (p.alignment.g < kMapBytes || !decline_strides("g", p.g, p.dtype_gate).empty()) return false;
  // fp16 holds only what is in the frames of the chunk's ends, so scores need that of the middle (fused/kda/ends.cuh).
  if (p.dtype == DType::kFp16) return p.dtype_gate == DType::kFp16 && in_mid_frame(p);
  // Of gates in fp32, only forms that callers use have kernels.
  const bool wide = p.dtype_gate == DType::kFp32 &&
                    (in_mid_frame(p) || p.gate_form == GateForm::kLog || p.gate_form == GateForm::kRawSoftplus);
  return wide || p.dtype_gate == DType::kBf16;
}

bool in_mid_frame(const Problem& p) { return p.least_gate() >= kMidFrameGate && p.gate_form != GateForm::kLinear; }

}  // namespace deltarelay::cuda::sm90
