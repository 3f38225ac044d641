// The walk of one work item, for any engine: one segment of one head, chunk by chunk, with some panels of the state.
//
//   R     = beta (V - k_from_start S)
//   V_new = (I + Akk)^-1 R                         by forward substitution; the inverse is not formed
//   O     = q_from_start S + Aqk V_new
//   S     = diag(decay_chunk) S + k_to_end^T V_new
//
// summarize is the same walk without outputs, from S = 0 (columns of B) and from S = I with V = 0 (columns of M).
#if defined(DELTARELAY_CPU_WALK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTARELAY_CPU_WALK_INL_H_
#undef DELTARELAY_CPU_WALK_INL_H_
#else
#define DELTARELAY_CPU_WALK_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/cpu/prepare-inl.h"
#include "kernels/cpu/state-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltarelay::cpu::HWY_NAMESPACE {
namespace {  // internal linkage: several translation units compile this file with different instructions
namespace hn = hwy::HWY_NAMESPACE;

// Divides a worker's scratch into arrays that start on cache lines.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <class T = float>
  T* take(int64_t count) {
    T* at = reinterpret_cast<T*>(base_ + used_);
    used_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return at;
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

// Scratch that every engine needs.
struct WalkScratch {
  ChunkOperands operands;
  Staging staging;
  float* values;   // [token][panels * kCols], of type Engine::Value
  float* outputs;  // [token][panels * kCols]
  float* panels;   // [panel][channel][kCols]
  float* lines;    // kLineFloats
};

// What `prepare` needs for chunks of `tokens` tokens.
inline void carve_chunk(int64_t channels, int64_t tokens, Carver& carver, ChunkOperands& operands, Staging& staging) {
  const int64_t rows = tokens * channels;
  operands.k_to_end = carver.take(rows);
  operands.decay_chunk = carver.take(channels);
  operands.minus_akk = carver.take(tokens * tokens);
  operands.aqk = carver.take(tokens * tokens);
  operands.beta = carver.take(tokens);
  staging.k = carver.take(rows);
  staging.q = carver.take(rows);
  staging.g = carver.take(rows);
  staging.decay = carver.take(tokens * kChannelBlock);
  staging.rows_k = carver.take(kSubChunk * kChannelBlock);
  staging.rows_q = carver.take(kSubChunk * kChannelBlock);
  staging.starts = carver.take(2 * kChannelBlock);
  staging.bias = carver.take(channels);
}

inline WalkScratch carve_walk(const Problem& problem, int32_t panels, Carver& carver) {
  const int64_t channels = padded_channels(problem.dk);
  WalkScratch s;
  carve_chunk(channels, kChunk, carver, s.operands, s.staging);
  s.values = carver.take(static_cast<int64_t>(kChunk) * panels * kCols);
  s.outputs = carver.take(static_cast<int64_t>(kChunk) * panels * kCols);
  s.panels = carver.take(panels * channels * kCols);
  s.lines = carver.take(kLineFloats);
  return s;
}

// Prefetches rows of the next chunk. With many heads the rows of one head lie far apart, and hardware prefetchers do
// not follow. The target is L2, not L1: rows at a power-of-two stride would evict the state from a few sets of L1.
//
// A prefetched line holds one of the core's few miss buffers until it arrives, and so does every line that the products
// load from L2. A burst of prefetches therefore stalls everything, so rows are prefetched one by one.
class RowsAhead {
 public:
  explicit RowsAhead(int32_t rows) : rows_(rows) {}

  // Adds `rows_` rows of `count` numbers, from row `first` on. Without rows the address is not formed: with a very
  // large stride only rows inside the tensor have an address within int64_t.
  void add(const void* base, DType type, int64_t stride, int64_t first, int64_t count) {
    if (rows_ == 0) return;
    const auto size = static_cast<int64_t>(size_of(type));
    tensors_[used_++] = {static_cast<const char*>(at(base, type, first * stride)), stride * size, count * size};
    left_ += rows_;
  }

  int32_t left() const { return left_; }

  // Prefetches the next `rows` rows, in turn over the tensors.
  HWY_INLINE void prefetch(int32_t rows) {
    rows = std::min(rows, left_);
    left_ -= rows;
    for (; rows > 0; --rows) {
      Tensor& tensor = tensors_[turn_];
      for (int64_t byte = 0; byte < tensor.bytes; byte += kLine) __builtin_prefetch(tensor.row + byte, 0, 2);
      tensor.row += tensor.stride;
      turn_ = turn_ + 1 < used_ ? turn_ + 1 : 0;
    }
  }

 private:
  static constexpr int64_t kLine = 64;  // bytes
  struct Tensor {
    const char* row;
    int64_t stride, bytes;
  };
  Tensor tensors_[5];
  int32_t used_ = 0, turn_ = 0, rows_, left_ = 0;
};

inline GateTerms gate_terms(const StageArgs& args, int32_t head, int32_t channels, float* bias) {
  const Problem& problem = args.problem;
  GateTerms gate{problem.gate_form, 1.0f, problem.lower_bound, -std::numeric_limits<float>::infinity(), 0.0f, nullptr};
  if (problem.gate_floor < 0.0f) {
    gate.floor = problem.gate_floor;
    gate.floor_decay = std::exp(problem.gate_floor);
  }
  if (!problem.raw_gate()) return gate;
  const auto number = [](const void* data, DType dtype, int64_t index) {
    return static_cast<float>(load_as_double(data, dtype, index));
  };
  if (args.tensors.a_log != nullptr) gate.factor = std::exp(number(args.tensors.a_log, problem.dtype_a_log, head));
  if (args.tensors.dt_bias == nullptr) return gate;
  std::fill(bias, bias + channels, 0.0f);
  if (problem.rule == Rule::kKda) {
    const int64_t first = static_cast<int64_t>(head) * problem.dk;
    for (int32_t c = 0; c < problem.dk; ++c) bias[c] = number(args.tensors.dt_bias, problem.dtype_dt_bias, first + c);
  } else {  // one number for all tokens in a vector
    std::fill(bias, bias + kChannelPad, number(args.tensors.dt_bias, problem.dtype_dt_bias, head));
  }
  gate.bias = bias;
  return gate;
}

inline HeadInputs head_inputs(const StageArgs& args, int64_t sequence, int32_t head) {
  const Problem& p = args.problem;
  const int32_t shared = head / p.group();
  const auto start = [&](const void* base, DType type, const Strides& s, int32_t h) {
    return at(base, type, args.sequences.start(sequence, s) + h * s.head);
  };
  return {start(args.tensors.q, p.dtype, p.q, shared),
          start(args.tensors.k, p.dtype, p.k, shared),
          start(args.tensors.g, p.dtype_gate, p.g, head),
          start(args.tensors.beta, p.dtype_beta, p.beta, head),
          p.q.token,
          p.k.token,
          p.g.token,
          p.beta.token,
          p.dtype_gate,
          p.scale};
}

// Panels of a slot: [slot, head][panel][channel][kCols].
inline float* slot_panels(float* base, int32_t slot, int32_t heads, int32_t head, int32_t slot_panel_count,
                          int32_t first, int32_t channels) {
  const int64_t panel_floats = static_cast<int64_t>(channels) * kCols;
  return base + ((static_cast<int64_t>(slot) * heads + head) * slot_panel_count + first) * panel_floats;
}

// Loads the state that enters the segment, or the start of a summary: 0 for B, I for M.
inline void enter(const StageArgs& args, const Item& item, int32_t channels, float* lines, float* panels) {
  const Problem& problem = args.problem;
  const int64_t panel_floats = static_cast<int64_t>(channels) * kCols;
  const int32_t value_panels = panels_for(problem.dv, kCols);
  if (item.row.work == Work::kSummarize) {
    std::fill(panels, panels + item.panels.count * panel_floats, 0.0f);
    for (int32_t p = 0; p < item.panels.count; ++p) {
      const int32_t column = (item.panels.first + p - value_panels) * kCols;  // column of M
      if (column < 0) continue;
      for (int32_t i = column; i < std::min(column + kCols, problem.dk); ++i)
        panels[p * panel_floats + i * kCols + (i - column)] = 1.0f;
    }
  } else if (item.row.slot_in >= 0) {
    const float* from = slot_panels(args.slot_state, item.row.slot_in, problem.heads_v, item.head, value_panels,
                                    item.panels.first, channels);
    std::copy(from, from + item.panels.count * panel_floats, panels);
  } else {
    load_state(problem, problem.initial, args.tensors.initial, initial_slot(args, item.row.sequence), item.head,
               item.panels, channels, lines, panels);
  }
}

// Stores the panels in the slot of the summary or of the next segment.
inline void leave(const StageArgs& args, const Item& item, int32_t channels, const float* panels) {
  if (item.row.slot_out < 0) return;
  const Problem& problem = args.problem;
  const int64_t panel_floats = static_cast<int64_t>(channels) * kCols;
  const int32_t value_panels = panels_for(problem.dv, kCols);
  for (int32_t p = 0; p < item.panels.count; ++p) {
    const int32_t index = item.panels.first + p;
    float* to = index < value_panels ? slot_panels(args.slot_state, item.row.slot_out, problem.heads_v, item.head,
                                                   value_panels, index, channels)
                                     : slot_panels(args.slot_transition, item.row.slot_out, problem.heads_v, item.head,
                                                   panels_for(problem.dk, kCols), index - value_panels, channels);
    std::copy(panels + p * panel_floats, panels + (p + 1) * panel_floats, to);
  }
}

// Destination of a panel's outputs: fp32 rows, bf16 rows, or none (summarize).
struct OutputRows {
  float* full;
  uint16_t* half;
  int64_t stride;
  bool wanted() const { return full != nullptr || half != nullptr; }
};

// An engine has:
//   Value                                         type of values: float, or uint16_t for bf16
//   Engine(problem, panels, carver)               takes its own scratch
//   kPrefetches                                   prepare and advance prefetch the next chunk; else walk_item does,
//                                                 a few rows before each panel
//   kWritesBf16                                   advance also writes bf16 outputs, in whole cache lines
//   enter(panels)                                 takes the state from [panel][channel][kCols]
//   prepare(in, gate, shape, scratch, ahead)      computes the operands of a chunk
//   kTogether                                     panels that it advances beside each other, where there are as many
//   advance<panels>(first, tokens, values, value_stride, outputs, scratch, ahead): 1 or kTogether of them
//   leave(panels)                                 stores the state to [panel][channel][kCols]
template <class Engine>
inline void walk_item(const StageArgs& args, const Item& item, std::byte* memory) {
  const Problem& problem = args.problem;
  const Row& row = item.row;
  const int32_t channels = padded_channels(problem.dk);
  const int64_t length = args.sequences.length(row.sequence);
  const int64_t begin = static_cast<int64_t>(row.begin) * kChunk;
  const int64_t end = std::min(length, begin + static_cast<int64_t>(row.chunks) * kChunk);
  const int32_t value_panels = panels_for(problem.dv, kCols);
  const bool emits = row.work == Work::kEmit;

  Carver carver(memory);
  const WalkScratch s = carve_walk(problem, item.panels.count, carver);
  Engine engine(problem, item.panels.count, carver);
  const GateTerms gate = gate_terms(args, item.head, channels, s.staging.bias);
  const HeadInputs in = head_inputs(args, row.sequence, item.head);
  const int64_t stride = static_cast<int64_t>(item.panels.count) * kCols;
  const int32_t first_column = item.panels.first * kCols;
  const int32_t columns = std::clamp(problem.dv - first_column, 0, static_cast<int32_t>(stride));
  const void* v = at(args.tensors.v, problem.dtype,
                     args.sequences.start(row.sequence, problem.v) + item.head * problem.v.head + first_column);
  void* o = emits ? at(args.tensors.o, problem.dtype_o,
                       args.sequences.start(row.sequence, problem.o) + item.head * problem.o.head + first_column)
                  : nullptr;

  // State after the row's last token, if the carry has already computed it.
  const float* folded = row.slot_folded >= 0 ? slot_panels(args.slot_state, row.slot_folded, problem.heads_v, item.head,
                                                           panels_for(problem.dv, kCols), item.panels.first, channels)
                                             : nullptr;
  CheckpointCursor checkpoints(args, row.sequence, item.first_checkpoint, begin == 0 ? 0 : begin + 1);
  const auto checkpoint = [&](int64_t position, const float* state) {
    int64_t slot;
    while (emits && checkpoints.take(position, slot)) {
      engine.leave(s.panels);
      store_state(problem, problem.checkpoint, args.tensors.checkpoint, slot, item.head, item.panels, channels, s.lines,
                  state);
    }
  };

  enter(args, item, channels, s.lines, s.panels);
  engine.enter(s.panels);
  if (begin == 0) checkpoint(0, s.panels);
  for (int64_t first = begin; first < end; first += kChunk) {
    const auto tokens = static_cast<int32_t>(std::min<int64_t>(kChunk, end - first));
    const ChunkShape shape{first, tokens, channels};
    const int64_t next = first + kChunk;
    RowsAhead ahead(static_cast<int32_t>(std::clamp<int64_t>(end - next, 0, kChunk)));
    ahead.add(in.k, problem.dtype, in.layout_k, next, problem.dk);
    ahead.add(in.q, problem.dtype, in.layout_q, next, problem.dk);
    ahead.add(in.g, problem.dtype_gate, in.layout_g, next, problem.rule == Rule::kKda ? problem.dk : 1);
    ahead.add(v, problem.dtype, problem.v.token, next, columns);
    if (emits) ahead.add(o, problem.dtype_o, problem.o.token, Engine::kPrefetches ? next : first, columns);
    engine.prepare(in, gate, shape, s, ahead);
    // Read values that need no conversion, and write whole rows of outputs, directly in the caller's memory.
    const bool whole = tokens == kChunk && columns == stride;
    using Value = typename Engine::Value;
    auto* staged = reinterpret_cast<Value*>(s.values);
    RowsOf<Value> values{staged, stride};
    if (whole && problem.dtype == (std::is_same_v<Value, float> ? DType::kFp32 : DType::kBf16)) {
      values = {static_cast<const Value*>(at(v, problem.dtype, first * problem.v.token)), problem.v.token};
    } else {
      for (int32_t t = 0; t < kChunk; ++t) {
        Value* line = staged + t * stride;
        const int32_t given = t < tokens ? columns : 0;
        if (given > 0) load_row(at(v, problem.dtype, (first + t) * problem.v.token), problem.dtype, columns, line);
        std::fill(line + given, line + stride, Value{0});
      }
    }
    const bool full = emits && whole && problem.dtype_o == DType::kFp32;
    const bool half = emits && whole && problem.dtype_o == DType::kBf16 && Engine::kWritesBf16;
    const bool direct = full || half;
    void* out = direct ? at(o, problem.dtype_o, first * problem.o.token) : nullptr;
    OutputRows outputs{nullptr, nullptr, direct ? problem.o.token : stride};
    if (half)
      outputs.half = static_cast<uint16_t*>(out);
    else if (emits)
      outputs.full = full ? static_cast<float*>(out) : s.outputs;
    const int32_t panels_of_v = std::clamp(value_panels - item.panels.first, 0, item.panels.count);
    for (int32_t p = 0, together = 1; p < item.panels.count; p += together) {
      const int32_t alike = p < panels_of_v ? panels_of_v : item.panels.count;  // up to here all of V, or all of M
      together = alike - p >= Engine::kTogether ? Engine::kTogether : 1;
      if constexpr (!Engine::kPrefetches) ahead.prefetch(ahead.left() * together / (item.panels.count - p));
      const Value* from = p < panels_of_v ? values.base + p * kCols : nullptr;
      if (together == 1)
        engine.template advance<1>(p, tokens, from, values.stride, outputs, s, ahead);
      else if constexpr (Engine::kTogether > 1)
        engine.template advance<Engine::kTogether>(p, tokens, from, values.stride, outputs, s, ahead);
      if (outputs.full != nullptr) outputs.full += together * kCols;
      if (outputs.half != nullptr) outputs.half += together * kCols;
    }
    if (emits) {
      for (int32_t t = 0; t < tokens && !direct; ++t)
        store_row<true>(s.outputs + t * stride, columns, at(o, problem.dtype_o, (first + t) * problem.o.token),
                        problem.dtype_o);
      const int64_t position = first + tokens;
      checkpoint(position, position == end && folded != nullptr ? folded : s.panels);
    }
  }
  engine.leave(s.panels);
  leave(args, item, channels, s.panels);
  if (emits && end == length)
    store_state(problem, problem.final, args.tensors.final, final_slot(args, row.sequence), item.head, item.panels,
                channels, s.lines, folded != nullptr ? folded : s.panels);
}

// Bytes of scratch that one worker needs.
template <class Engine>
size_t scratch_bytes(const Problem& problem, int32_t panels) {
  Carver carver(nullptr);
  carve_walk(problem, panels, carver);
  Engine engine(problem, panels, carver);
  return carver.used();
}

}  // namespace
}  // namespace deltarelay::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
