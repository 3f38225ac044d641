// What the programs of KDA's fused walk share: the gates and strengths of a walk, and a call that reads them.
#pragma once
#include "kernels/cuda/args.h"
#include "walk.cuh"

namespace deltarelay::alone {

constexpr int64_t kChannels = cuda::sm90::kWidth;

struct KdaGates {
  explicit KdaGates(const Walk& walk)
      : raw(walk.per_token_head() * kChannels),
        strengths(walk.per_token_head()),
        a_log(walk.shape().heads_v),
        bias(static_cast<size_t>(walk.shape().heads_v) * kChannels) {
    strengths.fill(Fill::kNormal, 6);
  }

  cuda::Activation activation(const Walk& walk, GateForm form) const {
    cuda::Activation of{};
    of.g = walk.view(raw.data(), kChannels);
    of.beta = walk.view(strengths.data(), 1);
    of.a_log = a_log.data();
    of.dt_bias = bias.data();
    of.dtype_a_log = of.dtype_dt_bias = DType::kFp32;
    of.gate_form = form;
    of.beta_form = BetaForm::kLogit;
    of.scale = 0.08838835f;
    of.l2norm = true;
    return of;
  }

  Array<Element> raw, strengths;
  Array<float> a_log, bias;
};

}  // namespace deltarelay::alone
