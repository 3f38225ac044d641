// GDN `prepare`: one CTA per (chunk of 64 tokens, q/k head, some of its value heads) turns raw q, k, g, beta into
// GdnRecords.
//
// K K^T and Q K^T are formed once, scaled by the norms, and stay in registers as kk and qk. For each value head remains
//     E_ij = e^{G_i-G_j}     Aqk = lower(qk E)     A = strictly_lower(kk E)     Akk = diag(beta) A
//     inverse = (I + Akk)^-1
// A is Akk without beta. The 64 x 64 triangle is cut into 16 x 16 blocks. The warp with role r owns block row r of the
// products and of the inverse. Row r of the inverse follows from A and the diagonal blocks of the inverse:
//     inverse_rb = -(sum over b < m <= r of inverse_rm diag(beta_m) A_mb) inverse_bb      for b = r - 1 .. 0
// So the warps synchronise once per head: after each has written its row of A and its own diagonal block.
//
// Matrix operands of this recursion are fp16 (11 bits; with bf16 the error of the inverse would be 8 times larger).
// They are bounded. With mu = beta |k|^2 in [0, 2 1/8] and gates <= 0, a token maps the state by (decay <= 1) (I - beta
// k k^T), of norm <= 1.125. Hence, with c = 1.125^62 < 1500,
//     |A_ij| <= max |k|^2,   |inverse_ij|, |sum inverse diag(beta) A| <= c beta_i |k_i| |k_j|,
//     |inverse_ij beta_j| <= c beta_i beta_j |k_i| |k_j|
// A head whose numbers could leave fp16 by these bounds (keys that were never normalised, beta far above 2 or negative,
// NaN) takes `solve_wide`, which is slow and fp32 throughout. So does a head of fp16 data with mu above 1.5: there the
// inverse no longer decays away from its diagonal, and the round-off of the operands adds up to three times that of
// storing the inverse (gates 0, correlated keys, beta near 2: error 5.4e-3, in fp32 1.8e-3).
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <type_traits>

#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/ptx/number.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/rows/find_sequence.cuh"
#include "kernels/cuda/sm90/record.h"
#include "kernels/cuda/sm90/records/prepare_gdn_memory.cuh"
#include "kernels/cuda/tile/activation.cuh"
#include "kernels/cuda/tile/descriptor.cuh"

namespace deltarelay::cuda::sm90 {

// Tensor maps of q and k: {64 channels, tokens, 2 halves, heads_qk, sequences}, boxes of {64, 64, 2, 1, 1}, 128-byte
// swizzle.
struct GdnTiles {
  CUtensorMap q, k;
};

// Writes the records of all chunks and value heads. `heads`: value heads of a CTA.
cudaError_t launch_prepare_gdn(const GdnTiles& tiles, const PrepareArgs& args, DType dtype, int32_t heads,
                               cudaStream_t stream);
cudaError_t load_prepare_gdn(DType dtype);

namespace prepare_gdn {

// --- Products --------------------------------------------------------------------------------------------------------

// What the value heads share: this warp's rows of -rk_i rk_j k_i.k_j and scale rq_i rk_j q_i.k_j. The minus sign of the
// recursion is applied here; there it would cost an instruction per element. Blocks right of the diagonal are dropped.
struct Products {
  Block kk[kBlocks - 1], qk[kBlocks - 1];  // left of the diagonal; [b] is used for b < role
  Block kk_diagonal, qk_diagonal;
};

// Loads the warp's 16 rows of a tile as A operands. The role, not the warp number, selects the rows: see `rotation`.
__device__ __forceinline__ void load_operands(Fragment (&operand)[8], uint32_t tile, const Lane& at) {
  const uint32_t base = tile + at.role * kSlab + at.block;
#pragma unroll
  for (int step = 0; step < 8; ++step) operand[step] = load_matrix((base ^ (step % 4 * 32)) + step / 4 * kSquare);
}

template <class Element>
__device__ __forceinline__ void multiply(float (&product)[32], const Fragment (&operand)[8], uint64_t keys) {
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 8; ++step)
    Wgmma<Element>::times(product, operand[step], keys + operand_step(step / 4 * kSquare + step % 4 * 32), step > 0);
  wgmma_commit();
}

// Keeps the diagonal block of this warp's rows and the blocks left of it.
__device__ __forceinline__ void keep_lower(Block (&left)[kBlocks - 1], Block& diagonal, const float (&product)[32],
                                           int role) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    diagonal.value[i] = product[i];
#pragma unroll
    for (int b = 1; b < kBlocks; ++b) diagonal.value[i] = role == b ? product[8 * b + i] : diagonal.value[i];
#pragma unroll
    for (int b = 0; b < kBlocks - 1; ++b) left[b].value[i] = product[8 * b + i];
  }
}

// From the tiles to scaled products in registers. Ends with a barrier: norms are written and the tiles may be
// overwritten.
template <class Element>
__device__ __forceinline__ void form_products(Products& products, Shared& shared, const Activation& activation,
                                              const Lane& at, int valid) {
  const uint32_t k_tile = shared_address(shared.tiles.k);
  const uint64_t keys = swizzled_operand(k_tile);
  float kk[32], qk[32];
  Fragment k_rows[8], q_rows[8];
  load_operands(k_rows, k_tile, at);
  multiply<Element>(kk, k_rows, keys);
  load_operands(q_rows, shared_address(shared.tiles.q), at);
  // |q|^2 is the diagonal of Q Q^T. Rows of Q are their own B operand: registers 0 and 2 hold rows 0 .. 7, registers 1
  // and 3 the others.
  float squares[2][4] = {};
  if (activation.l2norm) {
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      mma<Element>(squares[0], q_rows[step], q_rows[step].reg[0], q_rows[step].reg[2]);
      mma<Element>(squares[1], q_rows[step], q_rows[step].reg[1], q_rows[step].reg[3]);
    }
  }
  wgmma_wait<0>();
  pin(kk);
  multiply<Element>(qk, q_rows, keys);
  wgmma_wait<0>();
  pin(qk);
  keep_lower(products.kk, products.kk_diagonal, kk, at.role);
  keep_lower(products.qk, products.qk_diagonal, qk, at.role);

  if (at.lane / 8 == at.lane % 4) {  // lanes with a diagonal element: one in each of the two 8 x 8 blocks
    const bool odd = at.lane / 4 % 2;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float* diagonal = &products.kk_diagonal.value[6 * n];
      const float square_k = odd ? diagonal[1] : diagonal[0];
      const float square_q = odd ? squares[n][2 * n + 1] : squares[n][2 * n];
      const int token = at.row + 8 * n;
      const float norm_k = activation.l2norm ? rsqrtf(square_k + kL2NormEpsilon) : 1.0f;
      const float norm_q = activation.l2norm ? rsqrtf(square_q + kL2NormEpsilon) : 1.0f;
      const bool exists = token < valid;  // rows past the end may hold anything: select
      shared.norm_k[token] = exists ? norm_k : 0.0f;
      shared.norm_q[token] = exists ? activation.scale * norm_q : 0.0f;
      shared.square_k[token] = exists ? square_k * norm_k * norm_k : 0.0f;
      const float* dot = &products.qk_diagonal.value[6 * n];
      shared.diagonal[token] = exists ? (odd ? dot[1] : dot[0]) * activation.scale * norm_q * norm_k : 0.0f;
    }
  }
  __syncthreads();

  const float2 row_k = {-shared.norm_k[at.row], -shared.norm_k[at.row + 8]}, row_q = pair_of_rows(shared.norm_q, at);
  auto scale = [&](Block& kk_block, Block& qk_block, int column_block) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 column = pair_at(shared.norm_k, kBlock * column_block + 8 * n + at.column);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float column_norm = e % 2 ? column.y : column.x;
        kk_block.value[4 * n + e] *= (e / 2 ? row_k.y : row_k.x) * column_norm;
        qk_block.value[4 * n + e] *= (e / 2 ? row_q.y : row_q.x) * column_norm;
      }
    }
    if (valid < kChunk) {  // a NaN of another sequence times 0 is NaN: select
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const bool exists = at.row + 8 * (i / 2 % 2) < valid;
        kk_block.value[i] = exists ? kk_block.value[i] : 0.0f;
        qk_block.value[i] = exists ? qk_block.value[i] : 0.0f;
      }
    }
  };
#pragma unroll
  for (int b = 0; b < kBlocks - 1; ++b) {
    if (b < at.role) scale(products.kk[b], products.qk[b], b);
  }
  scale(products.kk_diagonal, products.qk_diagonal, at.role);
}

// --- Gates -----------------------------------------------------------------------------------------------------------

// One warp; lane l has tokens 2 l and 2 l + 1 of the chunk. Sums the gates and computes what follows from them alone,
// before the tiles arrive.
__device__ __forceinline__ void make_factors(Factors& factors, const Activation& activation, const ChunkPlace& place,
                                             int head, int lane) {
  const TensorView &g = activation.g, &beta = activation.beta;
  const int64_t token = place.token + 2 * lane;
  const int64_t g_at = place.sequence_at * g.sequence + token * g.token + head * g.head;
  const int64_t beta_at = place.sequence_at * beta.sequence + token * beta.token + head * beta.head;
  const bool exists[2] = {2 * lane < place.valid, 2 * lane + 1 < place.valid};
  uint32_t raw_g[2], raw_beta[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    raw_g[e] = exists[e] ? load_bits(g.data, g.dtype, g_at + e * g.token) : 0;
    raw_beta[e] = exists[e] ? load_bits(beta.data, beta.dtype, beta_at + e * beta.token) : 0;
  }
  const GateParams gate = gate_params(activation, head, 0, 1);
  float decay[2], strength[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) {  // tokens past the end neither decay nor write
    decay[e] = exists[e] ? log2_decay(number_of(raw_g[e], g.dtype), gate) : 0.0f;
    strength[e] = exists[e] ? write_strength(number_of(raw_beta[e], beta.dtype), activation.beta_form) : 0.0f;
  }
  float through = decay[0] + decay[1];  // inclusive sum over lanes
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float below = __shfl_up_sync(~0u, through, step);
    if (lane >= step) through += below;
  }
  const float before = __shfl_up_sync(~0u, through, 1);
  const float2 sum = {lane == 0 ? decay[0] : before + decay[0], through};
  auto store = [lane](float* values, float2 pair) { reinterpret_cast<float2*>(values)[lane] = pair; };
  store(factors.sum, sum);
  store(factors.beta, {strength[0], strength[1]});
  const float row_start = __shfl_sync(~0u, through, (lane / 8 * 8 + 31) % 32);
  store(factors.row, {exp2_approx(sum.x - row_start), exp2_approx(sum.y - row_start)});
#pragma unroll
  for (int r = 1; r < kBlocks; ++r) {
    const float end = __shfl_sync(~0u, through, 8 * r - 1);
    if (lane < 8 * r) store(factors.column + 8 * r * (r - 1), {exp2_approx(end - sum.x), exp2_approx(end - sum.y)});
  }
  const bool contracts = __all_sync(~0u, decay[0] <= 0.0f && decay[1] <= 0.0f);
  if (lane == 0) factors.bounded = contracts;
}

// The same warp, once the norms are known: writes the record's vectors and tests whether fp16 is enough for this head.
template <class Element>
__device__ __forceinline__ void emit_vectors(Factors& factors, const Shared& shared, int lane, int valid,
                                             uint8_t* record) {
  const float2 sum = pair_at(factors.sum, 2 * lane), beta = pair_at(factors.beta, 2 * lane);
  const float2 norm_k = pair_at(shared.norm_k, 2 * lane), norm_q = pair_at(shared.norm_q, 2 * lane);
  const float last = factors.sum[kChunk - 1];  // G_last: tokens past the end do not decay
  const float2 decay = {exp2_approx(sum.x), exp2_approx(sum.y)};
  auto emit = [&](int vector, float x, float y) {
    reinterpret_cast<float2*>(record + vector)[lane] = {2 * lane < valid ? x : 0.0f, 2 * lane + 1 < valid ? y : 0.0f};
  };
  emit(GdnRecord::kReadFactor, beta.x * decay.x * norm_k.x, beta.y * decay.y * norm_k.y);
  emit(GdnRecord::kBeta, beta.x, beta.y);
  emit(GdnRecord::kDiagonal, shared.diagonal[2 * lane], shared.diagonal[2 * lane + 1]);
  emit(GdnRecord::kUpdate, exp2_approx(last - sum.x) * norm_k.x, exp2_approx(last - sum.y) * norm_k.y);
  emit(GdnRecord::kQueryFactor, decay.x * norm_q.x, decay.y * norm_q.y);
  // Zeros up to the next vector, so that a copy of the record reads no unwritten bytes.
  if (lane == 0) *reinterpret_cast<float4*>(record + GdnRecord::kDecay) = {exp2_approx(last), 0.0f, 0.0f, 0.0f};

  // The bounds at the head of this file, with k2 = |k|^2: 1500 beta_i |k_i| |k_j| and 1500 beta_i beta_j |k_i| |k_j|
  // stay below 65504, and keys are small enough that a beta for which mu is about 1 keeps its digits in fp16.
  // Non-negative floats compare as integers; a NaN is above all of them and fails.
  const float2 k2 = pair_at(shared.square_k, 2 * lane), mu = {beta.x * k2.x, beta.y * k2.y};
  constexpr float kMostMu = std::is_same_v<Element, __half> ? 1.5f : 2.125f;
  const bool sound = beta.x >= 0.0f && beta.y >= 0.0f && mu.x <= kMostMu && mu.y <= kMostMu;
  auto maximum = [](float x, float y) {
    return __uint_as_float(__reduce_max_sync(~0u, max(__float_as_uint(x), __float_as_uint(y))));
  };
  const float k2_most = maximum(k2.x, k2.y);
  const float strength_most = maximum(beta.x * mu.x, beta.y * mu.y);  // (beta |k|)^2
  const bool fits = strength_most <= 36.0f && k2_most <= 8192.0f && strength_most * k2_most <= 1600.0f;
  if (!__all_sync(~0u, sound && fits) && lane == 0) factors.bounded = false;
}

// --- One value head --------------------------------------------------------------------------------------------------

// Copies a warp's 16 finished rows from shared memory to the record.
__device__ __forceinline__ void copy_rows(uint8_t* rows, const Scratch& scratch, const Lane& at) {
  __syncwarp();
  const uint4* from = reinterpret_cast<const uint4*>(scratch.stage + at.role * kSlab) + at.lane;
  uint4* to = reinterpret_cast<uint4*>(rows + at.role * kSlab) + at.lane;
  uint4 piece[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) piece[i] = from[32 * i];
#pragma unroll
  for (int i = 0; i < 4; ++i) to[32 * i] = piece[i];
  __syncwarp();
}

// The inverse of this warp's diagonal block of I - N, N = -Akk. Forward substitution in fp32, one column per lane,
// gives its 8 x 8 diagonal blocks inverse_00 and inverse_11. A Neumann series is no option: powers of N grow with
// repeated keys while the inverse stays bounded. The substitution is right-looking: a known x[j] updates all rows below
// at once, as independent FMAs instead of a chain. The block below is inverse_10 = inverse_11 N_10 inverse_00. `n10`
// holds N_10 in accumulator layout, which is the B operand N_10^T. Likewise the accumulator of inverse_00^T N_10^T is
// the B operand N_10 inverse_00.
__device__ __forceinline__ Fragment invert_diagonal(Scratch& scratch, const Lane& at, uint32_t n10) {
  const auto& columns = scratch.lower[at.role][at.lane / 8 % 2];
  float x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = i == at.lane % 8 ? 1.0f : 0.0f;
#pragma unroll
  for (int j = 0; j < 7; ++j) {
#pragma unroll
    for (int i = (j + 1) / 4 * 4; i < 8; i += 4) {
      const float4 l = *reinterpret_cast<const float4*>(&columns[j][i]);
      if (i > j) x[i] = fmaf(l.x, x[j], x[i]);
      if (i + 1 > j) x[i + 1] = fmaf(l.y, x[j], x[i + 1]);
      if (i + 2 > j) x[i + 2] = fmaf(l.z, x[j], x[i + 2]);
      x[i + 3] = fmaf(l.w, x[j], x[i + 3]);
    }
  }
  // A lane's column is a row of the transposed block. Lanes 16 .. 31 repeat the work of lanes 0 .. 15.
  uint8_t* row = scratch.corner[at.role][0] + at.lane % 16 * 16;
  if (at.lane < 16) {
    *reinterpret_cast<uint4*>(row) = {Pair<__half>::pack(x[0], x[1]), Pair<__half>::pack(x[2], x[3]),
                                      Pair<__half>::pack(x[4], x[5]), Pair<__half>::pack(x[6], x[7])};
  }
  __syncwarp();
  const Fragment transposed = load_matrix(shared_address(row)), d = load_matrix_transposed(shared_address(row));
  float middle[4] = {}, corner[4] = {};  // (N_10 inverse_00)^T, then inverse_10
  mma<__half>(middle, Fragment{transposed.reg[0], 0, 0, 0}, n10, 0);
  mma<__half>(corner, Fragment{0, d.reg[1], 0, 0}, Pair<__half>::pack(middle[0], middle[1]), 0);
  return {d.reg[0], Pair<__half>::pack(corner[2], corner[3]), 0, d.reg[1]};
}

// An fp32 matrix in place of the squares: -A below the diagonal, row by row; on and above it, column t of the inverse
// as row t. Columns are permuted so that accesses by rows and by columns are free of bank conflicts.
__device__ __forceinline__ float& wide_at(Scratch& scratch, int row, int column) {
  return reinterpret_cast<float*>(scratch.square)[row * kChunk + (column ^ (row % 32))];
}

template <bool kDiagonal>
__device__ __forceinline__ void store_wide(Scratch& scratch, const Block& a, const Lane& at, int column_block) {
  // This path is rare: its addresses should not occupy registers in the loop over heads.
  const int first_row = static_cast<int>(opaque(at.row));
  const int first_column = static_cast<int>(opaque(kBlock * column_block + at.column));
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (kDiagonal && (i == 4 || i == 5)) continue;  // above the diagonal
    const int row = first_row + 8 * (i / 2 % 2), column = first_column + 8 * (i / 4) + i % 2;
    if (!kDiagonal || column < row) wide_at(scratch, row, column) = a.value[i];
  }
}

// Plain substitution, one thread per column: inverse_ij = (i == j) + beta_i sum over j <= m < i of (-A_im) inverse_mj.
// Then writes the warp's rows of inverse - I to the stage.
template <class Element>
__device__ __forceinline__ void solve_wide(Scratch& scratch, const Factors& factors, const Lane& at, int valid) {
  __syncthreads();
  if (threadIdx.x < kChunk) {
    const int t = static_cast<int>(opaque(threadIdx.x));
#pragma unroll 1
    for (int i = 0; i < kChunk; ++i) {
      float sum = 0.0f;
#pragma unroll 4
      for (int m = 0; m < i; ++m) {
        if (m >= t) sum = fmaf(wide_at(scratch, i, m), wide_at(scratch, t, m), sum);
      }
      const float value = i == t ? 1.0f : factors.beta[i] * sum;
      if (i >= t) wide_at(scratch, t, i) = i < valid ? value : 0.0f;  // 0 times an overflow is NaN: select
    }
  }
  __syncthreads();
  const int lane = static_cast<int>(opaque(at.lane)), first_row = static_cast<int>(opaque(kBlock * at.role));
#pragma unroll 1
  for (int r = 0; r < kBlock; ++r) {
    const int row = first_row + r, column = 2 * lane;
    const float low = column < row ? wide_at(scratch, column, row) : 0.0f;
    const float high = column + 1 < row ? wide_at(scratch, column + 1, row) : 0.0f;
    uint8_t* piece = scratch.stage + swizzled_offset(row, lane / 4);
    *reinterpret_cast<uint32_t*>(piece + lane % 4 * 4) = Pair<Element>::pack(low, high);
  }
  __syncthreads();
}

// Shared-memory addresses of a head: its square and the stage, with this lane's offset in a block.
struct HeadPlace {
  uint32_t lane_block, square, stage;
  __device__ __forceinline__ HeadPlace(const Scratch& scratch, const Lane& at, uint32_t parity)
      // Opaque. The compiler would otherwise keep one address per block alive over the loop of heads.
      : lane_block(opaque(at.block)),
        square(shared_address(scratch.square[parity])),
        stage(shared_address(scratch.stage)) {}
  __device__ __forceinline__ uint32_t in_square(int row, int column) const {
    return block_address(square, lane_block, row, column);
  }
  __device__ __forceinline__ uint32_t in_stage(int row, int column) const {
    return block_address(stage, lane_block, row, column);
  }
};

// Aqk and -A left of the diagonal of this warp's block row. There E is split at the start of the block row,
// e^{G_i-G_start} e^{G_start-G_j}: both exponents are <= 0.
template <class Element>
__device__ __forceinline__ void store_left_blocks(Scratch& scratch, const Products& products, const Factors& factors,
                                                  float2 row_factor, const Lane& at, const HeadPlace& place,
                                                  bool bounded) {
  const float* columns = factors.column + 8 * at.role * (at.role - 1) + at.column;
#pragma unroll
  for (int b = 0; b < kBlocks - 1; ++b) {
    if (b >= at.role) continue;
    Block a, aqk;  // -A and Aqk
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 column = pair_at(columns, kBlock * b + 8 * n);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float ratio = (e / 2 ? row_factor.y : row_factor.x) * (e % 2 ? column.y : column.x);
        a.value[4 * n + e] = products.kk[b].value[4 * n + e] * ratio;
        aqk.value[4 * n + e] = products.qk[b].value[4 * n + e] * ratio;
      }
    }
    store_matrix(place.in_stage(at.role, b), aqk.pack<Element>());
    if (bounded)
      store_matrix(place.in_square(at.role, b), a.pack<__half>());
    else
      store_wide<false>(scratch, a, at, b);
  }
}

// Stores the diagonal block of Aqk and returns that of -A, element by element. Its registers 4 and 5 lie above the
// diagonal.
template <class Element>
__device__ __forceinline__ Block store_diagonal_block(const Products& products, const Factors& factors, float2 sum_row,
                                                      const Lane& at, const HeadPlace& place) {
  Block a, aqk;  // -A and Aqk
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float2 column = pair_at(factors.sum, kBlock * at.role + 8 * (i / 4) + at.column);
    // Above the diagonal the exponent is unbounded: select.
    const float ratio = exp2_approx((i / 2 % 2 ? sum_row.y : sum_row.x) - (i % 2 ? column.y : column.x));
    const bool lower = i / 4 < i / 2 % 2, upper = i / 4 > i / 2 % 2;
    const bool keep = lower || (!upper && at.column + i % 2 < at.lane / 4);
    a.value[i] = products.kk_diagonal.value[i] * ratio;
    aqk.value[i] = keep ? products.qk_diagonal.value[i] * ratio : 0.0f;
  }
  store_matrix(place.in_stage(at.role, at.role), aqk.pack<Element>());
  return a;
}

// The recursion at the head of this file for this warp's block row, from the diagonal block to the left. Writes
// inverse - I to the stage.
template <class Element>
__device__ __forceinline__ void solve_row(Shared& shared, const Factors& factors, const Lane& at,
                                          const HeadPlace& place, const Fragment& inverse_diagonal, uint32_t parity) {
  // Writes inverse - I to the stage and returns inverse diag(beta), the left operand of the recursion.
  auto finish = [&](Block& x, int column_block) {
    Block stored = x;
    if (column_block == at.role) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const bool diagonal = at.lane / 4 + 8 * (i / 2 % 2) == at.column + i % 2 + 8 * (i / 4);
        stored.value[i] = diagonal ? 0.0f : stored.value[i];
      }
    }
    store_matrix(place.in_stage(at.role, column_block), stored.pack<Element>());
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 beta = pair_at(factors.beta, kBlock * column_block + 8 * n + at.column);
#pragma unroll
      for (int e = 0; e < 4; ++e) x.value[4 * n + e] *= e % 2 ? beta.y : beta.x;
    }
    return x.pack<__half>();
  };
  auto right = [&](int row_block, int column_block) {
    return load_matrix_transposed(place.in_square(row_block, column_block));
  };
  Fragment left[kBlocks];  // inverse diag(beta) of this block row; [kBlocks - 1] is always the diagonal block
  Block x;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    x.value[2 * r] = Pair<__half>::low(inverse_diagonal.reg[r]);
    x.value[2 * r + 1] = Pair<__half>::high(inverse_diagonal.reg[r]);
  }
  left[kBlocks - 1] = finish(x, at.role);
  wait_parity(&shared.rows_ready, parity);
#pragma unroll
  for (int b = kBlocks - 2; b >= 0; --b) {
    if (b >= at.role) continue;
    Block y = {};
    add_product(y, left[kBlocks - 1], right(at.role, b));
#pragma unroll
    for (int m = kBlocks - 2; m > b; --m) {
      if (m < at.role) add_product(y, left[m], right(m, b));
    }
    x = {};
    add_product(x, y.pack<__half>(), right(b, b));
    left[b] = finish(x, b);
  }
}

// Aqk and inverse - I of one value head. `parity` and the square alternate from one bounded head to the next.
template <class Element>
__device__ __forceinline__ void prepare_head(Shared& shared, const Products& products, const Factors& factors,
                                             const Lane& at, int valid, uint32_t& parity, uint8_t* record) {
  Scratch& scratch = shared.scratch;
  const bool bounded = factors.bounded;
  const HeadPlace place(scratch, at, parity);
  if (!bounded) __syncthreads();  // no warp reads the squares any more
  const float2 row_factor = pair_of_rows(factors.row, at), sum_row = pair_of_rows(factors.sum, at);
  store_left_blocks<Element>(scratch, products, factors, row_factor, at, place, bounded);
  const Block a = store_diagonal_block<Element>(products, factors, sum_row, at, place);
  if (!bounded) {
    store_wide<true>(scratch, a, at, at.role);
    copy_rows(record + GdnRecord::kAqk, scratch, at);
    solve_wide<Element>(scratch, factors, at, valid);
    copy_rows(record + GdnRecord::kInverse, scratch, at);
    return;
  }

  const float2 beta_row = pair_of_rows(factors.beta, at);
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    scratch.lower[at.role][0][at.column + e][at.lane / 4] = a.value[e] * beta_row.x;
    scratch.lower[at.role][1][at.column + e][at.lane / 4] = a.value[6 + e] * beta_row.y;
  }
  __syncwarp();
  const Fragment inverse_diagonal =
      invert_diagonal(scratch, at, Pair<__half>::pack(a.value[2] * beta_row.y, a.value[3] * beta_row.y));
  store_matrix(place.in_square(at.role, at.role), inverse_diagonal);
  warp_arrive(&shared.rows_ready);

  copy_rows(record + GdnRecord::kAqk, scratch, at);
  solve_row<Element>(shared, factors, at, place, inverse_diagonal, parity);
  copy_rows(record + GdnRecord::kInverse, scratch, at);
  parity ^= 1;
}

// --- Kernel ----------------------------------------------------------------------------------------------------------

// Grid: (chunk, q/k head, share of its value heads), the last fastest, so that neighbours read the same rows of q and
// k.
template <class Element>
__global__ void __launch_bounds__(kThreads, kResident)
    prepare_gdn_kernel(const __grid_constant__ GdnTiles maps, const __grid_constant__ PrepareArgs args,
                       const int heads_each, const int shares) {
  extern __shared__ __align__(1024) uint8_t dynamic_shared[];
  Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared);
  allow_next_grid();
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&maps.k);
    prefetch_tensor_map(&maps.q);
    ptx::mbarrier_init(&shared.tiles_ready, 1);
    ptx::mbarrier_init(&shared.rows_ready, kWarps);
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    // Rows of the last block row cost four times those of the first, and the warp number decides on which scheduler a
    // warp runs. So resident CTAs, told apart by their warp slot, rotate their roles against each other. This changes
    // speed only: a role computes the same on any warp.
    shared.rotation = warp_slot() / kWarps;
  }
  __syncthreads();
  wait_for_previous_grid();

  const int share = blockIdx.x % shares, chunk_head = blockIdx.x / shares;
  const int key_head = chunk_head % args.heads_qk, chunk = chunk_head / args.heads_qk;
  ChunkPlace place;
  if (!find_chunk(args.tables, chunk, kChunk, place)) return;
  if (threadIdx.x == 0) {
    const int32_t at[5] = {0, static_cast<int32_t>(place.token), 0, key_head, place.sequence_at};
    ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &shared.tiles_ready, 2 * kTile);
    ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, shared.tiles.k, &maps.k, at, &shared.tiles_ready);
    ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, shared.tiles.q, &maps.q, at, &shared.tiles_ready);
  }

  const Lane at((threadIdx.x / 32 + shared.rotation) % kWarps);
  const int group = args.heads_v / args.heads_qk;
  const int heads = min(heads_each, group - share * heads_each);
  const int first_head = key_head * group + share * heads_each;
  uint8_t* const records =
      args.prepared + (static_cast<int64_t>(chunk) * args.heads_v + first_head) * GdnRecord::kBytes;

  // While the tiles are in flight, each warp makes the factors of one head.
  if (at.role < heads) make_factors(shared.factors[at.role], args.activation, place, first_head + at.role, at.lane);
  wait_parity(&shared.tiles_ready, 0);
  Products products;
  form_products<Element>(products, shared, args.activation, at, place.valid);
  if (at.role < heads)
    emit_vectors<Element>(shared.factors[at.role], shared, at.lane, place.valid, records + at.role * GdnRecord::kBytes);
  for (int b = at.role + 1; b < kBlocks; ++b)
    store_matrix(block_address(shared_address(shared.scratch.stage), at.block, at.role, b), Fragment{});
  __syncthreads();
  uint32_t parity = 0;
  for (int i = 0; i < heads; ++i)
    prepare_head<Element>(shared, products, shared.factors[i], at, place.valid, parity,
                          records + i * GdnRecord::kBytes);
}

}  // namespace prepare_gdn
}  // namespace deltarelay::cuda::sm90
