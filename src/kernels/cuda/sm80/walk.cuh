// The walk of one segment (or whole sequence) of one head and one tile of value columns: `summarize` and `emit` from the records that
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
//
// Gates that forget a segment's beginning altogether make M all 0 within a few chunks (an e^-80 a chunk is below fp32's range after two). Then
// it stays 0, for every later chunk only multiplies it: its CTA stops walking, and the carry, which would add 0 to B, leaves B alone.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/checkpoint.cuh"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/sm80/arithmetic.cuh"
#include "kernels/cuda/sm80/launch.h"
#include "kernels/cuda/sm80/output.cuh"
#include "kernels/cuda/sm80/stage.cuh"
#include "kernels/cuda/sm80/state.cuh"
#include "kernels/cuda/state_io.cuh"

namespace deltarelay::cuda::sm80 {

// Pointers and strides of an item, behind the ring in shared memory: in registers they would cost the state's place.
template <class Stage>
struct Plan {
  Item item;
  Source<Stage> source;
  Output<Stage> output;
  SequenceCheckpoints checkpoints;  // of the item's sequence, where states inside it are wanted
  RowCheckpoints due;               // those of the item's row
  unsigned long long checkpoint_rows;
};

// Uses batches of right operands in order: load(i, batch), use(i, batch). Where registers allow it, a batch is loaded before the one ahead of
// it is used.
template <class Numbers, bool kAhead, int kCount, class Load, class Use>
__device__ __forceinline__ void for_each_batch(Load load, Use use) {
  typename Numbers::Right batch[kAhead ? 2 : 1][Numbers::kBatch];
  if constexpr (kAhead) load(0, batch[0]);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if constexpr (kAhead) {
      if (i + 1 < kCount) load(i + 1, batch[(i + 1) % 2]);
      use(i, batch[i % 2]);
    } else {
      load(i, batch[0]);
      use(i, batch[0]);
    }
  }
}

// One CTA, one item.
template <Op kOp, class Number, int kWidth, int kTileColumns>
struct Walk {
  using Stage = sm80::Stage<kOp, Number, kWidth, kTileColumns>;
  using Numbers = Arithmetic<Number>;
  using Left = typename Numbers::Left;
  using Batch = typename Numbers::Right[Numbers::kBatch];
  static constexpr int kElement = Stage::kElement, kRowBytes = Stage::kRowBytes;
  static constexpr int kTokens = Stage::kTokens, kSums = kTokens / 8, kGroups = kTokens / 32;
  static constexpr RecordPlaces kRecord = Stage::kRecord;
  static constexpr bool kScalarGate = Stage::kScalarGate, kTwoKeys = Stage::kTwoKeys;
  static constexpr bool kOneStage = Stage::kStages == 1 && !kTwoKeys;
  static constexpr bool kAhead = Numbers::kLoadsAhead && kWidth <= 128;  // of right operands
  static constexpr int kLookEvery = 128 / kTokens;                       // chunks between looks at all numbers of M

  // Factors of sums 2 n and 2 n + 1, from a vector at `address`.
  struct Factors {
    uint4 four;
    __device__ __forceinline__ float get(int n, int i) const {
      return __uint_as_float(n % 2 == 0 ? (i % 2 == 0 ? four.x : four.y) : (i % 2 == 0 ? four.z : four.w));
    }
  };
  static __device__ __forceinline__ Factors factors(uint32_t address, int pair, int lane) {
    return {load_four(address + pair * 64 + lane % 4 * 16)};
  }

  // -(K S)^T before its factors in `error`, (Q S)^T in `out`, both taking turns.
  template <bool kEmit>
  static __device__ __forceinline__ void read_state(float (&error)[kSums][4], float (&out)[kSums][4],
                                                    const float (&state)[kWidth / 2], uint32_t keys, uint32_t queries) {
    constexpr int kBatch = Numbers::kBatch, kMatrices = kEmit ? 2 : 1, kParts = kSums / kBatch * kMatrices;
    Left s;
    for_each_batch<Numbers, kAhead, kWidth / 32 * kParts>(
        [&](int i, Batch& batch) {
          const uint32_t tile = i % kMatrices == 0 ? keys : queries;
#pragma unroll
          for (int n = 0; n < kBatch; ++n)
            batch[n] = Numbers::load_rows(tile + i / kParts * 32 * kElement +
                                          (i % kParts / kMatrices * kBatch + n) * 8 * kRowBytes);
        },
        [&](int i, const Batch& batch) {
          if (i % kParts == 0) s = Numbers::left(state, i / kParts);
          const int first = i % kParts / kMatrices * kBatch;
          if (i % kMatrices == 0)
            Numbers::multiply_batch(error, first, s, batch);
          else
            Numbers::multiply_batch(out, first, s, batch);
        });
  }

  // U in `error`, from (K S)^T in `error`.
  static __device__ __forceinline__ void correct(float (&error)[kSums][4], uint32_t stage, bool values, int warp,
                                                 int lane) {
    typename Numbers::Values value[kGroups];
    if (values) {
      const uint32_t v = stage + Stage::kV + Numbers::values_place(lane, Stage::kValueRowBytes) + warp * 16 * kElement;
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
        value[group] = Numbers::load_values(v + group * 32 * Stage::kValueRowBytes, Stage::kValueRowBytes);
    }
#pragma unroll
    for (int pair = 0; pair < kSums / 2; ++pair) {
      const Factors beta = factors(stage + Stage::at(kRecord.beta), pair, lane);
      const Factors read = kScalarGate ? factors(stage + Stage::at(kRecord.read_factor), pair, lane) : beta;
#pragma unroll
      for (int n = 2 * pair; n < 2 * pair + 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          error[n][i] *= -read.get(n, i);
          if (values) error[n][i] = fmaf(beta.get(n, i), value[n / 4].get(n % 4, i), error[n][i]);
        }
      }
    }
    Left r[kGroups];
    left_of<Numbers>(r, error);
    Numbers::multiply_square(error, r, stage + Stage::at(kRecord.t), lane);
  }

  // O^T in `out`, from (Q S)^T in `out` and U.
  static __device__ __forceinline__ void finish_output(float (&out)[kSums][4], const float (&error)[kSums][4],
                                                       const Left (&u)[kGroups], uint32_t stage, int lane) {
#pragma unroll
    for (int pair = 0; pair < kSums / 2; ++pair) {
      const Factors diagonal = factors(stage + Stage::at(kRecord.diagonal), pair, lane);
      Factors query{};
      if constexpr (kScalarGate) query = factors(stage + Stage::at(kRecord.query_factor), pair, lane);
#pragma unroll
      for (int n = 2 * pair; n < 2 * pair + 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float from_state = kScalarGate ? out[n][i] * query.get(n, i) : out[n][i];
          out[n][i] = fmaf(diagonal.get(n, i), error[n][i], from_state);
        }
      }
    }
    Numbers::multiply_square(out, u, stage + Stage::at(kRecord.p), lane);
  }

  // S <- decay S + K^^T U. The products of a chunk are summed apart from the state: tensor cores truncate when they add.
  static __device__ __forceinline__ void update(float (&state)[kWidth / 2], const Left (&u)[kGroups], uint32_t stage,
                                                uint32_t tile, int lane) {
    constexpr int kBatch = Numbers::kBatch;
    const uint32_t keys = tile + Numbers::columns_place(lane, kRowBytes);
    const float whole = kScalarGate ? load_float(stage + Stage::at(kRecord.decay)) : 1.0f;
    float sums[kBatch][4];
    for_each_batch<Numbers, kAhead, kWidth / 8 / kBatch * kGroups>(
        [&](int i, Batch& batch) {
#pragma unroll
          for (int n = 0; n < kBatch; ++n)
            batch[n] = Numbers::load_columns(
                keys + (i / kGroups * kBatch + n) * 8 * kElement + i % kGroups * 32 * kRowBytes, kRowBytes);
        },
        [&](int i, const Batch& batch) {
          if (i % kGroups == 0) {
#pragma unroll
            for (int j = 0; j < kBatch * 4; ++j) sums[j / 4][j % 4] = 0.0f;
          }
          Numbers::multiply_batch(sums, 0, u[i % kGroups], batch);
          if (i % kGroups < kGroups - 1) return;
#pragma unroll
          for (int n = 0; n < kBatch; ++n) {
            const int b = i / kGroups * kBatch + n;
            Factors decay{};
            if constexpr (!kScalarGate) decay = factors(stage + Stage::at(kRecord.decay), b / 2, lane);
#pragma unroll
            for (int j = 0; j < 4; ++j)
              state[4 * b + j] = fmaf(state[4 * b + j], kScalarGate ? whole : decay.get(b, j), sums[n][j]);
          }
        });
  }

  // A barrier; false when all numbers of the CTA's tile of M^T are 0.
  static __device__ __forceinline__ bool transition_lives(const float (&state)[kWidth / 2]) {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) bits |= __float_as_uint(state[i]);
    return __syncthreads_or(static_cast<int>(bits & 0x7fffffffu)) != 0;
  }

  template <bool kEmit>
  static __device__ __forceinline__ void load_all(const Source<Stage>& source, int chunk, uint32_t stage) {
    if constexpr (kEmit) source.load_query(chunk, stage);
    source.load_read(chunk, stage);
    if constexpr (!Stage::kOverlaid) source.load_update(chunk, stage);
    source.template load_rest<kEmit>(chunk, stage);
  }

  // Chunks `first` .. `last` - 1 of the item. `values`: V is there (it is not for M).
  template <bool kEmit>
  static __device__ __forceinline__ void run(float (&state)[kWidth / 2], const Plan<Stage>& plan, uint32_t ring,
                                             int first, int last, bool values) {
    const Source<Stage>& source = plan.source;
    constexpr int kStages = Stage::kStages, kStagesAhead = kStages == 1 ? 1 : kStages - 1;
    if constexpr (kTwoKeys) {
      if constexpr (kEmit) source.load_query(first, ring);
      source.load_read(first, ring);
      close_copies();
    } else {
#pragma unroll
      for (int i = 0; i < kStagesAhead; ++i) {
        if (first + i < last) load_all<kEmit>(source, first + i, ring + i * Stage::kBytes);
        close_copies();
      }
    }
    int filled = kStagesAhead % kStages, used = 0;  // stages: the next to fill, the one of this chunk
#pragma unroll 1
    for (int chunk = first; chunk < last; ++chunk) {
      wait_for_copies<kStagesAhead - 1>();
      if (!kEmit && !values && chunk % kLookEvery == kLookEvery - 1) {
        if (!transition_lives(state)) {
          wait_for_copies<0>();
          return;
        }
      } else {
        __syncthreads();
      }
      if constexpr (kTwoKeys) {
        source.template load_rest<kEmit>(chunk, ring);
        close_copies();
      } else if constexpr (!kOneStage) {
        if (chunk + kStagesAhead < last) load_all<kEmit>(source, chunk + kStagesAhead, ring + filled * Stage::kBytes);
        close_copies();
        filled = filled + 1 == kStages ? 0 : filled + 1;
      }
      const uint32_t stage = opaque(ring + used * Stage::kBytes);
      used = used + 1 == kStages ? 0 : used + 1;
      const int thread = static_cast<int>(opaque(threadIdx.x)), warp = thread / 32, lane = thread % 32;
      const uint32_t odd = kTwoKeys ? chunk % 2 * Stage::kTile : 0;

      float error[kSums][4] = {}, out[kSums][4] = {};
      const uint32_t place = Numbers::rows_place(lane, kRowBytes);
      read_state<kEmit>(error, out, state, stage + Stage::kRead + odd + place, stage + Stage::kQuery + place);
      if constexpr (kTwoKeys) {  // the rest is here; q has been read by all
        wait_for_copies<0>();
        __syncthreads();
        if (chunk + 1 < last) {
          if constexpr (kEmit) source.load_query(chunk + 1, stage);
          source.load_read(chunk + 1, stage);
        }
        close_copies();
      }
      if constexpr (kOneStage) {  // q and, of KDA, k+ have been read by all
        __syncthreads();
        if constexpr (Stage::kOverlaid) source.load_update(chunk, stage);
        if (chunk + 1 < last) {
          if constexpr (kEmit) source.load_query(chunk + 1, stage);
          if constexpr (!kScalarGate && !Stage::kOverlaid) source.load_read(chunk + 1, stage);
        }
        close_copies();
      }

      correct(error, stage, values, warp, lane);
      Left u[kGroups];
      left_of<Numbers>(u, error);
      if constexpr (kEmit) {
        finish_output(out, error, u, stage, lane);
        plan.output.store(out, chunk, warp * 16, stage + Stage::kV + warp * 16 * kElement, lane);
      }
      if constexpr (Stage::kOverlaid) {
        wait_for_copies<0>();
        __syncthreads();
      }
      if constexpr (kScalarGate) {
#pragma unroll
        for (int pair = 0; pair < kSums / 2; ++pair) {
          const Factors factor = factors(stage + Stage::at(kRecord.update_factor), pair, lane);
#pragma unroll
          for (int i = 0; i < 8; ++i) error[2 * pair + i / 4][i % 4] *= factor.get(i / 4, i);
        }
        left_of<Numbers>(u, error);
      }
      update(state, u, stage, stage + Stage::kUpdate + odd, lane);
      if constexpr (kOneStage) {
        __syncthreads();
        if (chunk + 1 < last) {
          if constexpr (kScalarGate || Stage::kOverlaid) source.load_read(chunk + 1, stage);
          if constexpr (!Stage::kOverlaid) source.load_update(chunk + 1, stage);
          source.template load_rest<kEmit>(chunk + 1, stage);
        }
        close_copies();
      }
    }
  }

  static __device__ __forceinline__ void walk(const WalkInputs& inputs, const WalkArgs& args, const Extent& extent,
                                              int tiles, uint8_t* memory) {
    Item found;
    if (!find_item<Stage>(args, extent, tiles, found)) return;
    const uint32_t ring = shared_address(memory);
    auto& plan = *reinterpret_cast<Plan<Stage>*>(memory + Stage::kStages * Stage::kBytes);
    static_assert(sizeof(Plan<Stage>) <= kPlanBytes);
    SequenceCheckpoints checkpoints{};
    const bool stops = args.checkpoints.kind != Checkpoints::kNone && found.row.work == Work::kEmit;
    if (stops)
      checkpoints =
          find_checkpoints<Stage::kAllThreads>(args.tables, args.checkpoints, found.row.sequence, plan.checkpoint_rows);
    if (threadIdx.x == 0) {
      plan = {found, Source<Stage>(inputs, args, extent, found), Output<Stage>(args.o, found, extent), checkpoints, {},
              0};
      if (stops) plan.due = RowCheckpoints(args.checkpoints, plan.checkpoints, found.row, kTokens);
    }
    __syncthreads();
    const Item& item = plan.item;
    const Row& row = item.row;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const Place at{item.tile * Stage::kColumns + warp * 16 + lane / 4, lane % 4 * 2};
    // Slots have whole tiles of 64 rows: of a wider tile, some warps may have none.
    const bool in_slot = at.row < whole_tiles(item.transition ? extent.dk : extent.dv) * kTileValues;
    auto slot_state = [&](int slot) {
      const int64_t floats = static_cast<int64_t>(whole_tiles(extent.dv)) * kTileValues * kWidth;
      return args.slot_state + (static_cast<int64_t>(slot) * args.heads_v + item.head) * floats;
    };
    float state[kWidth / 2];
    if (row.work == Work::kSummarize) {
#pragma unroll
      for (int i = 0; i < kWidth / 2; ++i) {
        const int value = at.row + i / 2 % 2 * 8;  // channels that do not exist stay 0: they would never vanish
        const bool diagonal = value == at.column + i / 4 * 8 + i % 2 && value < extent.dk;
        state[i] = item.transition && diagonal ? 1.0f : 0.0f;
      }
      run<false>(state, plan, ring, 0, row.chunks, !item.transition);
      const int64_t slot_head = static_cast<int64_t>(row.slot_out) * args.heads_v + item.head;
      if (item.transition) {
        const bool lives = transition_lives(state);
        if (in_slot && threadIdx.x % kTileValues == 0)  // one for every 64 rows, whatever the tile
          row_lives(args.slot_lives, slot_head)[at.row / kTileValues] = lives ? 1 : 0;
        if (in_slot) store_slot<kWidth>(state, args.slot_transition + slot_head * slot_transition_floats(kWidth), at);
      } else {
#pragma unroll
        for (float& number : state)
          number += 0.0f;  // no -0: the carry may leave B alone or add 0 to it, with the same bits
        if (in_slot) store_slot<kWidth>(state, slot_state(row.slot_out), at);
      }
      return;
    }
    if (row.slot_in >= 0) {
#pragma unroll
      for (float& number : state) number = 0.0f;
      if (in_slot) load_slot<kWidth>(state, slot_state(row.slot_in), at);
    } else {
      const int64_t slot = initial_slot(args.initial, args.has_initial, row.sequence, args.report);
      load_state(state, args.initial, slot, item.head, at, extent);
    }
    auto leave_slot = [&] {
      if (row.slot_out >= 0 && in_slot) store_slot<kWidth>(state, slot_state(row.slot_out), at);
      if (row.slot_folded >= 0 && in_slot) load_slot<kWidth>(state, slot_state(row.slot_folded), at);
    };
    if (!stops) {
      run<true>(state, plan, ring, 0, row.chunks, true);
      leave_slot();
    } else {  // a walk of its own, for the loop around it costs registers
      for (int done = 0;;) {
        const int next = min(plan.due.chunk(), row.chunks);
        if (next > done) run<true>(state, plan, ring, done, next, true);
        done = next;
        if (done == row.chunks) leave_slot();
        while (plan.due.chunk() == done) {
          const StateView& pool = args.checkpoints.pool;
          store_state(state, pool, slot_of(pool, plan.due.row(), args.report), item.head, at, extent);
          __syncthreads();
          if (threadIdx.x == 0) plan.due.advance();
          __syncthreads();  // which also lets the stages be filled anew
        }
        if (done == row.chunks) break;
      }
    }
    if (item.ends_sequence)
      store_state(state, args.final, slot_of(args.final, row.sequence, args.report), item.head, at, extent);
  }
};

template <Op kOp, class Number, int kWidth, int kTileColumns>
__global__ void __launch_bounds__(Stage<kOp, Number, kWidth, kTileColumns>::kAllThreads,
                                  Stage<kOp, Number, kWidth, kTileColumns>::kTogether)
    walk_kernel(const __grid_constant__ WalkInputs inputs, const __grid_constant__ WalkArgs args, Extent extent,
                int tiles) {
  wait_for_previous_grid();
  allow_next_grid();
  Walk<kOp, Number, kWidth, kTileColumns>::walk(inputs, args, extent, tiles, dynamic_shared_memory());
}

}  // namespace deltarelay::cuda::sm80
