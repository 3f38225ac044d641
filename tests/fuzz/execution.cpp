#include "execution.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "block.h"
#include "case/stages.h"
#include "refusal.h"
#include "spoil.h"

namespace fuzz {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 20;  // of one tensor or pool
constexpr int64_t kMostWork = int64_t{1} << 22;      // tokens x heads x DK x DV
constexpr int64_t kMostSequences = 4096;
constexpr size_t kMostWorkspace = size_t{64} << 20;
constexpr unsigned char kPoison = 0x5a;

using deltarelay::Tensor;
using deltarelay::TensorEntry;
using deltarelay::TensorType;
namespace stages = deltarelay::cases;

int64_t bytes_of(int32_t dtype) { return dtype == DR_BF16 || dtype == DR_FP16 ? 2 : dtype == DR_INT64 ? 8 : 4; }
int32_t or_else(int32_t given, int32_t otherwise) { return given != 0 ? given : otherwise; }
int64_t or_else(int64_t given, int64_t otherwise) { return given != 0 ? given : otherwise; }

// Elements from the first to past the last; -1 if that is too many for a test.
int64_t extent(std::initializer_list<std::pair<int64_t, int64_t>> axes, int64_t width) {
  double last = static_cast<double>(width);
  for (const auto& [count, stride] : axes) {
    if (count == 0) return 0;
    if (count > 1) last += static_cast<double>(count - 1) * static_cast<double>(stride);
  }
  return last <= static_cast<double>(kMostElements) ? static_cast<int64_t>(last) : -1;
}

// The counts of one call, which size its memory.
struct Call {
  bool batched;
  int64_t tokens;                // rows; batched: rows of each sequence
  std::vector<int64_t> lengths;  // of every sequence

  int64_t num_seqs() const { return static_cast<int64_t>(lengths.size()); }
};

int64_t tensor_extent(const Call& call, const dr_layout& layout, int64_t heads, int64_t width) {
  const int64_t head = or_else(layout.head, width);
  int64_t token = 0;
  int64_t sequence = 0;
  if (__builtin_mul_overflow(heads, head, &token)) return -1;
  token = or_else(layout.token, token);
  if (__builtin_mul_overflow(call.tokens, token, &sequence)) return -1;
  sequence = or_else(layout.sequence, sequence);
  return extent({{call.batched ? call.num_seqs() : 1, sequence}, {call.tokens, token}, {heads, head}}, width);
}

int64_t pool_extent(const dr_problem& problem, const dr_state& state, int64_t rows) {
  const int64_t width = int64_t{problem.dk} * problem.dv;
  const int64_t head = or_else(state.stride_head, width);
  int64_t slot = 0;
  if (__builtin_mul_overflow(int64_t{problem.heads_v}, head, &slot)) return -1;
  return extent({{or_else(state.num_slots, rows), or_else(state.stride_slot, slot)}, {problem.heads_v, head}}, width);
}

// Lists in host memory with exactly the entries of the contract.
template <class Value>
Block list_of(const std::vector<Value>& values) {
  Block block(values.size() * sizeof(Value), 0);
  if (!values.empty()) std::memcpy(block.data(), values.data(), block.size());
  return block;
}

Block indices_of(const std::vector<int64_t>& values, int32_t dtype) {
  if (dtype == DR_INT64) return list_of(values);
  return list_of(std::vector<int32_t>(values.begin(), values.end()));
}

void spoil_list(Input& input, std::vector<int64_t>& values) {
  if (values.empty() || !input.one_in(10)) return;
  values[input.below(values.size())] = input.odd_number();
}

std::vector<int64_t> slots_of(Input& input, int64_t entries, int64_t num_slots) {
  std::vector<int64_t> slots(static_cast<size_t>(entries));
  std::iota(slots.begin(), slots.end(), 0);
  if (num_slots > 0 && input.one_in(3)) std::reverse(slots.begin(), slots.end());
  for (int64_t& slot : slots) {
    if (input.one_in(8)) slot = -1;
  }
  spoil_list(input, slots);
  return slots;
}

std::vector<int64_t> offsets_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> offsets(1);
  for (const int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

class Execution {
 public:
  Execution(Input& input, const dr_problem& problem) : in_(input), p_(problem) { dr_tensors_init(&t_); }

  // Returns false if the call is too large.
  bool prepare(const std::vector<int64_t>& offsets) {
    call_.batched = p_.seq_len > 0;
    if (p_.num_seqs > kMostSequences) return false;
    late_ = !call_.batched && offsets.empty();
    if (call_.batched) {
      call_.tokens = p_.seq_len;
      call_.lengths.assign(static_cast<size_t>(p_.num_seqs), p_.seq_len);
    } else if (late_) {
      if (p_.num_tokens > kMostElements) return false;
      draw_lengths();
    } else {
      call_.tokens = p_.num_tokens;
      for (size_t n = 0; n + 1 < offsets.size(); ++n) call_.lengths.push_back(offsets[n + 1] - offsets[n]);
    }
    const int64_t rows = call_.batched ? p_.num_seqs * p_.seq_len : call_.tokens;
    const double work = static_cast<double>(rows) * p_.heads_v * p_.dk * p_.dv;
    return work <= static_cast<double>(kMostWork) && give_tensors() && give_states() && give_checkpoints() &&
           give_intermediates();
  }

  void run(const dr_plan* plan) {
    size_t bytes = 0;
    expect(answered("dr_plan_workspace_bytes", dr_plan_workspace_bytes(plan, &bytes)), "expected a size", "a refusal");
    if (bytes > kMostWorkspace) return;
    spoil_tensors();
    Block workspace(bytes, kPoison);
    Block stage;
    if (p_.chunks != nullptr) {
      stage = as_stated(in_, m_);
      t_.intermediates = reinterpret_cast<const dr_intermediates*>(stage.data());
    }
    const Block given = as_stated(in_, t_);
    const uint64_t before = hash_inputs();
    size_t stated = bytes;
    size_t skew = 0;
    if (in_.one_in(12)) stated = static_cast<size_t>(in_.odd_number());
    if (stated > bytes) stated = bytes;
    if (in_.one_in(24) && bytes > 0) skew = 1 + in_.below(255);  // refused before anything is written
    void* const stream = in_.one_in(24) ? &bytes : nullptr;
    const dr_status status =
        dr_execute(plan, reinterpret_cast<const dr_tensors*>(given.data()), workspace.data() + skew, stated, stream);
    const bool done = answered("dr_execute", status);
    expect(workspace.guarded(), "expected memory beside the workspace as it was", "other bytes");
    for (const Block* block : {&q_, &k_, &v_, &g_, &beta_, &o_, &initial_, &final_, &checkpoint_, &report_})
      expect(block->guarded(), "expected memory beside a tensor as it was", "other bytes");
    for (const Block& block : intermediates_)
      expect(block.guarded(), "expected memory beside an intermediate as it was", "other bytes");
    expect(in_place_ || hash_inputs() == before, "expected inputs as they were", "other bytes");
    if (done) return;
    expect(hash_inputs() == before, "expected inputs as they were after a refusal", "other bytes");
    for (const Block* block : {&o_, &final_, &checkpoint_, &report_})
      expect(block->all(kPoison), "expected a refused call to have written nothing", "outputs that changed");
    for (size_t i = 0; i < intermediates_.size(); ++i) {
      const bool wanted = p_.chunks != nullptr && (p_.chunks->wanted & int32_t{1} << i) != 0;
      expect(!wanted || intermediates_[i].all(kPoison), "expected a refused call to have written nothing",
             "intermediates that changed");
    }
  }

 private:
  // Draws lengths that come with the tensors, for the tokens and sequences of this call.
  void draw_lengths() {
    int64_t num_seqs = p_.num_seqs;
    call_.tokens = p_.num_tokens;
    if (in_.one_in(2)) t_.num_seqs = num_seqs = in_.in(1, p_.num_seqs);
    if (in_.one_in(2) && p_.num_tokens > 0) t_.num_tokens = call_.tokens = in_.in(1, p_.num_tokens);
    int64_t left = call_.tokens;
    for (int64_t n = 0; n < num_seqs; ++n) {
      call_.lengths.push_back(in_.in(0, std::min<int64_t>(left, 150)));
      left -= call_.lengths.back();
    }
    std::vector<int64_t> offsets = offsets_of(call_.lengths);
    spoil_list(in_, offsets);
    take_lengths(offsets);
    offsets_ = indices_of(offsets, p_.seq_offsets_dtype);
    t_.seq_offsets = offsets_.data();
  }

  // Spoilt offsets may still be legal. The call then has their lengths, and the memory of its states must fit them.
  void take_lengths(const std::vector<int64_t>& offsets) {
    if (offsets.front() != 0 || offsets.back() > call_.tokens || !std::is_sorted(offsets.begin(), offsets.end()))
      return;
    for (size_t n = 0; n < call_.lengths.size(); ++n) call_.lengths[n] = offsets[n + 1] - offsets[n];
  }

  bool give(Block& block, int64_t elements, int32_t dtype, unsigned char fill) {
    if (elements < 0) return false;
    block = Block(static_cast<size_t>(elements * bytes_of(dtype)), fill);
    return true;
  }

  bool give_tensors() {
    const int32_t dtype = or_else(p_.dtype, DR_FP32);
    const int32_t dtype_gate = or_else(p_.dtype_gate, dtype);
    const int64_t gate_width = p_.rule == DR_KDA ? p_.dk : 1;
    const bool raw = p_.gate_form == DR_GATE_RAW_SOFTPLUS || p_.gate_form == DR_GATE_RAW_BOUNDED;
    // Small numbers in every type: 0x38.. is positive, 0xb8.. negative. Sometimes all bits are set, which is NaN.
    const bool wild = in_.one_in(8);
    const unsigned char above = wild ? 0xff : 0x38;
    const unsigned char gate = wild ? 0xff : p_.gate_form == DR_GATE_LOG ? 0xb8 : 0x38;
    const auto tensor = [&](Block& block, const dr_layout& layout, int64_t heads, int64_t width, int32_t type,
                            unsigned char fill) {
      return give(block, tensor_extent(call_, layout, heads, width), type, fill);
    };
    if (!tensor(q_, p_.layout_q, p_.heads_qk, p_.dk, dtype, above) ||
        !tensor(k_, p_.layout_k, p_.heads_qk, p_.dk, dtype, above) ||
        !tensor(v_, p_.layout_v, p_.heads_v, p_.dv, dtype, above) ||
        !tensor(g_, p_.layout_g, p_.heads_v, gate_width, dtype_gate, gate) ||
        !tensor(beta_, p_.layout_beta, p_.heads_v, 1, or_else(p_.dtype_beta, dtype), above) ||
        !tensor(o_, p_.layout_o, p_.heads_v, p_.dv, or_else(p_.dtype_o, dtype), kPoison))
      return false;
    // A stage must not get what it does not read.
    const int32_t of_given = p_.chunks != nullptr ? p_.chunks->given : 0;
    const int32_t of_wanted = p_.chunks != nullptr ? p_.chunks->wanted : 0;
    const auto read = [&](Tensor which, const Block& block) -> const void* {
      return stages::reads_rows(p_.op, of_given, of_wanted, which) ? block.data() : nullptr;
    };
    t_.q = read(Tensor::kQ, q_);
    t_.k = read(Tensor::kK, k_);
    t_.v = read(Tensor::kV, v_);
    t_.g = read(Tensor::kG, g_);
    t_.beta = read(Tensor::kBeta, beta_);
    if (stages::writes_o(p_.op)) t_.o = o_.data();
    if (raw) {
      give(a_log_, p_.heads_v, p_.dtype_a_log, above);
      give(dt_bias_, p_.heads_v * gate_width, p_.dtype_dt_bias, above);
      if (!in_.one_in(6)) t_.a_log = a_log_.data();
      if (!in_.one_in(3)) t_.dt_bias = dt_bias_.data();
    } else if (in_.one_in(3)) {
      t_.a_log = t_.dt_bias = reinterpret_cast<const void*>(uintptr_t{0x10});  // ignored by the library
    }
    give(report_, in_.one_in(2) ? 1 : 0, DR_INT32, kPoison);
    if (report_.size() != 0) t_.report = reinterpret_cast<uint32_t*>(report_.data());
    return true;
  }

  bool give_states() {
    const int64_t rows = p_.num_seqs;
    if (p_.initial.use != DR_STATE_NONE) {
      if (!give(initial_, pool_extent(p_, p_.initial, rows), p_.initial.dtype, 0x38)) return false;
      t_.initial = initial_.data();
      if (p_.initial.use == DR_STATE_SLOTS)
        t_.initial_index = slots(initial_index_, p_.initial, call_.num_seqs(), rows);
    }
    if (p_.initial_mask != 0) {
      mask_ = Block(static_cast<size_t>(call_.num_seqs()), 1);
      for (size_t n = 0; n < mask_.size(); ++n) mask_.data()[n] = static_cast<unsigned char>(in_.below(3));
      t_.has_initial = mask_.data();
    }
    if (p_.final.use != DR_STATE_NONE) {
      if (!give(final_, pool_extent(p_, p_.final, rows), p_.final.dtype, kPoison)) return false;
      t_.final = final_.data();
      in_place_ = initial_.given() && initial_.size() == final_.size() && in_.one_in(4);
      if (in_place_) t_.final = initial_.data();
      if (p_.final.use == DR_STATE_SLOTS) t_.final_index = slots(final_index_, p_.final, call_.num_seqs(), rows);
    }
    return true;
  }

  const void* slots(Block& block, const dr_state& state, int64_t entries, int64_t rows) {
    block = indices_of(slots_of(in_, entries, or_else(state.num_slots, rows)), state.index_dtype);
    return block.data();
  }

  int64_t checkpoints_within(int64_t length) const {
    if (p_.checkpoints == DR_CHECKPOINTS_EVERY) return length / p_.checkpoint_every;
    return p_.checkpoints == DR_CHECKPOINTS_CHUNKS ? (length + 63) / 64 : length / 16;
  }

  bool give_checkpoints() {
    if (p_.checkpoints == DR_CHECKPOINTS_NONE) return true;
    int64_t rows = 0;  // of this call
    for (const int64_t length : call_.lengths) rows += checkpoints_within(length);
    // By default a pool has room for every call: the tokens of the problem bound late lengths.
    int64_t room = rows;
    if (late_) room = checkpoints_within(p_.num_tokens) + (p_.checkpoints == DR_CHECKPOINTS_CHUNKS ? p_.num_seqs : 0);
    if (!give(checkpoint_, pool_extent(p_, p_.checkpoint, room), p_.checkpoint.dtype, kPoison)) return false;
    t_.checkpoint = checkpoint_.data();
    if (p_.checkpoints == DR_CHECKPOINTS_LIST) {
      std::vector<int64_t> offsets(1), positions;
      for (const int64_t length : call_.lengths) {
        for (int64_t position = 16; position <= length; position += 16) {
          if (!in_.one_in(3)) positions.push_back(position);
        }
        offsets.push_back(static_cast<int64_t>(positions.size()));
      }
      // A list with too large a count is read until a position is wrong, so leave room for positions that could be
      // right.
      positions.resize(static_cast<size_t>(rows + call_.num_seqs() + 1), 0);
      spoil_list(in_, offsets);
      spoil_list(in_, positions);
      list_offsets_ = indices_of(offsets, DR_INT32);
      list_positions_ = indices_of(positions, DR_INT32);
      t_.checkpoint_offsets = reinterpret_cast<const int32_t*>(list_offsets_.data());
      t_.checkpoint_positions = reinterpret_cast<const int32_t*>(list_positions_.data());
    }
    if (p_.checkpoint.use == DR_STATE_SLOTS) t_.checkpoint_index = slots(checkpoint_index_, p_.checkpoint, rows, room);
    return true;
  }

  int32_t dtype_of(TensorType type) const {
    const int32_t dtype = or_else(p_.chunks->dtype, or_else(p_.dtype, DR_FP32));
    if (type == TensorType::kIntermediate) return dtype;
    if (type != TensorType::kStates) return DR_FP32;
    return or_else(p_.chunks->dtype_states, p_.op == DR_CARRY ? DR_FP32 : dtype);
  }

  // Memory for what a stage is given and wants, with as many rows as this call has.
  bool give_intermediates() {
    dr_intermediates_init(&m_);
    if (p_.chunks == nullptr) return true;
    const bool carry = p_.op == DR_CARRY;
    const int64_t chunk = carry ? 0 : or_else(p_.chunks->chunk, stages::kDefaultChunk);
    const int64_t tokens = call_.batched ? call_.tokens * call_.num_seqs() : call_.tokens;
    int64_t chunks = 0;
    for (const int64_t length : call_.lengths) chunks += carry ? 0 : (length + chunk - 1) / chunk;
    const deltarelay::TensorSizes sizes = {.tokens = tokens,
                                           .sequences = call_.num_seqs(),
                                           .heads_qk = p_.heads_qk,
                                           .heads_v = p_.heads_v,
                                           .dk = p_.dk,
                                           .dv = p_.dv,
                                           .gates = p_.rule == DR_KDA ? p_.dk : 1,
                                           .checkpoint_rows = 0,
                                           .chunk = chunk,
                                           .state_rows = carry ? tokens : chunks,
                                           .summary_rows = carry ? tokens : call_.num_seqs()};
    for (size_t i = 0; i < intermediates_.size(); ++i) {
      const TensorEntry& entry = deltarelay::kTensors[deltarelay::kCallTensors.size() + i];
      const int32_t bit = deltarelay::bit_of(entry.tensor);
      if (((p_.chunks->given | p_.chunks->wanted) & bit) == 0) continue;
      const int64_t count = deltarelay::count_of(sizes, entry);
      if (count > kMostElements) return false;
      const unsigned char input = entry.tensor == Tensor::kGateSums ? 0xb8 : 0x38;
      give(intermediates_[i], count, dtype_of(entry.type), (p_.chunks->given & bit) != 0 ? input : kPoison);
      deltarelay::set_pointer(m_, entry, intermediates_[i].data());
    }
    return true;
  }

  // An intermediate that is missing, that is not asked for, or that is one element off.
  void spoil_intermediates() {
    if (p_.chunks == nullptr) return;
    if (in_.one_in(8)) {
      const TensorEntry& entry =
          deltarelay::kTensors[deltarelay::kCallTensors.size() + in_.below(intermediates_.size())];
      Block& block =
          intermediates_[static_cast<size_t>(&entry - deltarelay::kTensors.data()) - deltarelay::kCallTensors.size()];
      unsigned char* const other = block.given() ? block.data() + 2 : q_.data();
      deltarelay::set_pointer(m_, entry, block.given() && in_.one_in(2) ? nullptr : other);
    }
    if (in_.one_in(12)) m_.size = static_cast<uint32_t>(in_.odd_number());
    if (in_.one_in(24)) m_.reserved = 1;
  }

  // Spoils tensors: a missing pointer, one that must be NULL, one that is one byte off; sizes and counts.
  void spoil_tensors() {
    const void** const pointers[] = {&t_.q,
                                     &t_.k,
                                     &t_.v,
                                     &t_.g,
                                     &t_.beta,
                                     &t_.a_log,
                                     &t_.dt_bias,
                                     const_cast<const void**>(&t_.o),
                                     &t_.initial,
                                     &t_.initial_index,
                                     const_cast<const void**>(&t_.final),
                                     &t_.final_index,
                                     const_cast<const void**>(&t_.checkpoint),
                                     &t_.checkpoint_index,
                                     &t_.seq_offsets};
    if (in_.one_in(6)) {
      const void** const pointer = pointers[in_.below(std::size(pointers))];
      const bool unread = pointer == &t_.a_log || pointer == &t_.dt_bias;
      if (*pointer == nullptr) {
        if (!unread) *pointer = q_.data();
      } else if (in_.one_in(2)) {
        *pointer = nullptr;
      } else if (!unread) {
        *pointer = static_cast<const unsigned char*>(*pointer) + 1;
      }
    }
    spoil_intermediates();
    if (p_.chunks == nullptr && in_.one_in(12))
      t_.intermediates = reinterpret_cast<const dr_intermediates*>(uintptr_t{0x10});
    if (in_.one_in(10)) t_.size = static_cast<uint32_t>(in_.odd_number());
    if (in_.one_in(24)) t_.reserved = 1;
    // Counts above the allocated memory would be the caller's error; all others must be refused or served.
    if (in_.one_in(16)) t_.num_tokens = in_.one_of<int64_t>({-1, p_.num_tokens + 1, INT64_MIN, INT64_MAX});
    if (in_.one_in(16)) t_.num_seqs = in_.one_of<int64_t>({-1, p_.num_seqs + 1, INT64_MIN, INT64_MAX});
  }

  uint64_t hash_inputs() const {
    uint64_t sum = 0;
    for (const Block* block : {&q_, &k_, &v_, &g_, &beta_, &initial_}) sum = sum * 31 + block->hash();
    for (size_t i = 0; p_.chunks != nullptr && i < intermediates_.size(); ++i)
      if ((p_.chunks->given & int32_t{1} << i) != 0) sum = sum * 31 + intermediates_[i].hash();
    return sum;
  }

  Input& in_;
  const dr_problem& p_;
  dr_tensors t_;
  dr_intermediates m_;                                                                              // of a stage
  std::array<Block, deltarelay::kTensors.size() - deltarelay::kCallTensors.size()> intermediates_;  // by their bits
  Call call_{};
  bool late_ = false;
  bool in_place_ = false;
  Block q_, k_, v_, g_, beta_, a_log_, dt_bias_, o_, report_;
  Block initial_, initial_index_, mask_, final_, final_index_;
  Block checkpoint_, checkpoint_index_, list_offsets_, list_positions_, offsets_;
};

}  // namespace

void execute(Input& input, const dr_problem& problem, const std::vector<int64_t>& offsets, const dr_plan* plan) {
  Execution execution(input, problem);
  if (execution.prepare(offsets)) execution.run(plan);
}

}  // namespace fuzz
