// DR_STATE_PASS and DR_SUMMARY: the walk of one row of one head and one tile of value columns, from given W and U.
//
//     V_new = U - W S
//     S    <- decay_chunk S + k_to_end^T V_new
//
// A summary walks B from zero with U, and M^T from the identity without it. The state is held transposed in registers,
// as in the forward's walk (walk.cuh): sums of products become left operands by conversion alone. Right operands are
// slabs of 64 columns and a chunk of tokens, in a ring that all threads fill by asynchronous copies. With one barrier a
// slab: it has arrived, and the slab before it may be filled again.
//
// KDA decays keys and state by channel. Keys that are not given as k_to_end are made on their way into the ring. GDN
// reads keys as they are, and decays V_new by token instead.
#pragma once
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/grid.cuh"
#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/sm80/arithmetic.cuh"
#include "kernels/cuda/sm80/stages/pass_memory.cuh"
#include "kernels/cuda/sm80/stages/states.cuh"
#include "kernels/cuda/tile/vanished.cuh"

namespace deltarelay::cuda::sm80 {

template <class Number, int kWidth>
struct Pass {
  using Element = typename ElementOf<Number>::Type;
  using Numbers = Arithmetic<Number>;
  using Ring = PassRing<Element>;
  using State = float[kWidth / 2];
  using Sums = float[2][4][4];  // of two groups of 32 tokens
  static constexpr int kElement = Ring::kElement, kRowBytes = Ring::kRowBytes, kGroups = kWidth / kSlab;
  static constexpr int kBatch = Numbers::kBatch;
  static constexpr int kAhead = Ring::kSlabs - 1;
  static constexpr int kLookEvery = 4;  // chunks between tests of M

  const PassArgs& args;
  const PassItem& item;
  Ring& shared;
  int thread, warp, lane;
  bool is_kda, makes_keys, makes_decays, scales_values;
  StageChunk first;                 // of the row
  int chunk_tokens, slabs, values;  // slabs of keys; of values
  PassSource w, u, k;
  // The next slab to fill: its chunk, its number in the chunk, its place.
  int fill_chunk = 0, fill_slab = 0, filled = 0, used = 0;
  float next[2] = {0.0f, 0.0f};  // of the next chunk: the last sums of two channels (KDA), a gate or sum (GDN)

  __device__ __forceinline__ Pass(const PassArgs& of, const PassItem& of_item, Ring& memory)
      : args(of),
        item(of_item),
        shared(memory),
        thread(static_cast<int>(threadIdx.x)),
        warp(thread / 32),
        lane(thread % 32),
        is_kda(of.rule == Rule::kKda),
        makes_keys(!of.stage.gives(DR_K_TO_END) && (is_kda || of.activation.l2norm || of.k.dtype != of.stage.dtype)),
        makes_decays(is_kda && !of.stage.gives(DR_K_TO_END | DR_GATE_SUMS)),
        scales_values(!is_kda && !of.stage.gives(DR_K_TO_END)),
        first(stage_chunk(of.tables, of_item.place, of_item.head, of.heads_v / of.heads_qk)),
        chunk_tokens(of.stage.chunk),
        slabs(tiles_of(of.dk, kPassSlab)),
        values(of_item.of_m ? 0 : kPassColumns / kPassSlab),
        w(rows_of(of.stage.w, of.stage.dtype, first, of.heads_v, of.dk), of.dk),
        u(rows_of(of.stage.u, of.stage.dtype, first, of.heads_v, of.dv), of.dv),
        k(of.stage.gives(DR_K_TO_END) ? rows_of(of.stage.k_to_end, of.stage.dtype, first, of.heads_v, of.dk)
                                      : rows_of(of.k, first, first.key_head),
          of.dk) {}

  __device__ __forceinline__ int tokens_of(int chunk) const {
    return min(item.tokens - chunk * chunk_tokens, chunk_tokens);
  }
  // Chunk `chunk` of the row, as the functions for rows take it.
  __device__ __forceinline__ StageChunk at(int chunk) const {
    StageChunk place = first;
    place.place.token += static_cast<int64_t>(chunk) * chunk_tokens;
    place.row += static_cast<int64_t>(chunk) * chunk_tokens;
    return place;
  }
  __device__ __forceinline__ GateSource gates(const StageChunk& chunk) const {
    return {args.activation, args.stage, chunk, args.heads_v, args.dk, is_kda};
  }

  // ---- the ring

  __device__ __forceinline__ void copy(const PassSource& from, int chunk, int byte, uint32_t to) const {
    using Copy = TileCopy<32, Ring::kPieces, kRowBytes, kStageThreads>;
    for (int token = 0; token < chunk_tokens; token += 32)
      Copy::load(to + token * kRowBytes,
                 from.data + (static_cast<int64_t>(chunk) * chunk_tokens + token) * from.stride + byte, from.stride,
                 tokens_of(chunk) - token, from.bytes - byte, from.access, thread);
  }

  // Keys of a slab, decayed to the end of the chunk in KDA, and the decay of the chunk at these channels.
  __device__ __forceinline__ void make_keys(int chunk, int slab, uint32_t to) {
    const StageChunk place = at(chunk);
    const int tokens = tokens_of(chunk), token = warp * kBlock;
    if (makes_keys && slab == 0) {
      find_norms(shared.norm, rows_of(args.k, place, place.key_head), args.dk, tokens, args.activation.l2norm, warp,
                 lane);
    }
#pragma unroll 1
    for (int column = lane; column < kPassSlab; column += kSlab) {
      const int channel = slab * kPassSlab + column;
      float step[kBlock] = {}, x[kBlock];
      if (makes_decays) load_steps(step, gates(place), channel, token, tokens);
      shared.blocks.sum[warp][lane] = sum_of(step);
      __syncthreads();
      float to_end = shared.blocks.behind(warp, BlockSums::kBlocks, lane);
      if (makes_decays && warp == 0)
        shared.decay[chunk % kDecayChunks][channel] = exp2_approx(to_end + shared.blocks.sum[0][lane]);
      if (makes_keys) {
        load_column(x, rows_of(args.k, place, place.key_head), channel, channel < args.dk, token, tokens);
#pragma unroll
        for (int t = kBlock - 1; t >= 0; --t) {
          const float key = x[t] * shared.norm[token + t] * exp2_approx(to_end);
          const uint32_t address = to + (token + t) * kRowBytes + column * kElement;
          if constexpr (kElement == 4)
            store_word(address, __float_as_uint(key));
          else
            store_short(address, static_cast<uint16_t>(Pair<Element>::pack(key, 0.0f)));
          to_end += step[t];
        }
      }
      __syncthreads();
    }
  }

  // Fills the next place of the ring with the next slab, if there is one.
  __device__ __forceinline__ void fill() {
    if (fill_chunk < item.row.chunks) {
      const uint32_t to = shared_address(shared.slab[filled]);
      const int of_keys = fill_slab - slabs - values;
      if (fill_slab < slabs) {
        copy(w, fill_chunk, fill_slab * kPassSlab * kElement, to);
      } else if (of_keys < 0) {
        copy(u, fill_chunk, item.first_column * kElement, to);
      } else {
        if (!makes_keys) copy(k, fill_chunk, of_keys * kPassSlab * kElement, to);
        if (makes_keys || makes_decays) make_keys(fill_chunk, of_keys, to);
      }
      if (++fill_slab == 2 * slabs + values) {
        fill_slab = 0;
        ++fill_chunk;
      }
    }
    close_copies();
    filled = filled + 1 == Ring::kSlabs ? 0 : filled + 1;
  }

  // The next slab, which has arrived.
  __device__ __forceinline__ uint32_t take() {
    wait_for_copies<kAhead - 1>();
    __syncthreads();
    const uint32_t slab = shared_address(shared.slab[used]);
    used = used + 1 == Ring::kSlabs ? 0 : used + 1;
    return slab;
  }

  // ---- decays that are not made with the keys: loaded while the chunk before is walked

  __device__ __forceinline__ void load_decays(int chunk) {
    if (chunk >= item.row.chunks || makes_decays) return;
    const StageChunk place = at(chunk);
    const int tokens = tokens_of(chunk);
    const GateSource from = gates(place);
    const Rows& rows = from.rows;
    if (is_kda) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int channel = thread + i * kStageThreads;
        if (channel < args.dk)
          next[i] = load_number(rows.data, rows.dtype, rows.at + (tokens - 1) * rows.step + channel);
      }
    } else if (thread < tokens) {
      next[0] = load_number(rows.data, rows.dtype, rows.at + thread * rows.step);
    }
  }

  __device__ __forceinline__ void put_decays(int chunk) {
    if (chunk >= item.row.chunks || makes_decays) return;
    const int place = chunk % kDecayChunks, tokens = tokens_of(chunk);
    const GateSource from = gates(first);
    if (is_kda) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int channel = thread + i * kStageThreads;
        shared.decay[place][channel] = channel < args.dk ? exp2_approx(next[i] * from.unit) : 1.0f;
      }
      return;
    }
    if (thread < kStageTokens) {
      float step[1] = {thread < tokens ? next[0] : 0.0f};
      if (!from.given) activate_gates(step, from, 0, true);
      shared.line[thread] = step[0];
    }
    __syncthreads();
    if (thread >= kStageTokens) return;
    float to_end = 0.0f, all = 0.0f;
    if (from.given) {
      all = shared.line[tokens - 1] * from.unit;
      to_end = (shared.line[tokens - 1] - shared.line[thread]) * from.unit;
    } else {
      for (int t = tokens - 1; t > thread; --t) to_end += shared.line[t];
      all = to_end + shared.line[thread];
    }
    shared.factor[place][thread] = thread < tokens ? exp2_approx(to_end) : 0.0f;
    if (thread == 0) shared.whole[place] = exp2_approx(all);
  }

  // ---- products

  // residual += (W S)^T of 32 channels.
  __device__ __forceinline__ void read_state(Sums& residual, const State& state, int group, uint32_t slab) const {
    const auto left = Numbers::left(state, group);
    const uint32_t rows = slab + Numbers::rows_place(lane, kRowBytes);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (half * 32 >= chunk_tokens) continue;
#pragma unroll
      for (int n = 0; n < 4; n += kBatch) {
        typename Numbers::Right batch[kBatch];
#pragma unroll
        for (int b = 0; b < kBatch; ++b) batch[b] = Numbers::load_rows(rows + (half * 32 + (n + b) * 8) * kRowBytes);
        Numbers::multiply_batch(residual[half], n, left, batch);
      }
    }
  }

  // residual = U - residual, at this warp's value columns.
  __device__ __forceinline__ void subtract_from(Sums& residual, uint32_t slab) const {
    const uint32_t at_lane = slab + Numbers::values_place(lane, kRowBytes) + warp * 16 * kElement;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (half * 32 >= chunk_tokens) continue;
      const auto value = Numbers::load_values(at_lane + half * 32 * kRowBytes, kRowBytes);
#pragma unroll
      for (int i = 0; i < 16; ++i)
        residual[half][i / 4][i % 4] = value.get(i / 4, i % 4) - residual[half][i / 4][i % 4];
    }
  }
  __device__ __forceinline__ static void negate(Sums& residual) {
#pragma unroll
    for (int i = 0; i < 32; ++i) residual[i / 16][i / 4 % 4][i % 4] = -residual[i / 16][i / 4 % 4][i % 4];
  }

  // state = decay state + (keys^T V_new)^T of 32 channels.
  __device__ __forceinline__ void update(State& state, const Sums& v_new, int group, uint32_t slab, int chunk) const {
    float sums[4][4] = {};
    const uint32_t keys = slab + Numbers::columns_place(lane, kRowBytes);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (half * 32 >= chunk_tokens) continue;
      const auto left = left_of<Numbers>(v_new[half]);
#pragma unroll
      for (int n = 0; n < 4; n += kBatch) {
        typename Numbers::Right batch[kBatch];
#pragma unroll
        for (int b = 0; b < kBatch; ++b)
          batch[b] = Numbers::load_columns(keys + half * 32 * kRowBytes + (n + b) * 8 * kElement, kRowBytes);
        Numbers::multiply_batch(sums, n, left, batch);
      }
    }
    const int place = chunk % kDecayChunks;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      float2 decay = make_float2(shared.whole[place], shared.whole[place]);
      if (is_kda) decay = *reinterpret_cast<const float2*>(&shared.decay[place][group * kSlab + 8 * n + lane % 4 * 2]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& number = state[16 * group + 4 * n + i];
        number = fmaf(number, i % 2 == 0 ? decay.x : decay.y, sums[n][i]);
      }
    }
  }

  // ---- what a chunk leaves

  // Pairs of values of 16 bits, after transposing, or single numbers.
  __device__ __forceinline__ void store_values(const Sums& v_new, int chunk) const {
    const Rows to = rows_of(args.stage.v_new, args.stage.dtype, at(chunk), args.heads_v, args.dv);
    Element* const data = static_cast<Element*>(to.data) + to.at;
    const int tokens = tokens_of(chunk), column = item.first_column + warp * 16, quad = lane / 4, two = lane % 4 * 2;
    if constexpr (kElement == 2) {
      if (args.dv % 2 == 0) {
#pragma unroll
        for (int i = 0; i < 32; i += 2) {
          const float(&sums)[4] = v_new[i / 16][i / 4 % 4];
          const uint32_t pair = transpose_block(Pair<Element>::pack(sums[i % 4], sums[i % 4 + 1]));
          const int token = i / 16 * 32 + i / 4 % 4 * 8 + quad, value = column + i % 4 / 2 * 8 + two;
          if (token < tokens && value < args.dv) *reinterpret_cast<uint32_t*>(data + token * to.step + value) = pair;
        }
        return;
      }
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int token = i / 16 * 32 + i / 4 % 4 * 8 + two + i % 2, value = column + i % 4 / 2 * 8 + quad;
      if (token < tokens && value < args.dv)
        data[token * to.step + value] = static_cast<Element>(v_new[i / 16][i / 4 % 4][i % 4]);
    }
  }

  __device__ __forceinline__ void scale(Sums& v_new, int chunk) const {
    const float* const factor = shared.factor[chunk % kDecayChunks];
#pragma unroll
    for (int i = 0; i < 32; ++i)
      v_new[i / 16][i / 4 % 4][i % 4] *= factor[i / 16 * 32 + i / 4 % 4 * 8 + lane % 4 * 2 + i % 2];
  }

  // ---- the walk

  __device__ __forceinline__ Place place() const { return {item.first_column + warp * 16 + lane / 4, lane % 4 * 2}; }
  __device__ __forceinline__ Extent extent() const { return {args.dk, item.of_m ? args.dk : args.dv}; }

  // Returns whether M lives, of a tile of M^T.
  __device__ __forceinline__ bool run(State& state) {
    const bool stores_states = item.emits && args.stage.wants(DR_STATES);
    const bool stores_values = item.emits && args.stage.wants(DR_V_NEW);
    const StateView states = states_pool(args.stage, args.heads_v, {args.dk, args.dv});
    load_decays(0);
    put_decays(0);
    for (int i = 0; i < kAhead; ++i) fill();
    bool lives = true;
#pragma unroll 1
    for (int chunk = 0; chunk < item.row.chunks && lives; ++chunk) {
      if (stores_states) store_state(state, states, item.chunk + chunk, item.head, place(), extent());
      load_decays(chunk + 1);
      Sums v_new = {};  // W S, until all of it is there
#pragma unroll 1
      for (int number = 0; number < 2 * slabs + values; ++number) {
        const uint32_t slab = take();
        const int of_keys = number - slabs - values;
        if (number < slabs) {
#pragma unroll
          for (int group = 0; group < kGroups; ++group) {
            if (group / 2 == number && group * kSlab < args.dk)
              read_state(v_new, state, group, slab + group % 2 * kSlab * kElement);
          }
          if (item.of_m && number + 1 == slabs) negate(v_new);
        } else if (of_keys < 0) {
          subtract_from(v_new, slab);
          if (stores_values) store_values(v_new, chunk);
        } else {
          if (scales_values && of_keys == 0) scale(v_new, chunk);
#pragma unroll
          for (int group = 0; group < kGroups; ++group) {
            if (group / 2 == of_keys && group * kSlab < args.dk)
              update(state, v_new, group, slab + group % 2 * kSlab * kElement, chunk);
          }
        }
        fill();
      }
      put_decays(chunk + 1);
      if (item.of_m && (chunk % kLookEvery == kLookEvery - 1 || chunk + 1 == item.row.chunks))
        lives = __syncthreads_or(static_cast<int>(keeps_alive(state, args.vanish_bound))) != 0;
    }
    wait_for_copies<0>();
    return lives;
  }
};

// Rows of S^T or M^T of a slot at one head: `width` floats each, in whole tiles (record.h).
template <int kCount>
__device__ __forceinline__ void store_rows_of_slot(const float (&state)[kCount], float* matrix, int width,
                                                   const Place& at) {
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    const int column = at.column + i / 4 * 8;
    if (column < width)
      *reinterpret_cast<float2*>(matrix + (at.row + i / 2 % 2 * 8) * width + column) =
          make_float2(state[i], state[i + 1]);
  }
}
template <int kCount>
__device__ __forceinline__ void load_rows_of_slot(float (&state)[kCount], const float* matrix, int width,
                                                  const Place& at) {
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    const int column = at.column + i / 4 * 8;
    float2 pair = make_float2(0.0f, 0.0f);
    if (column < width) pair = *reinterpret_cast<const float2*>(matrix + (at.row + i / 2 % 2 * 8) * width + column);
    state[i] = pair.x, state[i + 1] = pair.y;
  }
}

template <class Number, int kWidth>
__device__ __forceinline__ void pass_row(const PassArgs& args, const PassItem& item, uint8_t* memory) {
  using Pass = sm80::Pass<Number, kWidth>;
  Pass pass(args, item, *reinterpret_cast<typename Pass::Ring*>(memory));
  const Row& row = item.row;
  const Place at = pass.place();
  const int width = width_of(args.dk);
  const int64_t state_floats = slot_state_floats(args.dk, args.dv);
  auto slot_state = [&](int slot) {
    return args.slot_state + (static_cast<int64_t>(slot) * args.heads_v + item.head) * state_floats;
  };
  typename Pass::State state;
  if (!item.emits) {
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) {
      const int value = at.row + i / 2 % 2 * 8, key = at.column + i / 4 * 8 + i % 2;
      state[i] = item.of_m && value == key && value < args.dk ? 1.0f : 0.0f;
    }
  } else if (row.slot_in >= 0) {
    load_rows_of_slot(state, slot_state(row.slot_in), width, at);
  } else {
    const int64_t slot = initial_slot(args.initial, args.has_initial, row.sequence, args.report);
    load_state(state, args.initial, slot, item.head, at, pass.extent());
  }
  const bool lives = pass.run(state);

  if (item.emits) {
    if (row.slot_out >= 0) store_rows_of_slot(state, slot_state(row.slot_out), width, at);
    if (row.slot_folded >= 0) load_rows_of_slot(state, slot_state(row.slot_folded), width, at);
    if (item.ends_sequence)
      store_state(state, args.final, slot_of(args.final, row.sequence, args.report), item.head, at, pass.extent());
    return;
  }
  if (item.of_m && args.vanish_bound > 0.0f && !lives) drop(state, args.report);
  if (args.stage.wants(DR_SUMMARIES)) {
    const int64_t matrix = static_cast<int64_t>(args.dv + args.dk) * args.dk;
    StateView pool{};
    pool.data = args.stage.summaries + (item.of_m ? args.dv * args.dk : 0);
    pool.stride_head = matrix;
    pool.stride_slot = matrix * args.heads_v;
    pool.layout = StateLayout::kValueMajor;
    pool.dtype = DType::kFp32;
    store_state(state, pool, row.sequence, item.head, at, pass.extent());
    return;
  }
  const int64_t slot_head = static_cast<int64_t>(row.slot_out) * args.heads_v + item.head;
  if (item.of_m) {
    if (threadIdx.x == 0)
      put_row_lives(args.slot_lives, slot_head, item.first_column / kPassColumns, whole_tiles(args.dk), lives);
    store_rows_of_slot(state, args.slot_transition + slot_head * slot_transition_floats(args.dk), width, at);
    return;
  }
#pragma unroll
  for (float& number : state) number += 0.0f;  // no -0: carry may skip B or add 0 to it, with the same bits
  store_rows_of_slot(state, slot_state(row.slot_out), width, at);
}

template <class Number, int kWidth>
__global__ void __launch_bounds__(kStageThreads, 2) pass_kernel(const __grid_constant__ PassArgs args) {
  allow_next_grid();
  wait_for_previous_grid();
  PassItem item;
  if (!find_pass_item(args, item)) return;
  pass_row<Number, kWidth>(args, item, dynamic_shared_memory());
}

}  // namespace deltarelay::cuda::sm80
