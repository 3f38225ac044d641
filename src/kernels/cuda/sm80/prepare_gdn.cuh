// GDN prepare for chunks of 32 tokens. One CTA per (chunk, query/key head, up to 4 of its value heads) turns q, k, g
// and beta of the caller into records.
//
// All warps form K K^T and Q K^T with their norms once and leave both in shared memory in fp32. Then each warp handles
// one value head.
//
// No exponent is above 0. Between the halves of a chunk, a decay is the product of a factor to the middle and a factor
// from the middle. Inside a half, each pair of tokens has its own exponent.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/rows/find_sequence.cuh"
#include "kernels/cuda/sm80/arithmetic.cuh"
#include "kernels/cuda/sm80/chunk_grid.cuh"
#include "kernels/cuda/sm80/gate_sum.cuh"
#include "kernels/cuda/sm80/grid.h"
#include "kernels/cuda/sm80/invert.cuh"
#include "kernels/cuda/sm80/record.h"
#include "kernels/cuda/sm80/tile.cuh"
#include "kernels/cuda/tile/activation.cuh"

namespace deltarelay::cuda::sm80 {

constexpr int kWarps = kThreads / 32;
static_assert(kHeadsTogether == kWarps);

template <class Number, int kWidth>
struct GdnPrepareShared {
  static constexpr int kElement = sizeof(Number), kRowBytes = kWidth * kElement + 16;
  static constexpr int kTile = kChunk * kRowBytes;
  union {
    alignas(16) uint8_t tiles[2 * kTile];  // q, k
    SwizzledSquare akk[kWarps];            // after the products are formed
  };
  SwizzledSquare products[2];  // scale Q K^T and K K^T of normalised rows
  float norm[2][kChunk];       // scale rq, rk
  // Per token, for the head of each warp: G, and the decay between the token and the chunk's middle. Rows are padded:
  // load_scalars writes 4 rows at 8 tokens per warp.
  static constexpr int kScalars = kChunk + 8;
  alignas(16) GateSum<Arithmetic<Number>::kExactSums> sum[kWarps][kChunk];
  float half[kWarps][kScalars];  // first the log2 decay of the token, then the decay to or from the middle
  float beta[kWarps][kScalars];
};

// Warps 0 and 1 compute rows of Q K^T, warps 2 and 3 rows of K K^T, 16 rows each. The squared norms are the diagonals
// of Q Q^T and K K^T.
template <class Number, int kWidth>
__device__ __forceinline__ void form_products(GdnPrepareShared<Number, kWidth>& shared, const Activation& activation) {
  using Shared = GdnPrepareShared<Number, kWidth>;
  using Numbers = TileArithmetic<Number>;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int matrix = warp / 2, first_row = warp % 2 * 16, quad = lane / 4, member = lane % 4;
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
  if (member == quad / 2) {  // this lane has the diagonal's numbers of rows quad and quad + 8
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float square = quad % 2 == 0 ? squares[r][2 * r] : squares[r][2 * r + 1];
      shared.norm[matrix][first_row + 8 * r + quad] =
          (matrix == 0 ? activation.scale : 1.0f) * (activation.l2norm ? rsqrtf(square + kL2NormEpsilon) : 1.0f);
    }
  }
  __syncthreads();
  const uint32_t place = shared.products[matrix].place(first_row + quad, 2 * member);
  float2 rk[4];  // loaded before the first store: otherwise the compiler loads them again
#pragma unroll
  for (int n = 0; n < 4; ++n) rk[n] = *reinterpret_cast<const float2*>(&shared.norm[1][8 * n + 2 * member]);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float norm = shared.norm[matrix][first_row + quad + 8 * r];
#pragma unroll
    for (int n = 0; n < 4; ++n)
      SwizzledSquare::beyond<float2>(place, 8 * r, 8 * n) =
          make_float2(sums[n][2 * r] * (norm * rk[n].x), sums[n][2 * r + 1] * (norm * rk[n].y));
  }
}

// Loads log2 decays and betas of the CTA's heads with all threads. Neighbouring threads take neighbouring heads of a
// token, which usually lie side by side.
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
  // A token past the end of the sequence has no decay and no update.
  shared.half[of_cta][row] =
      exists ? log2_decay(number_of(gate, g.dtype), gate_params(activation, static_cast<int>(head), 0, 1)) : 0.0f;
  shared.beta[of_cta][row] = exists ? write_strength(number_of(strength, b.dtype), activation.beta_form) : 0.0f;
}

// Writes the record of one value head, by one warp.
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
  const float scale_rq = exists ? shared.norm[0][lane] : 0.0f, rk = exists ? shared.norm[1][lane] : 0.0f;
  const float from_start = exp2_approx(sum.rounded());
  auto put = [&](int vector, float x) { reinterpret_cast<float*>(record + vector)[vector_place(lane)] = x; };
  put(kRecord.beta, beta);
  put(kRecord.diagonal, SwizzledSquare::beyond(shared.products[0].place(lane, lane), 0, 0));
  put(kRecord.read_factor, beta * from_start * rk);
  put(kRecord.query_factor, from_start * scale_rq);
  put(kRecord.update_factor, exp2_approx(last - sum) * rk);
  // The map of one token on the state, e^g (I - beta k k^T), has the norm e^g max(1, |1 - beta |k|^2|). The comparisons
  // are written so that a NaN passes through.
  const float along_key = fabsf(1.0f - beta * SwizzledSquare::beyond(shared.products[1].place(lane, lane), 0, 0));
  float bound = last.rounded();
  if (__any_sync(~0u, !(along_key <= 1.0f))) {
    float growth = along_key <= 1.0f ? 0.0f : log2f(along_key);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) growth += __shfl_xor_sync(~0u, growth, step);
    bound += growth;
  }
  // Pad with zeros to the end of the record, so that a copy of the record reads no unwritten memory.
  static_assert(kRecord.bound == kRecord.decay_chunk + 4 && kRecord.bytes == kRecord.decay_chunk + 32);
  if (lane < 8)
    reinterpret_cast<float*>(record + kRecord.decay_chunk)[lane] = lane == 0   ? exp2_approx(last.rounded())
                                                                   : lane == 1 ? bound
                                                                               : 0.0f;

  shared.sum[warp][lane] = sum;
  shared.half[warp][lane] = exp2_approx(lane < kChunk / 2 ? middle - sum : sum - middle);
  __syncwarp();
  const int row = lane / 4, column = lane % 4 * 2;  // of this lane's numbers in a block
  float2 decays[kParts];  // E_ij; above the diagonal the exponent is arbitrary, and every user masks it
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
  SwizzledSquare& akk = shared.akk[warp];
  const uint32_t akk_at = akk.place(row, column);
#pragma unroll
  for (int i = 0; i < kChunk; i += 8) {
    const float strength = shared.beta[warp][i + row];
    float2 entries[kChunk / 8];  // a whole row of blocks before the first store: loads do not pass stores
#pragma unroll
    for (int j = 0; j <= i; j += 8) {
      const float2 pair = below_diagonal(scores(1, i, j), i, j, lane);
      entries[j / 8] = make_float2(strength * pair.x, strength * pair.y);
    }
#pragma unroll
    for (int j = 0; j <= i; j += 8) SwizzledSquare::beyond<float2>(akk_at, i, j) = entries[j / 8];
  }
  store_square<Number>(record + kRecord.aqk, lane, [&](int i, int j) { return scores(0, i, j); });
  __syncwarp();
  store_inverse<Number>(akk, record + kRecord.inverse, lane);
}

// `group` is the number of value heads per query/key head. The grid is ChunkGrid::of(chunks, heads_qk * shares); x is
// (query/key head, share), the last innermost.
template <class Number, int kWidth>
__global__ void __launch_bounds__(kThreads)
    prepare_gdn_kernel(const __grid_constant__ PrepareArgs args, int dk, uint32_t group) {
  using Shared = GdnPrepareShared<Number, kWidth>;
  Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared_memory());
  wait_for_previous_grid();
  allow_next_grid();
  const uint32_t shares = shares_of(group), chunk = ChunkGrid::chunk();
  const uint32_t key_head = shares == 1 ? blockIdx.x : blockIdx.x / shares;  // avoids a division of 20 instructions
  const uint32_t first_of_group = (blockIdx.x - key_head * shares) * kHeadsTogether;
  ChunkPlace place;
  if (!find_chunk(args.tables, static_cast<int>(chunk), kChunk, place)) return;

  // Factors of strides are unsigned: a signed factor would need a sign extension first.
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
  // A call has fewer than 2^31 records (accepts.cpp).
  const uint32_t record = chunk * static_cast<uint32_t>(args.heads_v) + key_head * group + of_group;
  prepare_head(shared, place, args.prepared + static_cast<int64_t>(record) * kBytes, static_cast<int>(warp));
}

}  // namespace deltarelay::cuda::sm80
