#include "check/tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "case/mix.h"
#include "check/generate.h"
#include "check/given.h"
#include "check/parallel.h"

namespace deltarelay::check {
namespace {

enum Salt : uint64_t { kInitialSalt = 1, kFinalSalt = 2, kCheckpointSalt = 3 };

constexpr int64_t kTokensWorthAThread = 1 << 12;  // token rows
constexpr int64_t kStatesWorthAThread = 8;

// A position-dependent hash of bytes, the same on every machine.
class ByteHash {
 public:
  void add(const std::byte* data, int64_t bytes) {
    add_word(static_cast<uint64_t>(bytes));
    for (int64_t i = 0; i < bytes; i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, data + i, static_cast<size_t>(std::min<int64_t>(8, bytes - i)));
      add_word(word);
    }
  }
  uint64_t value() const { return value_; }

 private:
  void add_word(uint64_t word) { value_ = cases::mix(value_ ^ word); }
  uint64_t value_ = 0;
};

}  // namespace

TokenTensor TensorSet::allocate_rows(Tensor tensor) {
  if (tensor == Tensor::kO ? !case_.writes_o() : !case_.reads_rows(tensor)) return {};
  const cases::Rows rows = cases::rows_of(case_, tensor);
  GuardedBuffer& memory = buffer(tensor);
  memory = GuardedBuffer(cases::extent(case_, rows) * bytes_of(rows.dtype),
                         alignment_of(rows.dtype, case_.alignments[tensor]));
  return view(rows, memory.data());
}

TokenTensor TensorSet::view(const cases::Rows& rows, std::byte* data) const {
  return {data, rows.dtype, rows.strides, rows.heads, rows.width, case_.batched ? nullptr : &offsets_};
}

StateTensor TensorSet::allocate_pool(Tensor tensor, Index& index, const cases::State& state, int64_t entries,
                                     uint64_t salt) {
  StateTensor pool;
  pool.state = state;
  if (!pool.used()) return pool;
  pool.dk = case_.dk;
  pool.dv = case_.dv;
  pool.stride_head = pool.dk * pool.dv;
  pool.stride_slot = case_.heads_v * pool.stride_head + state.pad;
  pool.num_slots = cases::pool_size(state, entries);
  GuardedBuffer& memory = buffer(tensor);
  int64_t alignment = alignment_of(state.dtype, case_.alignments[tensor]);
  if (case_.in_place && tensor == Tensor::kFinal)  // the final pool is the initial pool
    alignment = std::max(alignment, alignment_of(state.dtype, case_.alignments[Tensor::kInitial]));
  memory = GuardedBuffer(pool.num_slots * pool.stride_slot * bytes_of(state.dtype), alignment);
  pool.data = memory.data();
  if (state.use == DR_STATE_ROWS) {
    for (int64_t n = 0; n < entries; ++n) pool.slots.push_back(n);
    return pool;
  }
  pool.slots = cases::slot_indices(state, entries, case_.seed, salt);
  if (state.index_dtype == DR_INT64) {
    index.wide = pool.slots;
    index.wide.push_back(0);  // never empty, so that data() chooses by type
  } else {
    index.narrow.assign(pool.slots.begin(), pool.slots.end());
  }
  for (int64_t& slot : pool.slots) {
    if (slot < 0 || slot == state.null_index) slot = -1;
  }
  return pool;
}

TensorSet::TensorSet(const cases::Case& c, int64_t alignment, const Fill& fill, int32_t reference_threads)
    : case_(c), request_(c), alignment_(alignment), offsets_(c.offsets()) {
  // The case's alignment applies to all tensors. Widths fix the alignment of views of a packed row.
  if (c.alignment != 0) {
    alignment_ = std::bit_floor(static_cast<uint32_t>(c.alignment));
  } else if (c.strides == cases::Strides::kPacked) {
    alignment_ = request_.problem.layout_q.alignment_bytes;
  }
  allocate_tokens();
  allocate_parameters();
  allocate_intermediates();

  initial_ = allocate_pool(Tensor::kInitial, initial_index_, c.initial, c.num_seqs(), kInitialSalt);
  final_ = allocate_pool(Tensor::kFinal, final_index_, c.final, c.num_seqs(), c.in_place ? kInitialSalt : kFinalSalt);
  const std::vector<std::vector<int64_t>> positions = cases::checkpoint_positions(c);
  checkpoint_offsets_.push_back(0);
  for (size_t n = 0; n < positions.size(); ++n) {
    checkpoint_positions_.insert(checkpoint_positions_.end(), positions[n].begin(), positions[n].end());
    checkpoint_sequence_.insert(checkpoint_sequence_.end(), positions[n].size(), static_cast<int64_t>(n));
    checkpoint_offsets_.push_back(static_cast<int32_t>(checkpoint_positions_.size()));
  }
  checkpoint_ = allocate_pool(Tensor::kCheckpoint, checkpoint_index_, c.checkpoint,
                              static_cast<int64_t>(checkpoint_sequence_.size()), kCheckpointSalt);
  if (c.mask) mask_ = cases::initial_mask(c);
  if (fill) {
    fill(*this);
  } else {
    generate_tokens();
    generate_initial();
    if (c.stage.given != 0) make_given(*this, reference_threads);
  }

  dr_tensors_init(&tensors_);
  tensors_.q = q_.data;
  tensors_.k = k_.data;
  tensors_.v = v_.data;
  tensors_.g = g_.data;
  tensors_.beta = beta_.data;
  tensors_.o = o_.data;
  if (c.is_stage()) tensors_.intermediates = &intermediates_;
  if (c.raw_gate() && c.a_log) tensors_.a_log = buffer(Tensor::kALog).data();
  if (c.raw_gate() && c.dt_bias) tensors_.dt_bias = buffer(Tensor::kDtBias).data();
  tensors_.initial = c.in_place ? final_.data : initial_.data;
  tensors_.final = final_.data;
  tensors_.checkpoint = checkpoint_.data;
  if (initial_.state.use == DR_STATE_SLOTS) tensors_.initial_index = initial_index_.data();
  if (final_.state.use == DR_STATE_SLOTS) tensors_.final_index = final_index_.data();
  if (checkpoint_.state.use == DR_STATE_SLOTS) tensors_.checkpoint_index = checkpoint_index_.data();
  if (c.mask) tensors_.has_initial = mask_.data();
  if (c.checkpoints == DR_CHECKPOINTS_LIST) {
    tensors_.checkpoint_offsets = checkpoint_offsets_.data();
    checkpoint_positions_.push_back(0);  // an empty list still needs an address
    tensors_.checkpoint_positions = checkpoint_positions_.data();
  }
  if (c.lengths_at == cases::LengthsAt::kExecute) tensors_.seq_offsets = request_.seq_offsets();
  if (c.bound_seqs > 0) {
    tensors_.num_tokens = c.num_tokens();
    tensors_.num_seqs = c.num_seqs();
  }
  poison();
}

void TensorSet::allocate_tokens() {
  const auto read_view = [&](Tensor tensor, int64_t offset) {
    if (!case_.reads_rows(tensor)) return TokenTensor();
    return view(cases::rows_of(case_, tensor), memory_qkv_.data() + offset * bytes_of(case_.dtype));
  };
  if (case_.strides == cases::Strides::kPacked) {
    const cases::PackedRow row = cases::packed_row(case_);
    // Views promise less than their row has. Allocate at least one row: without tokens, k and v still begin after q.
    memory_qkv_ = GuardedBuffer(std::max<int64_t>(1, case_.num_tokens()) * row.width * bytes_of(case_.dtype),
                                std::max<int64_t>(16, alignment_));
    q_ = read_view(Tensor::kQ, 0);
    k_ = read_view(Tensor::kK, row.k);
    v_ = read_view(Tensor::kV, row.v);
  } else {
    q_ = allocate_rows(Tensor::kQ);
    k_ = allocate_rows(Tensor::kK);
    v_ = allocate_rows(Tensor::kV);
  }
  g_ = allocate_rows(Tensor::kG);
  beta_ = allocate_rows(Tensor::kBeta);
  o_ = allocate_rows(Tensor::kO);
}

// The contract promises 16 bytes for every intermediate, whatever align= says of the other tensors.
void TensorSet::allocate_intermediates() {
  dr_intermediates_init(&intermediates_);
  const TensorSizes sizes = cases::sizes_of(case_);
  for (const TensorEntry& entry : kTensors) {
    if (!is_intermediate(entry.tensor)) continue;
    const int32_t bit = bit_of(entry.tensor);
    if (((case_.stage.given | case_.stage.wanted) & bit) == 0) continue;
    StageTensor x;
    x.entry = &entry;
    x.dtype = cases::dtype_of_intermediate(case_, entry);
    x.given = (case_.stage.given & bit) != 0;
    x.rows = size_of_axis(sizes, entry.axes[0]);
    x.heads = size_of_axis(sizes, entry.axes[1]);
    x.width = size_of_axis(sizes, entry.axes[2]);
    if (entry.axes[2] == TensorAxis::kChunk) x.chunk = case_.stage.chunk;
    x.starts = cases::intermediate_rows(case_, entry);
    buffer(entry.tensor) = GuardedBuffer(x.bytes(), std::max(kLeastAlignment, alignment_));
    x.data = buffer(entry.tensor).data();
    set_pointer(intermediates_, entry, x.data);
    stage_.push_back(std::move(x));
  }
}

const StageTensor* TensorSet::intermediate(Tensor tensor) const {
  for (const StageTensor& x : stage_)
    if (x.entry->tensor == tensor) return &x;
  return nullptr;
}

bool TensorSet::is_written(const TensorEntry& entry) const {
  if (is_intermediate(entry.tensor)) return case_.wants(bit_of(entry.tensor));
  return entry.direction == TensorDirection::kOut;
}

void TensorSet::allocate_parameters() {
  if (!case_.raw_gate()) return;
  const auto allocate = [&](Tensor tensor, int32_t dtype) {
    const int64_t count = count_of(cases::sizes_of(case_), entry_of(tensor));
    buffer(tensor) = GuardedBuffer(count * bytes_of(dtype), alignment_of(dtype));
  };
  allocate(Tensor::kALog, case_.dtype_a_log);
  allocate(Tensor::kDtBias, case_.dtype_dt_bias);
}

void TensorSet::generate_tokens() {
  const Values values(case_);
  const int64_t gates = g_.width;
  // Tensors that a stage does not read have no memory.
  const bool reads_q = q_.data != nullptr, reads_k = k_.data != nullptr, reads_v = v_.data != nullptr;
  const bool reads_g = g_.data != nullptr, reads_beta = beta_.data != nullptr;
  // Sequence and token of every row, in order.
  std::vector<std::pair<int64_t, int64_t>> rows;
  rows.reserve(static_cast<size_t>(case_.tokens()));
  for (int64_t n = 0; n < case_.num_seqs(); ++n) {
    for (int64_t t = 0; t < case_.lengths[static_cast<size_t>(n)]; ++t) rows.emplace_back(n, t);
  }
  in_parallel(static_cast<int64_t>(rows.size()), kTokensWorthAThread, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const auto [n, t] = rows[static_cast<size_t>(row)];
      for (int64_t head = 0; head < case_.heads_qk; ++head) {
        const int64_t first = (row * case_.heads_qk + head) * case_.dk;
        const double length = values.key_length(row * case_.heads_qk + head);
        const int64_t at_q = q_.at(n, t, head, 0);
        const int64_t at_k = k_.at(n, t, head, 0);
        for (int64_t i = 0; i < case_.dk; ++i) {
          if (reads_q) q_.set(at_q + i, values.q(first + i));
          if (reads_k) k_.set(at_k + i, values.k(first + i) / length);
        }
      }
      for (int64_t head = 0; head < case_.heads_v; ++head) {
        const int64_t index = row * case_.heads_v + head;
        const int64_t at_v = v_.at(n, t, head, 0);
        const int64_t at_g = g_.at(n, t, head, 0);
        for (int64_t i = 0; reads_v && i < case_.dv; ++i) v_.set(at_v + i, values.v(index * case_.dv + i));
        for (int64_t i = 0; reads_g && i < gates; ++i) g_.set(at_g + i, values.gate(index * gates + i));
        if (reads_beta) beta_.set(beta_.at(n, t, head, 0), values.beta(index));
      }
    }
  });
  if (!case_.raw_gate()) return;
  const auto make = [&](Tensor tensor, int32_t dtype, auto value_at) {
    const int64_t count = count_of(cases::sizes_of(case_), entry_of(tensor));
    for (int64_t i = 0; i < count; ++i) store(buffer(tensor).data(), dtype, i, value_at(i));
  };
  make(Tensor::kALog, case_.dtype_a_log, [&](int64_t head) { return values.a_log(head); });
  make(Tensor::kDtBias, case_.dtype_dt_bias, [&](int64_t i) { return values.dt_bias(i); });
}

void TensorSet::generate_initial() {
  if (!initial_.used()) return;
  const Values values(case_);
  in_parallel(case_.num_seqs() * case_.heads_v, kStatesWorthAThread, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t n = block / case_.heads_v;
      const int64_t slot = initial_.slots[static_cast<size_t>(n)];
      if (slot < 0 || (case_.mask && mask_[static_cast<size_t>(n)] == 0)) continue;
      for (int64_t i = 0; i < case_.dk; ++i) {
        for (int64_t c = 0; c < case_.dv; ++c) {
          const double value = values.initial((block * case_.dk + i) * case_.dv + c);
          initial_.set(initial_.at(slot, block % case_.heads_v, i, c), value);
        }
      }
    }
  });
}

int64_t TensorSet::list_bytes(const TensorEntry& entry) const {
  const TensorSizes sizes = cases::sizes_of(case_, static_cast<int64_t>(checkpoint_sequence_.size()));
  return count_of(sizes, entry) * element_bytes(entry);
}

int64_t TensorSet::element_bytes(const TensorEntry& entry) const {
  switch (entry.type) {
    case TensorType::kByte:
      return 1;
    case TensorType::kOffsets:
      return bytes_of(case_.offsets_dtype);
    case TensorType::kStateIndex:
      return bytes_of(entry.tensor == Tensor::kInitialIndex ? case_.initial.index_dtype
                      : entry.tensor == Tensor::kFinalIndex ? case_.final.index_dtype
                                                            : case_.checkpoint.index_dtype);
    default:
      return bytes_of(DR_INT32);
  }
}

std::vector<TensorSet::Memory> TensorSet::memory() {
  std::vector<Memory> all;
  const auto add = [&all](const char* name, GuardedBuffer& buffer, bool output) {
    if (buffer.data() == nullptr) return;
    all.push_back({name, buffer.data(), output ? buffer.data() : nullptr, buffer.bytes(), buffer.alignment()});
  };
  add("qkv", memory_qkv_, false);
  for (const TensorEntry& entry : kTensors) {
    add(entry.name, buffer(entry.tensor), is_written(entry));
    const void* const data = pointer_of(tensors_, entry);
    if (data == nullptr || (entry.kind != TensorKind::kIndex && entry.kind != TensorKind::kList)) continue;
    // Element alignment only, which is all that the contract promises for lists.
    all.push_back({entry.name, static_cast<const std::byte*>(data), nullptr, list_bytes(entry), element_bytes(entry)});
  }
  return all;
}

dr_tensors TensorSet::inputs() const {
  dr_tensors inputs = tensors_;
  inputs.initial = initial_.data;
  for (const TensorEntry& entry : kCallTensors)
    if (entry.direction == TensorDirection::kOut) set_pointer(inputs, entry, nullptr);
  inputs.intermediates = nullptr;
  inputs.final_index = nullptr;
  inputs.checkpoint_index = nullptr;
  return inputs;
}

void TensorSet::copy_inputs(const TensorSet& from) {
  const auto copy = [](GuardedBuffer& into, const GuardedBuffer& drawn) {
    if (into.data() != nullptr) std::memcpy(into.data(), drawn.data(), static_cast<size_t>(into.bytes()));
  };
  copy(memory_qkv_, from.memory_qkv_);
  for (const TensorEntry& entry : kTensors)
    if (!is_written(entry)) copy(buffer(entry.tensor), from.buffer(entry.tensor));
}

void TensorSet::poison() {
  for (const StageTensor& x : stage_)
    if (!x.given) buffer(x.entry->tensor).poison();
  buffer(Tensor::kO).poison();
  buffer(Tensor::kCheckpoint).poison();
  buffer(Tensor::kFinal).poison();
  if (case_.in_place) {
    std::memcpy(buffer(Tensor::kFinal).data(), buffer(Tensor::kInitial).data(),
                static_cast<size_t>(buffer(Tensor::kInitial).bytes()));
  }
}

std::string TensorSet::damage() const {
  if (!memory_qkv_.intact()) return "qkv: written outside its memory";
  for (const TensorEntry& entry : kTensors) {
    if (!buffer(entry.tensor).intact()) return std::string(entry.name) + ": written outside its memory";
  }
  std::string found = damaged_output();
  for (const StageTensor& x : stage_)
    if (found.empty() && !x.given) found = damaged_intermediate(x);
  if (found.empty())
    found = damaged_pool("final", final_, buffer(Tensor::kFinal), case_.in_place ? &buffer(Tensor::kInitial) : nullptr);
  if (found.empty()) found = damaged_pool("checkpoint", checkpoint_, buffer(Tensor::kCheckpoint), nullptr);
  return found;
}

// Rows of no sequence, and what lies above the diagonal, must be zero.
std::string TensorSet::damaged_intermediate(const StageTensor& x) const {
  const auto zero = [&x](int64_t row, int64_t head, int64_t i) { return x.get(x.at(row, head, i)) == 0.0; };
  const auto wrong = [&x](int64_t row, int64_t head, int64_t i, const char* where) {
    return std::string(x.entry->name) + ": expected 0 in row " + std::to_string(row) + ", head " +
           std::to_string(head) + ", column " + std::to_string(i) + " " + where + ", found " +
           std::to_string(x.get(x.at(row, head, i)));
  };
  for (int64_t row = x.starts.back(); row < x.rows; ++row)
    for (int64_t head = 0; head < x.heads; ++head)
      for (int64_t i = 0; i < x.width; ++i)
        if (!zero(row, head, i)) return wrong(row, head, i, "behind the last offset");
  for (size_t n = 0; x.chunk > 0 && n + 1 < x.starts.size(); ++n)
    for (int64_t t = 0; x.starts[n] + t < x.starts[n + 1]; ++t)
      for (int64_t head = 0; head < x.heads; ++head)
        for (int64_t i = t % x.chunk + 1; i < x.width; ++i)
          if (!zero(x.starts[n] + t, head, i)) return wrong(x.starts[n] + t, head, i, "above the diagonal");
  return {};
}

std::string TensorSet::damaged_output() const {
  if (!case_.writes_o()) return {};
  const int64_t row = o_.heads * o_.width;
  const int64_t size = bytes_of(o_.dtype);
  if (case_.strides == cases::Strides::kPadded) {  // the only layout with gaps
    for (int64_t t = 0; t + 1 < case_.num_tokens(); ++t) {
      if (!is_poison(o_.data + (t * o_.strides.token + row) * size, (o_.strides.token - row) * size)) {
        return "o: written into the gap behind row " + std::to_string(t);
      }
    }
  }
  for (int64_t t = case_.tokens(); t < case_.num_tokens(); ++t) {
    for (int64_t head = 0; head < o_.heads; ++head) {
      for (int64_t i = 0; i < o_.width; ++i) {
        const double value = o_.get(t * o_.strides.token + head * o_.strides.head + i);
        if (value != 0.0) {
          return "o: expected 0 in row " + std::to_string(t) + " behind the last offset, found " +
                 std::to_string(value);
        }
      }
    }
  }
  return {};
}

// Slots that are not written, and gaps between slots, must be unchanged.
std::string TensorSet::damaged_pool(const char* name, const StateTensor& pool, const GuardedBuffer& buffer,
                                    const GuardedBuffer* before) const {
  if (!pool.used()) return {};
  std::vector<bool> written(static_cast<size_t>(pool.num_slots), false);
  for (const int64_t slot : pool.slots) {
    if (slot >= 0) written[static_cast<size_t>(slot)] = true;
  }
  const int64_t size = bytes_of(pool.state.dtype);
  for (int64_t slot = 0; slot < pool.num_slots; ++slot) {
    const int64_t used = written[static_cast<size_t>(slot)] ? case_.heads_v * pool.stride_head : 0;
    const int64_t offset = (slot * pool.stride_slot + used) * size;
    const int64_t bytes = (pool.stride_slot - used) * size;
    const bool kept = before != nullptr ? std::memcmp(buffer.data() + offset, before->data() + offset,
                                                      static_cast<size_t>(bytes)) == 0
                                        : is_poison(buffer.data() + offset, bytes);
    if (!kept) {
      return std::string(name) + ": changed " + (used == 0 ? "slot " : "the gap behind slot ") + std::to_string(slot);
    }
  }
  return {};
}

std::vector<std::byte> TensorSet::output_bits() const {
  std::vector<std::byte> bits;
  for (const GuardedBuffer* written : {&buffer(Tensor::kO), &buffer(Tensor::kFinal), &buffer(Tensor::kCheckpoint)}) {
    bits.insert(bits.end(), written->data(), written->data() + written->bytes());
  }
  for (const StageTensor& x : stage_)
    if (!x.given) bits.insert(bits.end(), x.data, x.data + x.bytes());
  return bits;
}

uint64_t TensorSet::output_hash() const {
  ByteHash hash;
  const int64_t element = bytes_of(o_.dtype);
  for (int64_t row = 0; case_.writes_o() && row < case_.num_tokens(); ++row) {
    const int64_t length = case_.batched ? case_.lengths[0] : 0;
    const int64_t at = case_.batched ? o_.at(row / length, row % length, 0, 0) : row * o_.strides.token;
    for (int64_t head = 0; head < o_.heads; ++head)
      hash.add(o_.data + (at + head * o_.strides.head) * element, o_.width * element);
  }
  for (const StateTensor* pool : {&final_, &checkpoint_}) {
    const int64_t bytes = case_.heads_v * pool->stride_head * bytes_of(pool->state.dtype);
    for (const int64_t slot : pool->slots)
      if (slot >= 0) hash.add(pool->data + slot * pool->stride_slot * bytes_of(pool->state.dtype), bytes);
  }
  for (const StageTensor& x : stage_)
    if (!x.given) hash.add(x.data, x.bytes());
  return hash.value();
}

}  // namespace deltarelay::check
