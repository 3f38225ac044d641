// The walk of one segment (or whole sequence) of one head and one tile of 64 value columns: `summarize` and `emit` from the records that
// `prepare` left.
//
// Per chunk, with S the state that enters it, in the terms of record.h (K: k+ or k, Q: q+ or q, K^: k^ or k):
//     R = beta V - read K S      U = R + T R      O = query Q S + P U + diagonal U      S <- decay S + K^^T (update U)
// A summary has no Q S, P U and O: it walks B from zero with the values, and M from the identity without them.
//
// The state is held transposed, S^T [values x keys], in fp32 registers, 16 value rows a warp. Sums of products become left operands by a
// conversion alone (arithmetic.cuh), so that nothing on the chain passes through shared memory. All right operands lie there, in a ring
// of stages that all threads fill by asynchronous copies; one barrier a chunk says both that a stage has arrived and that the one before
// it may be filled again. Where there is room for one stage only, its parts are filled again as soon as they have been read.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/sm80/arithmetic.cuh"
#include "kernels/cuda/sm80/launch.h"
#include "kernels/cuda/sm80/stage.cuh"
#include "kernels/cuda/sm80/state.cuh"
#include "kernels/cuda/state_io.cuh"

namespace deltarelay::cuda::sm80 {

// Where the outputs of an item go.
struct Output {
  uint8_t* data;   // first token, first value column of the tile
  int64_t stride;  // of tokens, in numbers
  int tokens, columns;
  DType dtype;
  bool pairs;  // two neighbours from an even column on may be written at once

  __device__ __forceinline__ Output(const TensorView& o, const Item& item, const Extent& extent) {
    const int element = o.dtype == DType::kFp32 ? 4 : 2, first = item.tile * kTileValues;
    data = static_cast<uint8_t*>(o.data) +
           (item.sequence_at * o.sequence + item.token * o.token + item.head * o.head + first) * element;
    stride = o.token;
    tokens = item.tokens;
    columns = extent.dv - first;
    dtype = o.dtype;
    pairs = access_of(o, element) != Access::kNumbers;
  }

  // O^T of a warp: rows are value columns from `column` on, columns are tokens of chunk `chunk`.
  __device__ __forceinline__ void store(const float (&out)[4][4], int chunk, int column, int lane) const {
    const int64_t first = static_cast<int64_t>(chunk) * kChunk;
    const int left = tokens - static_cast<int>(first), g = lane / 4, q = lane % 4;
    if (dtype == DType::kFp32) {
      float* to = reinterpret_cast<float*>(data) + first * stride + column + g;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int token = i / 4 * 8 + 2 * q + i % 2, value = i / 2 % 2 * 8;
        if (token < left && column + g + value < columns) to[token * stride + value] = out[i / 4][i % 4];
      }
      return;
    }
    uint16_t* to = reinterpret_cast<uint16_t*>(data) + (first + g) * stride + column + 2 * q;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {  // now rows are tokens
        const uint32_t pair = transpose_block(pack_pair(out[n][2 * r], out[n][2 * r + 1], dtype));
        const int value = column + 2 * q + 8 * r;
        uint16_t* at = to + 8 * n * stride + 8 * r;
        if (8 * n + g >= left || value >= columns) continue;
        if (pairs && value + 1 < columns) {
          *reinterpret_cast<uint32_t*>(at) = pair;
        } else {
          at[0] = static_cast<uint16_t>(pair);
          if (value + 1 < columns) at[1] = static_cast<uint16_t>(pair >> 16);
        }
      }
    }
  }
};

// Pointers and strides of an item, behind the ring in shared memory: in registers they would cost the state's place.
template <class Stage>
struct Plan {
  Item item;
  Source<Stage> source;
  Output output;
};

// One CTA, one item.
template <Op kOp, class Number, int kWidth>
struct Walk {
  using Stage = sm80::Stage<kOp, Number, kWidth>;
  using Numbers = Arithmetic<Number>;
  static constexpr int kElement = Stage::kElement, kRowBytes = Stage::kRowBytes;
  static constexpr RecordPlaces kRecord = Stage::kRecord;
  static constexpr bool kScalarGate = Stage::kScalarGate, kOneStage = Stage::kStages == 1;

  // Two factors of each 8-column block of sums, from a vector over tokens or channels at `address`.
  static __device__ __forceinline__ float2 factors(uint32_t address, int block, int lane) {
    return load_pair(address + block * 32 + lane % 4 * 8);
  }

  // U in `error`, from R^T = -(K S)^T in `error`.
  static __device__ __forceinline__ void correct(float (&error)[4][4], uint32_t stage, bool values, int warp,
                                                 int lane) {
    typename Numbers::Values value;
    if (values)
      value = Numbers::load_values(
          stage + Stage::kV + Numbers::values_place(lane, Stage::kValueRowBytes) + warp * 16 * kElement,
          Stage::kValueRowBytes);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float2 beta = factors(stage + Stage::at(kRecord.beta), n, lane);
      const float2 read = kScalarGate ? factors(stage + Stage::at(kRecord.read_factor), n, lane) : beta;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        error[n][i] *= i % 2 == 0 ? -read.x : -read.y;
        if (values) error[n][i] = fmaf(i % 2 == 0 ? beta.x : beta.y, value.get(n, i), error[n][i]);
      }
    }
    const typename Numbers::Left r = left_of<Numbers>(error);
    const uint32_t t = stage + Stage::at(kRecord.t) + Numbers::square_place(lane);
#pragma unroll
    for (int n = 0; n < 4; ++n)
      Numbers::multiply(error[n], r, Numbers::load_rows(t + n * 8 * square_row_bytes(kElement)));
  }

  // S <- decay S + K^^T U. The products of a chunk are summed apart from the state: tensor cores truncate when they add.
  static __device__ __forceinline__ void update(float (&state)[kWidth / 2], const typename Numbers::Left& u,
                                                uint32_t stage, int lane) {
    const uint32_t keys = stage + Stage::kUpdate + Numbers::columns_place(lane, kRowBytes);
    const float whole = kScalarGate ? load_float(stage + Stage::at(kRecord.decay)) : 1.0f;
#pragma unroll
    for (int b = 0; b < kWidth / 8; ++b) {
      const float2 decay = kScalarGate ? make_float2(whole, whole) : factors(stage + Stage::at(kRecord.decay), b, lane);
      float sum[4] = {};
      Numbers::multiply(sum, u, Numbers::load_columns(keys + b * 8 * kElement, kRowBytes));
#pragma unroll
      for (int i = 0; i < 4; ++i) state[4 * b + i] = fmaf(state[4 * b + i], i % 2 == 0 ? decay.x : decay.y, sum[i]);
    }
  }

  template <bool kEmit>
  static __device__ __forceinline__ void load_all(const Source<Stage>& source, int chunk, uint32_t stage) {
    if constexpr (kEmit) source.load_query(chunk, stage);
    source.load_read(chunk, stage);
    if constexpr (!Stage::kOverlaid) source.load_update(chunk, stage);
    source.template load_rest<kEmit>(chunk, stage);
  }

  // All chunks of the item. `values`: V is there (it is not for M). after_chunk(chunk, state) is called with the state that leaves a chunk.
  template <bool kEmit, class AfterChunk>
  static __device__ __forceinline__ void run(float (&state)[kWidth / 2], const Plan<Stage>& plan, uint32_t ring,
                                             int chunks, bool values, AfterChunk after_chunk) {
    const Source<Stage>& source = plan.source;
    constexpr int kStages = Stage::kStages, kAhead = kOneStage ? 1 : kStages - 1;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int chunk = 0; chunk < kAhead; ++chunk) {
      if (chunk < chunks) load_all<kEmit>(source, chunk, ring + chunk * Stage::kBytes);
      close_copies();
    }
    int filled = kAhead % kStages, used = 0;  // stages: the next to fill, the one of this chunk
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      wait_for_copies<kAhead - 1>();
      __syncthreads();
      if constexpr (!kOneStage) {
        if (chunk + kAhead < chunks) load_all<kEmit>(source, chunk + kAhead, ring + filled * Stage::kBytes);
        close_copies();
        filled = filled + 1 == kStages ? 0 : filled + 1;
      }
      const uint32_t stage = opaque(ring + used * Stage::kBytes);
      used = used + 1 == kStages ? 0 : used + 1;

      float error[4][4] = {}, out[4][4] = {};
      const uint32_t keys = stage + Stage::kRead + Numbers::rows_place(lane, kRowBytes);
      const uint32_t queries = stage + Stage::kQuery + Numbers::rows_place(lane, kRowBytes);
#pragma unroll
      for (int group = 0; group < kWidth / 32; ++group) {
        const typename Numbers::Left s = Numbers::left(state, group);
#pragma unroll
        for (int n = 0; n < 4; ++n)
          Numbers::multiply(error[n], s, Numbers::load_rows(keys + group * 32 * kElement + n * 8 * kRowBytes));
        if constexpr (kEmit) {
#pragma unroll
          for (int n = 0; n < 4; ++n)
            Numbers::multiply(out[n], s, Numbers::load_rows(queries + group * 32 * kElement + n * 8 * kRowBytes));
        }
      }
      if constexpr (kOneStage) {  // q and, of KDA, k+ have been read by all
        __syncthreads();
        if constexpr (Stage::kOverlaid) source.load_update(chunk, stage);
        if (chunk + 1 < chunks) {
          if constexpr (kEmit) source.load_query(chunk + 1, stage);
          if constexpr (!kScalarGate && !Stage::kOverlaid) source.load_read(chunk + 1, stage);
        }
        close_copies();
      }

      correct(error, stage, values, warp, lane);
      const typename Numbers::Left u = left_of<Numbers>(error);
      if constexpr (kEmit) {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const float2 diagonal = factors(stage + Stage::at(kRecord.diagonal), n, lane);
          const float2 query =
              kScalarGate ? factors(stage + Stage::at(kRecord.query_factor), n, lane) : make_float2(1.0f, 1.0f);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float from_state = kScalarGate ? out[n][i] * (i % 2 == 0 ? query.x : query.y) : out[n][i];
            out[n][i] = fmaf(i % 2 == 0 ? diagonal.x : diagonal.y, error[n][i], from_state);
          }
        }
        const uint32_t p = stage + Stage::at(kRecord.p) + Numbers::square_place(lane);
#pragma unroll
        for (int n = 0; n < 4; ++n)
          Numbers::multiply(out[n], u, Numbers::load_rows(p + n * 8 * square_row_bytes(kElement)));
      }
      if constexpr (Stage::kOverlaid) {
        wait_for_copies<0>();
        __syncthreads();
      }
      if constexpr (kScalarGate) {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const float2 factor = factors(stage + Stage::at(kRecord.update_factor), n, lane);
#pragma unroll
          for (int i = 0; i < 4; ++i) error[n][i] *= i % 2 == 0 ? factor.x : factor.y;
        }
        update(state, left_of<Numbers>(error), stage, lane);
      } else {
        update(state, u, stage, lane);
      }
      if constexpr (kEmit) {
        plan.output.store(out, chunk, warp * 16, lane);
      }
      if constexpr (kOneStage) {
        __syncthreads();
        if (chunk + 1 < chunks) {
          if constexpr (kScalarGate || Stage::kOverlaid) source.load_read(chunk + 1, stage);
          if constexpr (!Stage::kOverlaid) source.load_update(chunk + 1, stage);
          source.template load_rest<kEmit>(chunk + 1, stage);
        }
        close_copies();
      }
      after_chunk(chunk, state);
    }
  }

  static __device__ __forceinline__ void walk(const WalkInputs& inputs, const WalkArgs& args, const Extent& extent,
                                              int tiles, uint8_t* memory) {
    Item found;
    if (!find_item(args, extent, tiles, found)) return;
    const uint32_t ring = shared_address(memory);
    auto& plan = *reinterpret_cast<Plan<Stage>*>(memory + Stage::kStages * Stage::kBytes);
    static_assert(sizeof(Plan<Stage>) <= kPlanBytes);
    if (threadIdx.x == 0) plan = {found, Source<Stage>(inputs, args, extent, found), Output(args.o, found, extent)};
    __syncthreads();
    const Item& item = plan.item;
    const Row& row = item.row;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const Place at{item.tile * kTileValues + warp * 16 + lane / 4, lane % 4 * 2};
    auto slot_state = [&](int slot) {
      const int64_t floats = static_cast<int64_t>(whole_tiles(extent.dv)) * kTileValues * kWidth;
      return args.slot_state + (static_cast<int64_t>(slot) * args.heads_v + item.head) * floats;
    };
    float state[kWidth / 2];
    if (row.work == Work::kSummarize) {
#pragma unroll
      for (int i = 0; i < kWidth / 2; ++i) {
        const bool diagonal = at.row + i / 2 % 2 * 8 == at.column + i / 4 * 8 + i % 2;
        state[i] = item.transition && diagonal ? 1.0f : 0.0f;
      }
      run<false>(state, plan, ring, row.chunks, !item.transition, [](int, const auto&) {});
      constexpr int64_t kTransitionFloats = slot_transition_floats(kWidth);
      float* transition =
          args.slot_transition + (static_cast<int64_t>(row.slot_out) * args.heads_v + item.head) * kTransitionFloats;
      store_slot<kWidth>(state, item.transition ? transition : slot_state(row.slot_out), at);
      return;
    }
    if (row.slot_in >= 0) {
      load_slot<kWidth>(state, slot_state(row.slot_in), at);
    } else {
      const int64_t slot = initial_slot(args.initial, args.has_initial, row.sequence, args.report);
      load_state(state, args.initial, slot, item.head, at, extent);
    }
    run<true>(state, plan, ring, row.chunks, true, [](int, const auto&) {});
    if (row.slot_out >= 0) store_slot<kWidth>(state, slot_state(row.slot_out), at);
    if (item.ends_sequence) {
      if (row.slot_folded >= 0) load_slot<kWidth>(state, slot_state(row.slot_folded), at);
      store_state(state, args.final, slot_of(args.final, row.sequence, args.report), item.head, at, extent);
    }
  }
};

template <Op kOp, class Number, int kWidth>
__global__ void __launch_bounds__(kThreads, Stage<kOp, Number, kWidth>::kTogether)
    walk_kernel(const __grid_constant__ WalkInputs inputs, const __grid_constant__ WalkArgs args, Extent extent,
                int tiles) {
  wait_for_previous_grid();
  allow_next_grid();
  Walk<kOp, Number, kWidth>::walk(inputs, args, extent, tiles, dynamic_shared_memory());
}

}  // namespace deltarelay::cuda::sm80
