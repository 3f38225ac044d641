// Products of bf16 numbers with AMX: one instruction adds (16 rows x 32) (32 x 16 columns) to a tile register of 16 x
// 16 sums.
//
// All eight registers have this shape. Four hold sums, so that every loaded operand is used twice. A chunk has 16
// tokens, half the depth of an instruction, so operands that are summed over tokens are padded with zeros: an
// instruction of half the depth would take as long. A left operand is stored by rows, a right operand as [pair of the
// summed axis][column][2], and the state by rows.
#pragma once
#include <atomic>

#include "kernels/cpu/bf16_avx512-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltarelay::cpu::HWY_NAMESPACE {
namespace {

struct AmxPanel {
  static constexpr int32_t kTile = 16;   // rows of a register, and sums per row
  static constexpr int32_t kDepth = 32;  // bf16 numbers per row
  static constexpr int32_t kChannelStep = kDepth;
  static constexpr int32_t kTransposedTokens = kDepth;
  static constexpr bool kLeftIsRows = true;
  static constexpr bool kPrefetches = true;
  static constexpr bool kReadsAhead = true;
  static constexpr bool kOnePass = true;
  static_assert(kCols == 2 * kTile && kChunk == kTile);

  // Tile registers belong to a thread, so every item configures and releases them.
  struct Session {
    Session() {
      alignas(64) uint8_t config[64] = {};
      config[0] = 1;
      for (int32_t tile = 0; tile < 8; ++tile) {
        config[16 + 2 * tile] = 64;  // bytes per row
        config[48 + tile] = kTile;
      }
      // GCC's intrinsic names the first 8 bytes as its input. Without this line GCC 12 drops the writes to the others.
      asm volatile("" : : "r"(config) : "memory");
      _tile_loadconfig(config);
    }
    ~Session() { _tile_release(); }
  };

  static int64_t place(int32_t token, int32_t channel, int32_t channels) {
    return static_cast<int64_t>(token) * channels + channel;
  }

  // Packs four rows times factor[column]. `left` points at the first row; rows are `left_row` apart.
  static HWY_INLINE void pack_left(const float* HWY_RESTRICT rows, int64_t stride, const float* HWY_RESTRICT factor,
                                   int32_t columns, int32_t left_row, uint16_t* HWY_RESTRICT left) {
    for (int32_t c = 0; c < columns; c += 16) {
      const __m512 f = _mm512_loadu_ps(factor + c);
      DR_UNROLL
      for (int32_t r = 0; r < kSubChunk; ++r)
        store_half(as_bits(_mm512_cvtneps_pbh(_mm512_mul_ps(_mm512_loadu_ps(rows + r * stride + c), f))),
                   left + static_cast<int64_t>(r) * left_row + c);
    }
  }

  // Transposes a chunk of rows, [token][channel] -> [channel][token].
  static HWY_INLINE void pack_transposed(const float* HWY_RESTRICT rows, int32_t channels,
                                         uint16_t* HWY_RESTRICT transposed) {
    int32_t c = 0;
    for (; c + kDepth <= channels; c += kDepth) {
      __m512i v[kChunk];
      DR_UNROLL
      for (int32_t t = 0; t < kChunk; ++t) {
        const float* row = rows + t * channels + c;
        v[t] = as_bits(_mm512_cvtne2ps_pbh(_mm512_loadu_ps(row + 16), _mm512_loadu_ps(row)));
      }
      transpose(v);
      store_transposed(v, transposed + c * kTransposedTokens);
    }
    if (c == channels) return;
    __m512i v[kChunk];  // the last 16 channels
    DR_UNROLL
    for (int32_t t = 0; t < kChunk; ++t)
      v[t] = as_bits(_mm512_cvtne2ps_pbh(_mm512_setzero_ps(), _mm512_loadu_ps(rows + t * channels + c)));
    transpose(v);
    store_transposed(v, transposed + c * kTransposedTokens);
  }

  // Bare rows (without decay) are left operands as they are. Keys transposed by pairs of channels are the right operand
  // of the scores. With the pairs taken apart they are the left operand of the state update.
  static HWY_INLINE void pack_bare(const uint16_t* k, const uint16_t* q, int32_t channels, uint16_t*, uint16_t*,
                                   uint16_t* transposed, Scores& scores) {
    const int64_t row_bytes = int64_t{channels} * 2;
    _tile_zero(0);
    _tile_zero(1);
    for (int32_t c = 0; c < channels; c += kDepth) {
      alignas(64) uint32_t pairs[kDepth / 2 * kChunk];
      __m512i v[kChunk];
      DR_UNROLL
      for (int32_t t = 0; t < kChunk; ++t) v[t] = _mm512_loadu_si512(k + t * channels + c);
      transpose(v);
      DR_UNROLL
      for (int32_t pair = 0; pair < kDepth / 2; ++pair) _mm512_store_si512(pairs + pair * kChunk, v[pair]);
      store_transposed(v, transposed + c * kTransposedTokens);
      memory_is_read();
      _tile_loadd(6, pairs, 64);
      _tile_loadd(4, k + c, row_bytes);
      _tile_loadd(5, q + c, row_bytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 5, 6);
    }
    alignas(64) float qk[kChunk * kChunk];  // [row][column]
    _tile_stored(0, scores.kk, 64);         // symmetric: [row][column] equals [column][row]
    _tile_stored(1, qk, 64);
    __m512i v[kChunk];
    DR_UNROLL
    for (int32_t i = 0; i < kChunk; ++i) v[i] = _mm512_load_si512(qk + i * kChunk);
    transpose(v);
    DR_UNROLL
    for (int32_t j = 0; j < kChunk; ++j) _mm512_store_si512(scores.qk + j * kChunk, v[j]);
  }

  static constexpr int64_t decay_floats(int32_t channels) { return channels; }
  static HWY_INLINE void pack_decay(const float* HWY_RESTRICT decay, int32_t channels, float* HWY_RESTRICT to) {
    for (int32_t c = 0; c < channels; c += 16) _mm512_storeu_ps(to + c, _mm512_loadu_ps(decay + c));
  }

  static HWY_INLINE void enter(const float* HWY_RESTRICT panel, int32_t channels, float* HWY_RESTRICT state,
                               uint16_t* HWY_RESTRICT rounded) {
    std::copy_n(panel, channels * kCols, state);
    round_rows(panel, channels, rounded);
  }
  static HWY_INLINE void leave(const float* HWY_RESTRICT state, int32_t channels, float* HWY_RESTRICT panel) {
    std::copy_n(state, channels * kCols, panel);
  }

  // Products of keys and queries with the state, in steps of 32 channels. Sums stay in four registers, so other work
  // can run between the steps. Rows past the end of a sequence are zeros and cost nothing extra.
  class Reading {
   public:
    HWY_INLINE Reading(const uint16_t* keys, const uint16_t* queries, const uint16_t* rounded, int32_t channels)
        : keys_(keys), queries_(queries), rounded_(rounded), channels_(channels) {
      memory_is_read();
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }

    // Does part `part` of `parts`, in order.
    HWY_INLINE void read(int32_t part, int32_t parts) {
      const int64_t row_bytes = int64_t{channels_} * 2;
      const int32_t end = channels_ / kDepth * (part + 1) / parts * kDepth;
      for (; at_ < end; at_ += kDepth) {
        _tile_loadd(4, keys_ + at_, row_bytes);
        _tile_loadd(6, rounded_ + at_ * kCols, kPairBytes);
        _tile_loadd(7, rounded_ + at_ * kCols + kDepth, kPairBytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (queries_ == nullptr) continue;
        _tile_loadd(5, queries_ + at_, row_bytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }

    HWY_INLINE void store(float* read_keys, float* read_queries) const {
      _tile_stored(0, read_keys, kRowBytes);
      _tile_stored(1, read_keys + kTile, kRowBytes);
      if (queries_ == nullptr) return;
      _tile_stored(2, read_queries, kRowBytes);
      _tile_stored(3, read_queries + kTile, kRowBytes);
    }

   private:
    const uint16_t* keys_;
    const uint16_t* queries_;
    const uint16_t* rounded_;
    int32_t channels_;
    int32_t at_ = 0;
  };

  static HWY_INLINE void read_state(const uint16_t* keys, const uint16_t* queries, const uint16_t* rounded,
                                    int32_t channels, int32_t, float* read_keys, float* read_queries) {
    Reading reading(keys, queries, rounded, channels);
    reading.read(0, 1);
    reading.store(read_keys, read_queries);
  }

  static HWY_INLINE void round_values(const float* HWY_RESTRICT x, const float* HWY_RESTRICT scale, int32_t,
                                      uint16_t* HWY_RESTRICT values) {
    DR_UNROLL
    for (int32_t t = 0; t < kChunk; t += 2) {
      const __m512 upper = _mm512_set1_ps(scale[t]), lower = _mm512_set1_ps(scale[t + 1]);
      const float* row = x + t * kCols;
      store_pairs(_mm512_mul_ps(_mm512_loadu_ps(row), upper), _mm512_mul_ps(_mm512_loadu_ps(row + kCols), lower),
                  values + t * kCols);
      store_pairs(_mm512_mul_ps(_mm512_loadu_ps(row + kTile), upper),
                  _mm512_mul_ps(_mm512_loadu_ps(row + kCols + kTile), lower), values + t * kCols + kDepth);
    }
  }

  // The matrix unit runs one step of 16 channels ahead of the vectors that add its products to the decayed state. A
  // load waits for every earlier store whose address has the same last 12 bits. So products lie at the same offsets
  // modulo 4 KiB as the state's channels: the step being stored is then half a page away from the step being added.
  template <class Meanwhile>
  static HWY_INLINE void update_state(const float* decay, const uint16_t* transposed, const uint16_t* values,
                                      int32_t channels, int32_t, float* state, uint16_t* rounded,
                                      const Meanwhile& meanwhile) {
    constexpr int32_t kStep = kTile * kCols;
    constexpr uintptr_t kPage = 4096;
    static_assert(2 * kStep * sizeof(float) == kPage);
    alignas(64) float room[4 * kStep];
    const auto apart = reinterpret_cast<uintptr_t>(state) - reinterpret_cast<uintptr_t>(room);
    float* even = room + apart % kPage / sizeof(float);
    float* odd = even + kStep;
    memory_is_read();
    _tile_loadd(6, values, kPairBytes);
    _tile_loadd(7, values + kDepth, kPairBytes);
    for (int32_t c = 0; c <= channels; c += kDepth) {
      if (c < channels) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_loadd(4, transposed + c * kTransposedTokens, kTransposedBytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_stored(0, even, kRowBytes);
        _tile_stored(1, even + kTile, kRowBytes);
      }
      meanwhile();
      if (c > 0) add_products(odd, decay + c - kTile, state + (c - kTile) * kCols, rounded + (c - kTile) * kCols);
      if (c == channels) break;
      _tile_zero(2);
      _tile_zero(3);
      _tile_loadd(5, transposed + (c + kTile) * kTransposedTokens, kTransposedBytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
      _tile_stored(2, odd, kRowBytes);
      _tile_stored(3, odd + kTile, kRowBytes);
      meanwhile();
      add_products(even, decay + c, state + c * kCols, rounded + c * kCols);
    }
  }

 private:
  static constexpr int32_t kRowBytes = kCols * 4;
  static constexpr int32_t kPairBytes = kCols * 4;  // bytes per pair of a right operand
  static constexpr int32_t kTransposedBytes = kTransposedTokens * 2;

  // GCC's tile loads do not declare that they read memory. Without this fence, stores may move after them.
  static HWY_INLINE void memory_is_read() { std::atomic_signal_fence(std::memory_order_seq_cst); }

  static HWY_INLINE void store_half(__m256i v, uint16_t* to) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), v); }

  // Positions of 16-bit numbers in a vector, in bytes for the byte permutation. It is one instruction on processors
  // with AMX; the permutation of words takes two.
  struct Places {
    alignas(64) uint8_t bytes[64];
    template <class Place>
    constexpr explicit Places(Place place) : bytes() {
      for (int32_t i = 0; i < 32; ++i) {
        bytes[2 * i] = static_cast<uint8_t>(2 * place(i));
        bytes[2 * i + 1] = static_cast<uint8_t>(2 * place(i) + 1);
      }
    }
  };
  static HWY_INLINE __m512i permute(const Places& places, __m512i v) {
    return _mm512_permutexvar_epi8(_mm512_load_si512(places.bytes), v);
  }

  // Stores lanes {first[i], second[i]} as pairs of bf16.
  static HWY_INLINE void store_pairs(__m512 first, __m512 second, uint16_t* to) {
    static constexpr Places kInterleave([](int32_t i) { return i / 2 + i % 2 * 16; });
    _mm512_storeu_si512(to, permute(kInterleave, as_bits(_mm512_cvtne2ps_pbh(second, first))));
  }

  // Pairs of channels of 16 tokens, one vector per pair, to rows [channel][token].
  static HWY_INLINE void store_transposed(const __m512i (&pairs)[kChunk], uint16_t* transposed) {
    static constexpr Places kApart([](int32_t i) { return i % 16 * 2 + i / 16; });
    DR_UNROLL
    for (int32_t pair = 0; pair < kChunk; ++pair) {
      const __m512i rows = permute(kApart, pairs[pair]);
      store_half(_mm512_castsi512_si256(rows), transposed + 2 * pair * kTransposedTokens);
      store_half(_mm512_extracti64x4_epi64(rows, 1), transposed + (2 * pair + 1) * kTransposedTokens);
    }
  }

  static HWY_INLINE void round_rows(const float* HWY_RESTRICT rows, int32_t count, uint16_t* HWY_RESTRICT right) {
    for (int32_t r = 0; r < count; r += 2)
      for (int32_t half = 0; half < kCols; half += kTile)
        store_pairs(_mm512_loadu_ps(rows + r * kCols + half), _mm512_loadu_ps(rows + (r + 1) * kCols + half),
                    right + r * kCols + 2 * half);
  }

  // For 16 channels of the state: decays them, adds the products, and rounds a bf16 copy.
  static HWY_INLINE void add_products(const float* HWY_RESTRICT products, const float* HWY_RESTRICT decay,
                                      float* HWY_RESTRICT state, uint16_t* HWY_RESTRICT rounded) {
    for (int32_t c = 0; c < kTile; c += 2) {
      const __m512 upper = _mm512_set1_ps(decay[c]), lower = _mm512_set1_ps(decay[c + 1]);
      DR_UNROLL
      for (int32_t half = 0; half < kCols; half += kTile) {
        const int32_t at = c * kCols + half;
        const __m512 first = _mm512_fmadd_ps(_mm512_load_ps(state + at), upper, _mm512_load_ps(products + at));
        const __m512 second =
            _mm512_fmadd_ps(_mm512_load_ps(state + at + kCols), lower, _mm512_load_ps(products + at + kCols));
        _mm512_store_ps(state + at, first);
        _mm512_store_ps(state + at + kCols, second);
        store_pairs(first, second, rounded + c * kCols + 2 * half);
      }
    }
  }
};

}  // namespace
}  // namespace deltarelay::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
