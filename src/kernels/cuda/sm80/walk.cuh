// The walk of one segment (or whole sequence) of one head and one tile of value columns: summarize and emit, from the
// records that prepare left.
//
// Per chunk, with S the entering state and the tiles and factors of record.h (KDA: K = k_from_start, Q = q_from_start,
// K_end = k_to_end; GDN: K = K_end = k, Q = q):
//     R     = beta V - read_factor K S
//     V_new = R + (inverse - I) R
//     O     = query_factor Q S + Aqk V_new + diagonal V_new
//     S    <- decay_chunk S + K_end^T (update_factor V_new)
// For KDA, R, V_new and Aqk carry the tilde of record.h. A summary has no Q S, Aqk V_new and O. It walks B from zero
// with the values, and M from the identity without them.
//
// The state is held transposed, S^T [values x keys], in fp32 registers, with one or two row tiles of 16 value rows per
// warp. Accumulators become left operands by conversion alone (arithmetic.cuh), so nothing on the chain passes through
// shared memory. All right operands are in shared memory, in a ring of stages that all threads fill by asynchronous
// copies. Each right operand that a warp reads serves all its row tiles. One barrier per chunk says that a stage has
// arrived and that the stage before it may be filled again. If only one stage fits, its tiles are filled again as soon
// as they have been read.
//
// The walk of a transition stops when it has vanished (vanished.cuh). If the last chunks of a row forget everything
// before them, only they are summarized (suffix.cuh). A CTA may walk B and M^T of a row side by side, each with half of
// its warps (tiling.h).
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/launch/checkpoint.cuh"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/rows/early_start.cuh"
#include "kernels/cuda/sm80/arithmetic.cuh"
#include "kernels/cuda/sm80/launch.h"
#include "kernels/cuda/sm80/output.cuh"
#include "kernels/cuda/sm80/stage.cuh"
#include "kernels/cuda/sm80/state.cuh"
#include "kernels/cuda/sm80/suffix.cuh"
#include "kernels/cuda/tile/state_io.cuh"
#include "kernels/cuda/tile/vanished.cuh"

namespace deltarelay::cuda::sm80 {

// Pointers and strides of an item, after the ring in shared memory. In registers they would displace the state.
template <class Stage>
struct alignas(16) Plan {
  Source<Stage> source;
  Output<Stage> output;
  Item item;
  int promising;                    // summary: number of last chunks to try first
  SequenceCheckpoints checkpoints;  // of the item's sequence, if the call has checkpoints
  RowCheckpoints due;               // of the item's row
  unsigned long long checkpoint_rows;
};

// Uses batches of right operands in order: load(i, batch), use(i, batch). If registers allow, loads batch i + 1 before
// using batch i.
template <class Batch, bool kAhead, int kCount, class Load, class Use>
__device__ __forceinline__ void for_each_batch(Load load, Use use) {
  Batch batch[kAhead ? 2 : 1];
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

// Waits for the previous grid, unless this one can start early. Phase 3 waits as late as possible, before it reads
// states. Inputs and records were complete when phase 1 began. Phase 3 starts after phase 1 (or after carry, which
// starts after phase 1), once all CTAs there have allowed it; CTAs of phase 1 allow it after their own wait. Every CTA
// waits, with or without an item: a grid that waits for the end of this one relies on the end of all grids before it.
//
// Until the wait, L1 may hold lines of an earlier call. So only a kernel that bypasses L1 starts early: the tables came
// with the launch, tensors are copied in pieces (shared_memory.cuh), and there are no checkpoints.
template <class Stage>
__device__ __forceinline__ void wait_first(const WalkInputs& inputs, const WalkArgs& args) {
  auto in_pieces = [](const TensorView& tensor) { return access_of(tensor, Stage::kElement) == Access::kPieces; };
  const bool starts_early = args.phase == 3 && table_came(args) && args.checkpoints.kind == Checkpoints::kNone &&
                            in_pieces(inputs.v) &&
                            (!Stage::kScalarGate || (in_pieces(inputs.q) && in_pieces(inputs.k)));
  if (!starts_early) wait_for_previous_grid();
  allow_next_grid();
}

// The walk of one item by one CTA.
template <Rule kRule, class Number, int kWidth, int kTileColumns, bool kBoth>
struct Walk {
  using Stage = sm80::Stage<kRule, Number, kWidth, kTileColumns, kBoth>;
  using Numbers = Arithmetic<Number>;
  using Left = typename Numbers::Left;
  static constexpr int kElement = Stage::kElement, kRowBytes = Stage::kRowBytes, kRowTiles = Stage::kRowTiles;
  static constexpr int kBatch = Numbers::kBatch > kRowTiles ? Numbers::kBatch / kRowTiles : 1;
  using Batch = typename Numbers::Right[kBatch];
  static constexpr int kSums = kChunk / 8;
  using State = float[kRowTiles][kWidth / 2];
  using Sums = float[kRowTiles][kSums][4];
  using Lefts = Left[kRowTiles];  // accumulators as left operands
  static constexpr RecordPlaces kRecord = Stage::kRecord;
  static constexpr bool kScalarGate = Stage::kScalarGate, kOneStage = Stage::kStages == 1;
  static constexpr bool kAhead = Numbers::kLoadsAhead && kWidth <= 128;  // load right operands one batch ahead
  // With two stages ahead, copies are issued after the products with the state, which hides their latency. Warps
  // without columns then walk too.
  static constexpr bool kLoadsLate = Stage::kNarrow && Stage::kStages > 2 && !kBoth;
  // Is the first state loaded after the first copies? With wider heads this spills registers in the loop.
  static constexpr bool kStartsLate = Stage::kNarrow;
  static constexpr int kFirstLook = 2;  // chunks before the first test of M: strong gates have then left nothing
  static constexpr int kLookEvery = 128 / kChunk;  // chunks between tests of all numbers of M

  // Factors per token of accumulators 2 n and 2 n + 1, from a vector at `address`.
  struct Factors {
    uint4 four;
    __device__ __forceinline__ float get(int n, int i) const {
      return __uint_as_float(n % 2 == 0 ? (i % 2 == 0 ? four.x : four.y) : (i % 2 == 0 ? four.z : four.w));
    }
  };
  static __device__ __forceinline__ Factors factors(uint32_t address, int pair, int lane) {
    return {load_four(address + pair * 64 + lane % 4 * 16)};
  }

  static __device__ __forceinline__ void left_of(Lefts& left, const Sums& sums) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) left[r] = sm80::left_of<Numbers>(sums[r]);
  }

  // Adds (K S)^T to `residual` and (Q S)^T to `out`, both before their factors per token. Products alternate between
  // both.
  template <bool kEmit>
  static __device__ __forceinline__ void read_state(Sums& residual, Sums& out, const State& state, uint32_t keys,
                                                    uint32_t queries) {
    constexpr int kMatrices = kEmit ? 2 : 1, kParts = kSums / kBatch * kMatrices;
    Lefts s;
    for_each_batch<Batch, kAhead, kWidth / 32 * kParts>(
        [&](int i, Batch& batch) {
          const uint32_t tile = i % kMatrices == 0 ? keys : queries;
#pragma unroll
          for (int n = 0; n < kBatch; ++n)
            batch[n] = Numbers::load_rows(tile + i / kParts * 32 * kElement +
                                          (i % kParts / kMatrices * kBatch + n) * 8 * kRowBytes);
        },
        [&](int i, const Batch& batch) {
#pragma unroll
          for (int r = 0; r < kRowTiles; ++r) {
            if (i % kParts == 0) s[r] = Numbers::left(state[r], i / kParts);
            const int first = i % kParts / kMatrices * kBatch;
            if (i % kMatrices == 0)
              Numbers::multiply_batch(residual[r], first, s[r], batch);
            else
              Numbers::multiply_batch(out[r], first, s[r], batch);
          }
        });
  }

  // Turns (K S)^T in `residual` into R^T and then into V_new^T.
  static __device__ __forceinline__ void correct(Sums& residual, uint32_t stage, bool values, int warp, int lane) {
    typename Numbers::Values value[kRowTiles];
    if (values) {
      const uint32_t v =
          stage + Stage::kV + Numbers::values_place(lane, Stage::kValueRowBytes) + Stage::first_row(warp) * kElement;
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) value[r] = Numbers::load_values(v + r * 16 * kElement, Stage::kValueRowBytes);
    }
#pragma unroll
    for (int pair = 0; pair < kSums / 2; ++pair) {
      const Factors beta = factors(stage + Stage::at(kRecord.beta), pair, lane);
      const Factors read = factors(stage + Stage::at(kRecord.read_factor), pair, lane);
#pragma unroll
      for (int j = 0; j < kRowTiles * 8; ++j) {
        const int r = j / 8, n = 2 * pair + j / 4 % 2, i = j % 4;
        residual[r][n][i] *= -read.get(n, i);
        if (values) residual[r][n][i] = fmaf(beta.get(n, i), value[r].get(n, i), residual[r][n][i]);
      }
    }
    Lefts left;
    left_of(left, residual);
    Numbers::multiply_square(residual, left, stage + Stage::at(kRecord.inverse), lane);
  }

  // Turns (Q S)^T in `out` into O^T, with V_new in accumulators and as left operands.
  static __device__ __forceinline__ void finish_output(Sums& out, const Sums& residual, const Lefts& v_new,
                                                       uint32_t stage, int lane) {
#pragma unroll
    for (int pair = 0; pair < kSums / 2; ++pair) {
      const Factors diagonal = factors(stage + Stage::at(kRecord.diagonal), pair, lane);
      const Factors query = factors(stage + Stage::at(kRecord.query_factor), pair, lane);
#pragma unroll
      for (int j = 0; j < kRowTiles * 8; ++j) {
        const int r = j / 8, n = 2 * pair + j / 4 % 2, i = j % 4;
        out[r][n][i] = fmaf(diagonal.get(n, i), residual[r][n][i], out[r][n][i] * query.get(n, i));
      }
    }
    Numbers::multiply_square(out, v_new, stage + Stage::at(kRecord.aqk), lane);
  }

  // S <- decay_chunk S + K_end^T V_new. Tensor cores truncate when they add, so the products of a chunk are summed
  // apart from the state. `halfway` is called when half of the products are in flight.
  template <class Halfway>
  static __device__ __forceinline__ void update(State& state, const Lefts& v_new, uint32_t stage, uint32_t tile,
                                                int lane, Halfway halfway) {
    const uint32_t keys = tile + Numbers::columns_place(lane, kRowBytes);
    const float whole = kScalarGate ? load_float(stage + Stage::at(kRecord.decay_chunk)) : 1.0f;
    for_each_batch<Batch, kAhead, kWidth / 8 / kBatch>(
        [&](int i, Batch& batch) {
#pragma unroll
          for (int n = 0; n < kBatch; ++n)
            batch[n] = Numbers::load_columns(keys + (i * kBatch + n) * 8 * kElement, kRowBytes);
        },
        [&](int i, const Batch& batch) {
          if (i == kWidth / 8 / kBatch / 2) halfway();
          float sums[kRowTiles][kBatch][4] = {};
#pragma unroll
          for (int r = 0; r < kRowTiles; ++r) Numbers::multiply_batch(sums[r], 0, v_new[r], batch);
#pragma unroll
          for (int n = 0; n < kBatch; ++n) {
            const int b = i * kBatch + n;
            Factors decay{};
            if constexpr (!kScalarGate) decay = factors(stage + Stage::at(kRecord.decay_chunk), b / 2, lane);
#pragma unroll
            for (int j = 0; j < kRowTiles * 4; ++j) {
              float& number = state[j / 4][4 * b + j % 4];
              number = fmaf(number, kScalarGate ? whole : decay.get(b, j), sums[j / 4][n][j % 4]);
            }
          }
        });
  }

  // Has any of the CTA's rows of M^T not vanished? `of_m`: this warp has rows of M^T. Contains a barrier.
  static __device__ __forceinline__ bool transition_lives(const State& state, bool of_m, float vanish_bound) {
    bool alive = false;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) alive = keeps_alive(state[r], vanish_bound) || alive;
    return __syncthreads_or(static_cast<int>(alive && of_m)) != 0;
  }

  // Copies all of a chunk: one warp per tile, all threads for the rest.
  template <bool kEmit>
  static __device__ __forceinline__ void load_all(uint32_t source, int chunk, uint32_t stage, bool values, int thread) {
    using Source = sm80::Source<Stage>;
#pragma unroll
    for (int first = 0; first <= Source::kValues; first += Stage::kWarps) {
      const int which = first + thread / 32;
      const bool wanted = which == Source::kQuery ? kEmit
                          : which == Source::kValues
                              ? values
                              : which < Source::kValues && !(Stage::kOverlaid && which == Source::kUpdate);
      if (wanted) Source::template load_tile<32>(source, which, chunk, stage, thread % 32);
    }
    Source::template load_rest<kEmit>(source, chunk, stage, thread);
  }

  // One stage only: after the products with the state, replaces the tiles that all warps have read. With overlaid tiles
  // k_to_end of this chunk comes first.
  template <bool kEmit>
  static __device__ __forceinline__ void refill_read(uint32_t source, int chunk, int last, uint32_t stage, int thread) {
    using Source = sm80::Source<Stage>;
    auto load_tile = [&](int which, int of_chunk) {
      Source::template load_tile<Stage::kAllThreads>(source, which, of_chunk, stage, thread);
    };
    __syncthreads();  // all warps have read q and, for KDA, k_from_start
    if constexpr (Stage::kOverlaid) load_tile(Source::kUpdate, chunk);
    if (chunk + 1 < last) {
      if constexpr (kEmit) load_tile(Source::kQuery, chunk + 1);
      if constexpr (!kScalarGate && !Stage::kOverlaid) load_tile(Source::kRead, chunk + 1);
    }
    close_copies();
  }

  // One stage only: after the update of the state, replaces everything else.
  template <bool kEmit>
  static __device__ __forceinline__ void refill_rest(uint32_t source, int chunk, int last, uint32_t stage, bool values,
                                                     int thread) {
    using Source = sm80::Source<Stage>;
    auto load_tile = [&](int which) {
      Source::template load_tile<Stage::kAllThreads>(source, which, chunk + 1, stage, thread);
    };
    __syncthreads();
    if (chunk + 1 < last) {
      if constexpr (kScalarGate || Stage::kOverlaid) load_tile(Source::kRead);
      if constexpr (!kScalarGate && !Stage::kOverlaid) load_tile(Source::kUpdate);
      if (values) load_tile(Source::kValues);
      Source::template load_rest<kEmit>(source, chunk + 1, stage, thread);
    }
    close_copies();
  }

  // GDN: applies update_factor to V_new.
  static __device__ __forceinline__ void scale_for_update(Sums& residual, Lefts& v_new, uint32_t stage, int lane) {
#pragma unroll
    for (int pair = 0; pair < kSums / 2; ++pair) {
      const Factors factor = factors(stage + Stage::at(kRecord.update_factor), pair, lane);
#pragma unroll
      for (int j = 0; j < kRowTiles * 8; ++j) residual[j / 8][2 * pair + j / 4 % 2][j % 4] *= factor.get(j / 4, j);
    }
    left_of(v_new, residual);
  }

  // Walks chunks `first` to `last` - 1 of the item. `values`: the CTA has V; M needs none. `of_m`: the rows of this
  // warp belong to M^T. `idle`: the warp has no columns and only helps to copy. `start` is called when the first copies
  // are in flight.
  template <bool kEmit, class Start>
  static __device__ __forceinline__ void run(const WalkArgs& args, State& state, uint32_t ring, int first, int last,
                                             bool values, bool of_m, bool idle, Start start) {
    constexpr int kStages = Stage::kStages, kStagesAhead = kStages == 1 ? 1 : kStages - 1;
    const uint32_t source = ring + kStages * Stage::kBytes, this_thread = opaque(threadIdx.x);
    Copies<Stage, kEmit> copies(source, first, values, static_cast<int>(threadIdx.x));
    auto load = [&](int chunk, int to, int thread) {
      const uint32_t stage = ring + to * Stage::kBytes;
      if (!copies.next(chunk, stage, values, thread)) load_all<kEmit>(source, chunk, stage, values, thread);
    };
#pragma unroll
    for (int i = 0; i < kStagesAhead; ++i) {
      if (first + i < last) load(first + i, i, static_cast<int>(threadIdx.x));
      close_copies();
      copies.go_on();
    }
    start();
    const uint32_t output = source + static_cast<int>(sizeof(Source<Stage>));
    Output<Stage> to;
    if constexpr (kEmit && Stage::kNarrow) to = load_object<Output<Stage>>(output);
    bool transition = kBoth || !values;             // M is walked, by this warp or by another
    int filled = kStagesAhead % kStages, used = 0;  // the stage to fill next; the stage of this chunk
#pragma unroll 1
    for (int chunk = first; chunk < last; ++chunk) {
      wait_for_copies<kStagesAhead - 1>();
      const int walked = chunk - first;
      if (!kEmit && transition && (walked == kFirstLook || walked % kLookEvery == kLookEvery - 1)) {
        if (!transition_lives(state, of_m, args.vanish_bound)) {
          if constexpr (kBoth) {  // the walk of B continues
            transition = false;
            idle = idle || of_m;
          } else {
            wait_for_copies<0>();
            return;
          }
        }
      } else {
        __syncthreads();
      }
      // Opaque: otherwise the compiler keeps every address of a chunk in registers from one chunk to the next. The
      // remainder tells the compiler that the number is not negative; quotients of signed numbers need a correction.
      // With wider heads the compiler would then keep so many values that it spills.
      const uint32_t number = opaque(this_thread);
      const int thread = static_cast<int>(Stage::kNarrow ? number % Stage::kAllThreads : number);
      const int warp = thread / 32, lane = thread % 32;
      const uint32_t stage = opaque(ring + used * Stage::kBytes);
      used = used + 1 == kStages ? 0 : used + 1;
      auto load_ahead = [&] {
        if (chunk + kStagesAhead < last) load(chunk + kStagesAhead, filled, thread);
        close_copies();
        filled = filled + 1 == kStages ? 0 : filled + 1;
      };
      if constexpr (!kOneStage && !kLoadsLate) {
        load_ahead();
        if (idle) {
          copies.go_on();
          continue;
        }
      }
      const int column = Stage::first_row(warp);
      const uint32_t passage = stage + Stage::kV + column * kElement;  // for the warp's outputs

      Sums residual = {}, out = {};
      const uint32_t place = Numbers::rows_place(lane, kRowBytes);
      read_state<kEmit>(residual, out, state, stage + Stage::kRead + place, stage + Stage::kQuery + place);
      if constexpr (kLoadsLate) load_ahead();
      if constexpr (kOneStage) refill_read<kEmit>(source, chunk, last, stage, thread);

      correct(residual, stage, !of_m, warp, lane);
      Lefts v_new;
      left_of(v_new, residual);
      if constexpr (kEmit) {
        finish_output(out, residual, v_new, stage, lane);
        if constexpr (!Stage::kNarrow) to = load_object<Output<Stage>>(output);
        to.begin(out, chunk, column, passage, lane);
        if constexpr (!Stage::kNarrow) to.finish(to.template fetch<2>(passage, lane), chunk, column, passage, lane);
      }
      if constexpr (Stage::kOverlaid) {
        wait_for_copies<0>();
        __syncthreads();
      }
      if constexpr (kScalarGate) scale_for_update(residual, v_new, stage, lane);
      if constexpr (kEmit && Stage::kNarrow) {
        // Outputs leave while the state is updated, so nothing waits for their loads and stores.
        const auto pieces = to.template fetch<2>(passage, lane);
        update(state, v_new, stage, stage + Stage::kUpdate, lane,
               [&] { to.finish(pieces, chunk, column, passage, lane); });
      } else {
        update(state, v_new, stage, stage + Stage::kUpdate, lane, [] {});
      }
      copies.go_on();
      if constexpr (kOneStage) refill_rest<kEmit>(source, chunk, last, stage, values, thread);
    }
  }

  // The rows of S^T or M^T that a warp has of an item, and where they are stored.
  struct Part {
    const WalkArgs& args;
    const Extent& extent;
    const Item& item;
    int lane;
    bool of_m;
    int first_row;
    bool idle;     // the warp has no columns
    bool in_slot;  // slots have whole tiles of 64 rows; with a wider tile, some warps may lie outside

    __device__ __forceinline__ Part(const WalkArgs& of_args, const Extent& of_extent, const Item& of_item)
        : args(of_args), extent(of_extent), item(of_item) {
      const int warp = static_cast<int>(threadIdx.x) / 32;
      lane = static_cast<int>(threadIdx.x) % 32;
      of_m = kBoth ? item.row.work == Work::kSummarize && warp >= Stage::kWarps / 2 : item.transition;
      first_row = item.tile * Stage::kColumns + Stage::first_row(warp) - (kBoth && of_m ? Stage::kColumns / 2 : 0);
      idle = first_row >= (of_m ? extent.dk : extent.dv);
      in_slot = first_row < whole_tiles(of_m ? extent.dk : extent.dv) * kTileValues;
    }
    __device__ __forceinline__ Place place(int r) const { return Place{first_row + 16 * r + lane / 4, lane % 4 * 2}; }
    __device__ __forceinline__ float* slot_state(int slot) const {
      const int64_t floats = static_cast<int64_t>(whole_tiles(extent.dv)) * kTileValues * kWidth;
      return args.slot_state + (static_cast<int64_t>(slot) * args.heads_v + item.head) * floats;
    }
    __device__ __forceinline__ void to_slot(const State& state, float* matrix) const {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        if (in_slot) store_slot<kWidth>(state[r], matrix, place(r));
      }
    }
    __device__ __forceinline__ void from_slot(State& state, const float* matrix) const {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        if (in_slot) load_slot<kWidth>(state[r], matrix, place(r));
      }
    }
    __device__ __forceinline__ void to_pool(const State& state, const StateView& pool, int64_t slot) const {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) store_state(state[r], pool, slot, item.head, place(r), extent);
    }
  };

  // Walks the transition of a row and stores it.
  static __device__ __forceinline__ void summarize(const WalkArgs& args, const Extent& extent, const Plan<Stage>& plan,
                                                   const Part& part, State& state, uint32_t ring) {
    const Row& row = part.item.row;
    bool lives = false;
    int first = kBoth && plan.promising > 0 ? row.chunks - plan.promising : 0;
#pragma unroll 1
    for (;; first = 0) {
#pragma unroll
      for (int i = 0; i < kRowTiles * kWidth / 2; ++i) state[i % kRowTiles][i / kRowTiles] = 0.0f;
      if (part.of_m) {
#pragma unroll
        for (int i = 0; i < kRowTiles * kWidth / 2; ++i) {
          const int r = i / (kWidth / 2), j = i % (kWidth / 2);
          const int value = part.place(r).row + j / 2 % 2 * 8, key = part.place(r).column + j / 4 * 8 + j % 2;
          // Channels that do not exist stay 0: a 1 there would never vanish.
          if (value == key && value < extent.dk) state[r][j] = 1.0f;
        }
      }
      run<false>(args, state, ring, first, row.chunks, kBoth || !part.of_m, part.of_m, part.idle, [] {});
      if (kBoth || part.of_m) lives = transition_lives(state, part.of_m, args.vanish_bound);
      if (first == 0 || !lives) break;
    }
    const int64_t slot_head = static_cast<int64_t>(row.slot_out) * args.heads_v + part.item.head;
    if (part.of_m) {
      if (part.in_slot && part.first_row % kTileValues == 0 && part.lane == 0)  // one flag per 64 rows of any tile
        put_row_lives(args.slot_lives, slot_head, part.first_row / kTileValues, whole_tiles(extent.dk), lives);
      if (args.vanish_bound > 0.0f && !lives) {
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) drop(state[r], args.report);
      }
      // Nothing is stored of a transition that has vanished: carry does not read it.
      if (lives || extent.dk > Stage::kMostOfM)
        part.to_slot(state, args.slot_transition + slot_head * slot_transition_floats(kWidth));
    } else {
      // Turns -0 into 0: carry may skip B or add 0 to it, with the same bits.
#pragma unroll
      for (int i = 0; i < kRowTiles * kWidth / 2; ++i) state[i % kRowTiles][i / kRowTiles] += 0.0f;
      part.to_slot(state, part.slot_state(row.slot_out));
    }
  }

  static __device__ __forceinline__ void walk(const WalkInputs& inputs, const WalkArgs& args, const Extent& extent,
                                              int tiles, uint8_t* memory) {
    Item found;
    if (!find_item<Stage>(args, extent, tiles, found)) {
      wait_for_state(args);
      return;
    }
    const uint32_t ring = shared_address(memory);
    auto& plan = *reinterpret_cast<Plan<Stage>*>(memory + Stage::kStages * Stage::kBytes);
    static_assert(sizeof(Plan<Stage>) <= kPlanBytes);
    SequenceCheckpoints checkpoints{};
    const bool stops = args.checkpoints.kind != Checkpoints::kNone && found.row.work == Work::kEmit;
    if (stops)
      checkpoints =
          find_checkpoints<Stage::kAllThreads>(args.tables, args.checkpoints, found.row.sequence, plan.checkpoint_rows);
    int promising = 0;
    if (found.row.work == Work::kSummarize && args.vanish_bound == 0.0f) {
      if constexpr (kScalarGate) {
        if (keep_suffix<Stage>(args, found) && found.transition) {
          leave_no_transition(args, found);
          return;
        }
      }
      if constexpr (kBoth) promising = promising_chunks<Stage>(args, found);
    }
    if constexpr (kBoth) {
      if ((promising > 0) != found.promising) return;  // another CTA has this row
    }
    if (threadIdx.x == 0) {  // field by field: other threads may still read checkpoint_rows
      plan.source = Source<Stage>(inputs, args, extent, found);
      plan.output = Output<Stage>(args.o, found, extent);
      plan.item = found;
      plan.promising = promising;
      plan.checkpoints = checkpoints;
      if (stops) plan.due = RowCheckpoints(args.checkpoints, plan.checkpoints, found.row, kChunk);
    }
    __syncthreads();
    const Part part(args, extent, plan.item);
    State state;
    if (plan.item.row.work == Work::kSummarize) {
      summarize(args, extent, plan, part, state, ring);
      return;
    }
    const Item& item = part.item;
    const Row& row = item.row;
    auto load_first = [&] {
      wait_for_state(args);
      if (row.slot_in >= 0) {
#pragma unroll
        for (int i = 0; i < kRowTiles * kWidth / 2; ++i) state[i % kRowTiles][i / kRowTiles] = 0.0f;
        part.from_slot(state, part.slot_state(row.slot_in));
      } else {
        const int64_t slot = initial_slot(args.initial, args.has_initial, row.sequence, args.report);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) load_state(state[r], args.initial, slot, item.head, part.place(r), extent);
      }
    };
    if constexpr (!kStartsLate) load_first();
    // Walk from checkpoint to checkpoint.
    for (int done = 0;;) {
      const int next = stops ? min(plan.due.chunk(), row.chunks) : row.chunks;
      // A checkpoint before the first token: no chunk is walked first, and the state is then loaded twice.
      if (next > done || (kStartsLate && done == 0)) {
        run<true>(args, state, ring, done, next, true, false, part.idle, [&] {
          if (kStartsLate && done == 0) load_first();
        });
      }
      done = next;
      if (done == row.chunks) {
        if (row.slot_out >= 0) part.to_slot(state, part.slot_state(row.slot_out));
        if (row.slot_folded >= 0) part.from_slot(state, part.slot_state(row.slot_folded));
      }
      while (stops && plan.due.chunk() == done) {
        const StateView& pool = args.checkpoints.pool;
        part.to_pool(state, pool, slot_of(pool, plan.due.row(), args.report));
        __syncthreads();
        if (threadIdx.x == 0) plan.due.advance();
        __syncthreads();  // the stages may now be filled again
      }
      if (done == row.chunks) break;
    }
    if (item.ends_sequence) part.to_pool(state, args.final, slot_of(args.final, row.sequence, args.report));
  }
};

template <Rule kRule, class Number, int kWidth, int kTileColumns, bool kBoth>
__global__ void __launch_bounds__(Stage<kRule, Number, kWidth, kTileColumns, kBoth>::kAllThreads,
                                  Stage<kRule, Number, kWidth, kTileColumns, kBoth>::kTogether)
    walk_kernel(const __grid_constant__ WalkInputs inputs, const __grid_constant__ WalkArgs args, Extent extent,
                int tiles) {
  using Walk = sm80::Walk<kRule, Number, kWidth, kTileColumns, kBoth>;
  wait_first<typename Walk::Stage>(inputs, args);
  Walk::walk(inputs, args, extent, tiles, dynamic_shared_memory());
}

}  // namespace deltarelay::cuda::sm80
