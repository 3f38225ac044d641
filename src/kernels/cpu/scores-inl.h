// Scores: products of the rows of a chunk with each other, in blocks of a sub-chunk.
#if defined(DELTARELAY_CPU_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTARELAY_CPU_SCORES_INL_H_
#undef DELTARELAY_CPU_SCORES_INL_H_
#else
#define DELTARELAY_CPU_SCORES_INL_H_
#endif

#include "kernels/cpu/micro_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltarelay::cpu::HWY_NAMESPACE {
namespace {  // internal linkage: several translation units compile this file with different instructions
namespace hn = hwy::HWY_NAMESPACE;

// Sums of products of rows i and columns j, stored transposed as scores[j][i], so that four rows are neighbours.
template <int32_t kTokens>
struct ScoresOf {
  alignas(64) float kk[kTokens * kTokens] = {};
  alignas(64) float qk[kTokens * kTokens] = {};
};
using Scores = ScoresOf<kChunk>;

#if HWY_TARGET != HWY_NEON && HWY_TARGET != HWY_SCALAR
// Adds the blocks of four lanes of a vector.
template <class D, class V>
HWY_INLINE auto add_blocks(D d, V v) {
  if constexpr (hn::MaxLanes(d) <= 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return add_blocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}
#endif

// to[i] += sum of the lanes of s_i
HWY_INLINE void add_sums(Vec s0, Vec s1, Vec s2, Vec s3, float* HWY_RESTRICT to) {
#if HWY_TARGET == HWY_NEON
  const float32x4_t sums = vpaddq_f32(vpaddq_f32(s0.raw, s1.raw), vpaddq_f32(s2.raw, s3.raw));
  vst1q_f32(to, vaddq_f32(vld1q_f32(to), sums));
#elif HWY_TARGET == HWY_SCALAR
  to[0] += s0.raw, to[1] += s1.raw, to[2] += s2.raw, to[3] += s3.raw;
#else
  // Two rounds of interleave and add reduce four vectors to one. Every block of four lanes then holds its share of the
  // sums.
  const F32 d;
  const Vec even = hn::Add(hn::InterleaveLower(d, s0, s2), hn::InterleaveUpper(d, s0, s2));
  const Vec odd = hn::Add(hn::InterleaveLower(d, s1, s3), hn::InterleaveUpper(d, s1, s3));
  const Vec parts = hn::Add(hn::InterleaveLower(d, even, odd), hn::InterleaveUpper(d, even, odd));
  const hn::FixedTag<float, 4> d4;
  hn::StoreU(hn::Add(hn::LoadU(d4, to), add_blocks(d, parts)), d4, to);
#endif
}

// out[j][i] += dot(rows[i], columns[j]) for a kSubChunk x kSubChunk block of the scores of kTokens tokens.
template <int32_t kTokens>
HWY_INLINE void dot_block(const float* HWY_RESTRICT rows, int64_t row_stride, const float* HWY_RESTRICT columns,
                          int64_t column_stride, int32_t width, float* HWY_RESTRICT out) {
  const F32 d;
  // As many accumulators as a tile of the micro-kernel.
  constexpr int32_t kWide = 2 * kRows / kSubChunk;
  for (int32_t j0 = 0; j0 < kSubChunk; j0 += kWide) {
    Vec sum[kSubChunk][kWide];
    DR_UNROLL
    for (int32_t i = 0; i < kSubChunk; ++i) {
      DR_UNROLL
      for (int32_t j = 0; j < kWide; ++j) sum[i][j] = hn::Zero(d);
    }
    for (int32_t c = 0; c < width; c += kLanes) {
      Vec b[kWide];
      DR_UNROLL
      for (int32_t j = 0; j < kWide; ++j) b[j] = hn::LoadU(d, columns + (j0 + j) * column_stride + c);
      DR_UNROLL
      for (int32_t i = 0; i < kSubChunk; ++i) {
        const Vec a = hn::LoadU(d, rows + i * row_stride + c);
        DR_UNROLL
        for (int32_t j = 0; j < kWide; ++j) sum[i][j] = hn::MulAdd(a, b[j], sum[i][j]);
      }
    }
    DR_UNROLL
    for (int32_t j = 0; j < kWide; ++j) add_sums(sum[0][j], sum[1][j], sum[2][j], sum[3][j], out + (j0 + j) * kTokens);
  }
}

template <int32_t kTokens>
HWY_INLINE void add_pairs(Vec kk10, Vec kk20, Vec kk21, Vec kk30, Vec kk31, Vec kk32, float* HWY_RESTRICT out) {
  const Vec zero = hn::Zero(F32());
  add_sums(zero, kk10, kk20, kk30, out);
  add_sums(zero, zero, kk21, kk31, out + kTokens);
  add_sums(zero, zero, zero, kk32, out + 2 * kTokens);
}

// Products inside one sub-chunk, pair by pair. Entries above the diagonal are not written.
template <int32_t kTokens>
HWY_INLINE void pair_block(const float* HWY_RESTRICT keys, int64_t key_stride, const float* HWY_RESTRICT queries,
                           int64_t query_stride, const float* HWY_RESTRICT decay, int32_t width,
                           float* HWY_RESTRICT out_kk, float* HWY_RESTRICT out_qk) {
  const F32 d;
  static_assert(kSubChunk == 4);
  const Vec zero = hn::Zero(d);
  Vec kk10 = zero, kk20 = zero, kk21 = zero, kk30 = zero, kk31 = zero, kk32 = zero;
  Vec qk00 = zero, qk10 = zero, qk11 = zero, qk20 = zero, qk21 = zero, qk22 = zero;
  Vec qk30 = zero, qk31 = zero, qk32 = zero, qk33 = zero;
  for (int32_t c = 0; c < width; c += kLanes) {
    const Vec d1 = hn::LoadU(d, decay + width + c);
    const Vec d2 = hn::LoadU(d, decay + 2 * width + c);
    const Vec d3 = hn::LoadU(d, decay + 3 * width + c);
    const Vec k1 = hn::LoadU(d, keys + key_stride + c);
    const Vec k2 = hn::LoadU(d, keys + 2 * key_stride + c);
    const Vec k3 = hn::LoadU(d, keys + 3 * key_stride + c);
    const Vec q1 = hn::LoadU(d, queries + query_stride + c);
    const Vec q2 = hn::LoadU(d, queries + 2 * query_stride + c);
    const Vec q3 = hn::LoadU(d, queries + 3 * query_stride + c);
    Vec key = hn::LoadU(d, keys + c);  // key of token 0, decayed row by row
    qk00 = hn::MulAdd(hn::LoadU(d, queries + c), key, qk00);
    key = hn::Mul(key, d1);
    kk10 = hn::MulAdd(k1, key, kk10), qk10 = hn::MulAdd(q1, key, qk10);
    key = hn::Mul(key, d2);
    kk20 = hn::MulAdd(k2, key, kk20), qk20 = hn::MulAdd(q2, key, qk20);
    key = hn::Mul(key, d3);
    kk30 = hn::MulAdd(k3, key, kk30), qk30 = hn::MulAdd(q3, key, qk30);
    key = k1;
    qk11 = hn::MulAdd(q1, key, qk11);
    key = hn::Mul(key, d2);
    kk21 = hn::MulAdd(k2, key, kk21), qk21 = hn::MulAdd(q2, key, qk21);
    key = hn::Mul(key, d3);
    kk31 = hn::MulAdd(k3, key, kk31), qk31 = hn::MulAdd(q3, key, qk31);
    key = k2;
    qk22 = hn::MulAdd(q2, key, qk22);
    key = hn::Mul(key, d3);
    kk32 = hn::MulAdd(k3, key, kk32), qk32 = hn::MulAdd(q3, key, qk32);
    qk33 = hn::MulAdd(q3, k3, qk33);
  }
  add_pairs<kTokens>(kk10, kk20, kk21, kk30, kk31, kk32, out_kk);
  add_sums(qk00, qk10, qk20, qk30, out_qk);
  add_sums(zero, qk11, qk21, qk31, out_qk + kTokens);
  add_sums(zero, zero, qk22, qk32, out_qk + 2 * kTokens);
  add_sums(zero, zero, zero, qk33, out_qk + 3 * kTokens);
}

}  // namespace
}  // namespace deltarelay::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
