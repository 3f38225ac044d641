// GDN `prepare` for chunks of 32 tokens: one CTA per (chunk, q/k head, up to 4 of its value heads) turns raw q, k, g, beta into records.
//
// K K^T and Q K^T with their norms are formed once, by all warps, and left in shared memory in fp32. Then a warp has one value head to itself.
//
// No exponent above 0: between the halves of a chunk, decays are products of a factor to the middle and one from it; inside a half each pair
// has its own.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/rows/find_sequence.cuh"
#include "kernels/cuda/sm80/arithmetic.cuh"
#include "kernels/cuda/sm80/chunk_grid.cuh"
#include "kernels/cuda/sm80/gate_sum.cuh"
#include "kernels/cuda/sm80/invert.cuh"
#include "kernels/cuda/sm80/record.h"
#include "kernels/cuda/sm80/tile.cuh"
#include "kernels/cuda/tile/activation.cuh"

namespace deltarelay::cuda::sm80 {

constexpr int kWarps = kThreads / 32;
constexpr int kHeadsTogether = kWarps;  // value heads of a CTA

template <class Number, int kWidth>
struct GdnPrepareShared {
  static constexpr int kElement = sizeof(Number), kRowBytes = kWidth * kElement + 16;
  static constexpr int kTile = kChunk * kRowBytes;
  union {
    alignas(16) uint8_t tiles[2 * kTile];  // q, k
    SwizzledSquare lower[kWarps];          // once the products are formed
  };
  SwizzledSquare products[2];  // scale Q K^T, K K^T, of normalised rows
  float norm[2][kChunk];       // scale / |q|, 1 / |k|
  // Of tokens, for each warp's head: G, and the decay between the token and the chunk's middle. Rows are padded: load_scalars has lanes in 4 of
  // them, at 8 tokens.
  static constexpr int kScalars = kChunk + 8;
  alignas(16) GateSum<Arithmetic<Number>::kExactSums> sum[kWarps][kChunk];
  float half[kWarps][kScalars];  // at first its own log2 decay
  float beta[kWarps][kScalars];
};

// Warps 0, 1: rows of Q K^T, warps 2, 3: rows of K K^T, 16 each. Squares of the norms are the diagonals of Q Q^T and K K^T.
template <class Number, int kWidth>
__device__ __forceinline__ void form_products(GdnPrepareShared<Number, kWidth>& shared, const Activation& activation) {
  using Shared = GdnPrepareShared<Number, kWidth>;
  using Numbers = TileArithmetic<Number>;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int matrix = warp / 2, first_row = warp % 2 * 16, g = lane / 4, q = lane % 4;
  const uint32_t tile = shared_address(shared.tiles) + matrix * Shared::kTile;
  const uint32_t rows = tile + first_row * Shared::kRowBytes + Numbers::left_place(lane, Shared::kRowBytes);
  const uint32_t columns = shared_address(shared.tiles) + Shared::kTile + Numbers::rows_place(lane, Shared::kRowBytes);
  const uint32_t own = tile + first_row * Shared::kRowBytes + Numbers::rows_place(lane, Shared::kRowBytes);
  float sums[4][4] = {}, squares[2][4] = {};
#pragma unroll
  for (int group = 0; group < kWidth / 32; ++group) {
    const int at = group * 32 * Shared::kElement;
    const typename Numbers::Left left = Numbers::load_left(rows + at, Shared::kRowBytes);
#pragma unroll
    for (int n = 0; n < 4; ++n)
      Numbers::multiply(sums[n], left, Numbers::load_rows(columns + at + n * 8 * Shared::kRowBytes));
#pragma unroll
    for (int n = 0; n < 2; ++n)
      Numbers::multiply(squares[n], left, Numbers::load_rows(own + at + n * 8 * Shared::kRowBytes));
  }
  if (q == g / 2) {  // this lane has the diagonal's numbers of rows g and g + 8
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float square = g % 2 == 0 ? squares[r][2 * r] : squares[r][2 * r + 1];
      shared.norm[matrix][first_row + 8 * r + g] =
          (matrix == 0 ? activation.scale : 1.0f) * (activation.l2norm ? rsqrtf(square + kL2NormEpsilon) : 1.0f);
    }
  }
  __syncthreads();
  const uint32_t place = shared.products[matrix].place(first_row + g, 2 * q);
  float2 norm_k[4];  // before anything is stored: the compiler would load them again
#pragma unroll
  for (int n = 0; n < 4; ++n) norm_k[n] = *reinterpret_cast<const float2*>(&shared.norm[1][8 * n + 2 * q]);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float norm = shared.norm[matrix][first_row + g + 8 * r];
#pragma unroll
    for (int n = 0; n < 4; ++n)
      SwizzledSquare::beyond<float2>(place, 8 * r, 8 * n) =
          make_float2(sums[n][2 * r] * (norm * norm_k[n].x), sums[n][2 * r + 1] * (norm * norm_k[n].y));
  }
}

// Log2 decays and strengths of the CTA's heads, by all threads: neighbours take neighbouring heads of a token, which mostly lie side by side.
template <class Number, int kWidth>
__device__ __forceinline__ void load_scalars(GdnPrepareShared<Number, kWidth>& shared, const Activation& activation,
                                             const ChunkPlace& place, uint32_t first_head, uint32_t heads) {
  static_assert(kHeadsTogether * kChunk == kThreads);
  const uint32_t of_cta = threadIdx.x % kHeadsTogether, head = first_head + of_cta;
  const int row = static_cast<int>(threadIdx.x / kHeadsTogether);
  if (of_cta >= heads) return;
  const uint32_t sequence = static_cast<uint32_t>(place.sequence_at);
  const TensorView &g = activation.g, &b = activation.beta;
  const bool exists = row < place.valid;
  const int64_t token = place.token + (exists ? row : 0);
  const uint32_t gate = load_bits(g.data, g.dtype, sequence * g.sequence + token * g.token + head * g.head);
  const uint32_t strength = load_bits(b.data, b.dtype, sequence * b.sequence + token * b.token + head * b.head);
  // Tokens past the end: no decay, no update.
  shared.half[of_cta][row] =
      exists ? log2_decay(number_of(gate, g.dtype), gate_params(activation, static_cast<int>(head), 0, 1)) : 0.0f;
  shared.beta[of_cta][row] = exists ? write_strength(number_of(strength, b.dtype), activation.beta_form) : 0.0f;
}

// One value head by one warp.
template <class Number, int kWidth>
__device__ __forceinline__ void prepare_head(GdnPrepareShared<Number, kWidth>& shared, const ChunkPlace& place,
                                             uint8_t* record, int warp) {
  constexpr RecordPlaces kRecord = record_places(Rule::kGdn, sizeof(Number), kWidth, kIsFine<Number>);
  using Sum = GateSum<Arithmetic<Number>::kExactSums>;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool exists = lane < place.valid;
  const float decay = shared.half[warp][lane], beta = shared.beta[warp][lane];
  Sum sum = Sum::of(decay);  // inclusive, over lanes
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const Sum below = shift_up(sum, step);
    if (lane >= step) sum = below + sum;
  }
  const Sum middle = broadcast(sum, kChunk / 2 - 1), last = broadcast(sum, kChunk - 1);
  const float norm_q = exists ? shared.norm[0][lane] : 0.0f, norm_k = exists ? shared.norm[1][lane] : 0.0f;
  const float from_start = exp2_approx(sum.rounded());
  auto put = [&](int vector, float x) { reinterpret_cast<float*>(record + vector)[vector_place(lane)] = x; };
  put(kRecord.beta, beta);
  put(kRecord.diagonal, SwizzledSquare::beyond(shared.products[0].place(lane, lane), 0, 0));
  put(kRecord.read_factor, beta * from_start * norm_k);
  put(kRecord.query_factor, from_start * norm_q);
  put(kRecord.update_factor, exp2_approx(last - sum) * norm_k);
  // A token's map of the state, e^g (I - beta k k^T), has the norm e^g max(1, |1 - beta |k|^2|). Selects, so that a NaN passes.
  const float along_key = fabsf(1.0f - beta * SwizzledSquare::beyond(shared.products[1].place(lane, lane), 0, 0));
  float bound = last.rounded();
  if (__any_sync(~0u, !(along_key <= 1.0f))) {
    float growth = along_key <= 1.0f ? 0.0f : log2f(along_key);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) growth += __shfl_xor_sync(~0u, growth, step);
    bound += growth;
  }
  // With zeros up to the end, so that a copy of the record reads nothing unwritten.
  static_assert(kRecord.bound == kRecord.decay + 4 && kRecord.bytes == kRecord.decay + 32);
  if (lane < 8)
    reinterpret_cast<float*>(record + kRecord.decay)[lane] = lane == 0   ? exp2_approx(last.rounded())
                                                             : lane == 1 ? bound
                                                                         : 0.0f;

  shared.sum[warp][lane] = sum;
  shared.half[warp][lane] = exp2_approx(lane < kChunk / 2 ? middle - sum : sum - middle);
  __syncwarp();
  const int row = lane / 4, column = lane % 4 * 2;  // of this lane's numbers in a part
  float2 decays[kParts];  // right of the diagonal the exponent may be anything: whoever takes a pair selects
  for_each_part([&](int i, int j) {
    float2& pair = decays[part_number(i, j)];
    const int from = j + column, to = i + row;
    if (i / (kChunk / 2) == j / (kChunk / 2)) {
      const Sum at = shared.sum[warp][to];
      pair = make_float2(exp2_approx(at - shared.sum[warp][from]), exp2_approx(at - shared.sum[warp][from + 1]));
    } else {
      const float late = shared.half[warp][to];
      pair = make_float2(late * shared.half[warp][from], late * shared.half[warp][from + 1]);
    }
  });
  const uint32_t product_at = shared.products[0].place(row, column);
  auto scores = [&](int matrix, int i, int j) {
    const float2 product =
        SwizzledSquare::beyond<float2>(product_at + matrix * static_cast<uint32_t>(sizeof(SwizzledSquare)), i, j);
    const float2& pair = decays[part_number(i, j)];
    return make_float2(product.x * pair.x, product.y * pair.y);
  };
  SwizzledSquare& lower = shared.lower[warp];
  const uint32_t lower_at = lower.place(row, column);
#pragma unroll
  for (int i = 0; i < kChunk; i += 8) {
    const float strength = shared.beta[warp][i + row];
    float2 entries[kChunk / 8];  // a row of parts before the first is stored: no load passes a store
#pragma unroll
    for (int j = 0; j <= i; j += 8) {
      const float2 pair = below_diagonal(scores(1, i, j), i, j, lane);
      entries[j / 8] = make_float2(strength * pair.x, strength * pair.y);
    }
#pragma unroll
    for (int j = 0; j <= i; j += 8) SwizzledSquare::beyond<float2>(lower_at, i, j) = entries[j / 8];
  }
  store_square<Number>(record + kRecord.p, lane, [&](int i, int j) { return scores(0, i, j); });
  __syncwarp();
  store_inverse<Number>(lower, record + kRecord.t, lane);
}

// CTAs that share the value heads of a q/k head.
constexpr uint32_t shares_of(uint32_t group) { return (group + kHeadsTogether - 1) / kHeadsTogether; }

// `group`: value heads of a q/k head. The grid is ChunkGrid::of(chunks, heads_qk * shares): x is (q/k head, share), the last innermost.
template <class Number, int kWidth>
__global__ void __launch_bounds__(kThreads)
    prepare_gdn_kernel(const __grid_constant__ PrepareArgs args, int dk, uint32_t group) {
  using Shared = GdnPrepareShared<Number, kWidth>;
  Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared_memory());
  wait_for_previous_grid();
  allow_next_grid();
  const uint32_t shares = shares_of(group), chunk = ChunkGrid::chunk();
  const uint32_t key_head = shares == 1 ? blockIdx.x : blockIdx.x / shares;  // a division takes 20 instructions
  const uint32_t first_of_group = (blockIdx.x - key_head * shares) * kHeadsTogether;
  ChunkPlace place;
  if (!find_chunk(args.tables, static_cast<int>(chunk), kChunk, place)) return;

  // Factors of strides are unsigned: a signed one would be extended first.
  auto load = [&](const TensorView& tensor, int tile) {
    const uint8_t* from =
        static_cast<const uint8_t*>(tensor.data) + (static_cast<uint32_t>(place.sequence_at) * tensor.sequence +
                                                    place.token * tensor.token + key_head * tensor.head) *
                                                       Shared::kElement;
    TileCopy<kChunk, kWidth * Shared::kElement / 16, Shared::kRowBytes>::load(
        shared_address(shared.tiles) + tile * Shared::kTile, from, tensor.token * Shared::kElement, place.valid,
        dk * Shared::kElement, access_of(tensor, Shared::kElement), static_cast<int>(threadIdx.x));
  };
  load(args.q, 0);
  load(args.k, 1);
  close_copies();
  load_scalars(shared, args.activation, place, key_head * group + first_of_group, group - first_of_group);
  wait_for_copies<0>();
  __syncthreads();
  form_products(shared, args.activation);
  __syncthreads();

  const uint32_t warp = threadIdx.x / 32, of_group = first_of_group + warp;
  if (of_group >= group) return;
  constexpr int kBytes = record_places(Rule::kGdn, sizeof(Number), kWidth, kIsFine<Number>).bytes;
  // A call has fewer records than 2^31 (accepts.cpp).
  const uint32_t record = chunk * static_cast<uint32_t>(args.heads_v) + key_head * group + of_group;
  prepare_head(shared, place, args.prepared + static_cast<int64_t>(record) * kBytes, static_cast<int>(warp));
}

}  // namespace deltarelay::cuda::sm80
