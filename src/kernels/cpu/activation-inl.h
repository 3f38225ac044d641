// Elementary functions on vectors, and the activations that turn raw gates and betas into decays and write strengths.
#if defined(DELTARELAY_CPU_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTARELAY_CPU_ACTIVATION_INL_H_
#undef DELTARELAY_CPU_ACTIVATION_INL_H_
#else
#define DELTARELAY_CPU_ACTIVATION_INL_H_
#endif

#include "kernels/cpu/convert-inl.h"
#include "kernels/cpu/micro_kernel-inl.h"
#include "problem/problem.h"

HWY_BEFORE_NAMESPACE();
namespace deltarelay::cpu::HWY_NAMESPACE {
namespace {  // internal linkage: several translation units compile this file with different instructions
namespace hn = hwy::HWY_NAMESPACE;

// exp(x) = 2^n 2^r, with n the integer nearest to x / ln 2. The relative error is below 1e-7 (1 + |x|): r carries the
// round-off of x / ln 2, which matters less as exp(x) gets smaller. Below -87.3, -inf included, the result is exactly 0
// (the true value is under 2^-126, and a decay that small forgets). NaN stays NaN. Above 88 the result is any number or
// NaN: such gates are outside the contract and must only not fault.
template <int32_t kCount>
HWY_INLINE void exp_of(Vec (&x)[kCount]) {  // several vectors, to hide the latency of a chain of twelve operations
  const F32 d;
  // 2^r for |r| <= 1/2: the polynomial of degree 6 with the smallest maximal relative error, 1.9e-9.
  constexpr float kTerms[] = {
      1.53458124e-4f, 1.33999309e-3f, 9.61848907e-3f, 5.55032864e-2f, 2.40226462e-1f, 6.93147182e-1f, 1.0f};
  Vec n[kCount], r[kCount], p[kCount];
  DR_UNROLL
  for (int32_t i = 0; i < kCount; ++i) {
    const Vec y = hn::Mul(x[i], hn::Set(d, 1.44269504f));
    n[i] = hn::Round(y);
    r[i] = hn::Sub(y, n[i]);
    p[i] = hn::Set(d, kTerms[0]);
  }
  DR_UNROLL
  for (int32_t k = 1; k < 7; ++k) {
    const Vec term = hn::Set(d, kTerms[k]);
    DR_UNROLL
    for (int32_t i = 0; i < kCount; ++i) p[i] = hn::MulAdd(p[i], r[i], term);
  }
  DR_UNROLL
  for (int32_t i = 0; i < kCount; ++i) {
#if HWY_TARGET <= HWY_AVX3  // one instruction scales by 2^n and keeps a NaN
    const Vec kept{_mm512_scalef_ps(p[i].raw, n[i].raw)};
#else
    const hn::RebindToSigned<F32> di;
    const hn::RebindToUnsigned<F32> du;
    // Unsigned, because lanes that are dropped below may wrap.
    const auto exponent = hn::BitCast(du, hn::ShiftLeft<23>(hn::ConvertTo(di, n[i])));
    const auto scaled = hn::Add(hn::BitCast(du, p[i]), exponent);
#if HWY_TARGET == HWY_NEON  // a NaN converts to 0 and so keeps its bits
    const Vec kept = hn::BitCast(d, scaled);
#else
    const Vec kept = hn::IfThenElse(hn::Eq(x[i], x[i]), hn::BitCast(d, scaled), x[i]);
#endif
#endif
    x[i] = hn::IfThenZeroElse(hn::Lt(x[i], hn::Set(d, -87.3f)), kept);
  }
}

HWY_INLINE Vec exp_of(Vec x) {
  Vec one[1] = {x};
  exp_of(one);
  return one[0];
}

HWY_INLINE Vec sigmoid_of(Vec x) {  // both branches use exp(-|x|) <= 1
  const F32 d;
  const Vec e = exp_of(hn::Neg(hn::Abs(x)));
  const Vec top = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, hn::Set(d, 1.0f));
  return hn::Div(top, hn::Add(e, hn::Set(d, 1.0f)));
}

// max(x, 0) + log(1 + e), e = exp(-|x|), with log(1 + e) = 2 atanh(s), s = e / (2 + e) <= 1/3: s^19 / 19 is below
// 1e-10.
HWY_INLINE Vec softplus_of(Vec x) {
  const F32 d;
  const Vec e = exp_of(hn::Neg(hn::Abs(x)));
  const Vec s = hn::Div(e, hn::Add(e, hn::Set(d, 2.0f)));
  const Vec s2 = hn::Mul(s, s);
  Vec p = hn::Set(d, 1.0f / 17);
  p = hn::MulAdd(p, s2, hn::Set(d, 1.0f / 15));
  p = hn::MulAdd(p, s2, hn::Set(d, 1.0f / 13));
  p = hn::MulAdd(p, s2, hn::Set(d, 1.0f / 11));
  p = hn::MulAdd(p, s2, hn::Set(d, 1.0f / 9));
  p = hn::MulAdd(p, s2, hn::Set(d, 1.0f / 7));
  p = hn::MulAdd(p, s2, hn::Set(d, 1.0f / 5));
  p = hn::MulAdd(p, s2, hn::Set(d, 1.0f / 3));
  p = hn::MulAdd(p, hn::Mul(s2, s), s);
  return hn::MulAdd(hn::Set(d, 2.0f), p, hn::Max(x, hn::Zero(d)));
}

// Parameters of a head's gate.
struct GateTerms {
  GateForm form;
  float factor;  // exp(a_log), or 1
  float lower_bound;
  float floor;        // smallest log-decay promised; -infinity if none
  float floor_decay;  // exp(floor)
  const float* bias;  // per channel, padded with zeros; nullptr: none
};

// Returns the log-decay of a gate input, or the decay itself for linear gates. Applies no floor.
template <GateForm kForm>
HWY_INLINE Vec raw_decay(const GateTerms& terms, Vec x, int32_t channel) {
  const F32 d;
  if constexpr (kForm == GateForm::kLog || kForm == GateForm::kLinear) return x;
  if (terms.bias != nullptr) x = hn::Add(x, hn::LoadU(d, terms.bias + channel));
  if constexpr (kForm == GateForm::kRawSoftplus) return hn::Mul(hn::Set(d, -terms.factor), softplus_of(x));
  return hn::Mul(hn::Set(d, terms.lower_bound), sigmoid_of(hn::Mul(x, hn::Set(d, terms.factor))));
}

// The same with the floor applied.
template <GateForm kForm, bool kFloor>
HWY_INLINE Vec log_decay(const GateTerms& terms, Vec x, int32_t channel) {
  const F32 d;
  const Vec raw = raw_decay<kForm>(terms, x, channel);
  if constexpr (!kFloor) return raw;
  const Vec floor = hn::Set(d, kForm == GateForm::kLinear ? terms.floor_decay : terms.floor);
  return hn::IfThenElse(hn::Lt(raw, floor), floor, raw);  // compare and select, because max may drop a NaN
}

// Turns rows of gate inputs into rows of decays (possibly in place), and `whole` into the decay over all rows.
//
// The decay of a whole chunk multiplies the state again and again. So it is computed from the sum of logarithms and
// rounded once: a product of 16 rounded decays would repeat the same rounding error in every chunk if the gate is
// constant. All other decays are products of decays, which need no difference of large sums and no positive exponent.
template <GateForm kForm, bool kFloor, class Number>
HWY_INLINE void activate_form(const GateTerms terms, const Number* inputs, int64_t stride, int32_t tokens,
                              int32_t channels, float* rows, float* HWY_RESTRICT whole) {
  const F32 d;
  const auto logs_of = [&](int32_t t, int32_t c)
                           HWY_ATTR { return log_decay<kForm, kFloor>(terms, load_lanes(inputs + t * stride + c), c); };
  constexpr int32_t kAtOnce = 4;
  for (int32_t c = 0; c < channels; c += kLanes) {
    Vec sum = hn::Zero(d);
    int32_t t = 0;
    for (; t + kAtOnce <= tokens; t += kAtOnce) {
      Vec x[kAtOnce];
      DR_UNROLL
      for (int32_t i = 0; i < kAtOnce; ++i) {
        x[i] = logs_of(t + i, c);
        sum = hn::Add(sum, x[i]);
      }
      if constexpr (kForm != GateForm::kLinear) exp_of(x);
      DR_UNROLL
      for (int32_t i = 0; i < kAtOnce; ++i) hn::StoreU(x[i], d, rows + (t + i) * channels + c);
    }
    for (; t < tokens; ++t) {
      const Vec x = logs_of(t, c);
      sum = hn::Add(sum, x);
      hn::StoreU(kForm == GateForm::kLinear ? x : exp_of(x), d, rows + t * channels + c);
    }
    if constexpr (kForm != GateForm::kLinear) hn::StoreU(exp_of(sum), d, whole + c);
  }
  if constexpr (kForm == GateForm::kLinear) {  // multiply given decays in double and round once
    for (int32_t c = 0; c < channels; ++c) {
      double product = 1.0;
      for (int32_t t = 0; t < tokens; ++t) product *= static_cast<double>(rows[t * channels + c]);
      whole[c] = static_cast<float>(product);
    }
  }
}

// GDN: one gate per token, tokens in lanes. Turns inputs[kTokens] into decays and returns the decay over the first
// `tokens`.
template <GateForm kForm, bool kFloor, int32_t kTokens>
HWY_INLINE float activate_tokens_form(const GateTerms terms, const float* inputs, int32_t tokens, float* decays) {
  const F32 d;
  constexpr int32_t kVectors = kTokens / kLanes;
  static_assert(kTokens % kLanes == 0);
  alignas(64) float logs[kTokens];
  Vec x[kVectors];
  DR_UNROLL
  for (int32_t i = 0; i < kVectors; ++i) {
    x[i] = log_decay<kForm, kFloor>(terms, hn::LoadU(d, inputs + i * kLanes), 0);
    hn::StoreU(x[i], d, logs + i * kLanes);
  }
  if constexpr (kForm != GateForm::kLinear) exp_of(x);
  DR_UNROLL
  for (int32_t i = 0; i < kVectors; ++i) hn::StoreU(x[i], d, decays + i * kLanes);
  if constexpr (kForm == GateForm::kLinear) {
    double product = 1.0;
    for (int32_t t = 0; t < tokens; ++t) product *= static_cast<double>(logs[t]);
    return static_cast<float>(product);
  }
  float sum = 0.0f;
  for (int32_t t = 0; t < tokens; ++t) sum += logs[t];
  return hn::GetLane(exp_of(hn::Set(d, sum)));
}

template <GateForm kForm, bool kFloor>
struct GateKind {};

// Calls body with the GateForm and floor of `terms` as compile-time constants.
template <class Body>
HWY_INLINE auto with_gate_kind(const GateTerms& terms, const Body& body) {
  switch (terms.form) {
    case GateForm::kLog:
      break;
    case GateForm::kLinear:
      return body(GateKind<GateForm::kLinear, true>());
    case GateForm::kRawSoftplus:
      return body(GateKind<GateForm::kRawSoftplus, false>());
    case GateForm::kRawBounded:
      return body(GateKind<GateForm::kRawBounded, false>());
  }
  return terms.floor_decay > 0.0f ? body(GateKind<GateForm::kLog, true>()) : body(GateKind<GateForm::kLog, false>());
}

template <class Number>
HWY_INLINE void activate_gates(const GateTerms& terms, const Number* inputs, int64_t stride, int32_t tokens,
                               int32_t channels, float* rows, float* HWY_RESTRICT whole) {
  with_gate_kind(terms, [&]<GateForm kForm, bool kFloor>(GateKind<kForm, kFloor>) HWY_ATTR {
    activate_form<kForm, kFloor>(terms, inputs, stride, tokens, channels, rows, whole);
  });
}

template <int32_t kTokens>
HWY_INLINE float activate_tokens(const GateTerms& terms, const float* inputs, int32_t tokens, float* decays) {
  return with_gate_kind(terms, [&]<GateForm kForm, bool kFloor>(GateKind<kForm, kFloor>) HWY_ATTR {
    return activate_tokens_form<kForm, kFloor, kTokens>(terms, inputs, tokens, decays);
  });
}

HWY_INLINE void activate_betas(BetaForm form, float* HWY_RESTRICT row, int32_t count) {
  const F32 d;
  if (form == BetaForm::kValue) return;
  const Vec factor = hn::Set(d, form == BetaForm::kTwiceLogit ? 2.0f : 1.0f);
  for (int32_t i = 0; i < count; i += kLanes)
    hn::StoreU(hn::Mul(factor, sigmoid_of(hn::LoadU(d, row + i))), d, row + i);
}

}  // namespace
}  // namespace deltarelay::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
