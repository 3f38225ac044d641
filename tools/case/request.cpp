#include <algorithm>
#include <numeric>

#include "case/case.h"
#include "case/mix.h"

namespace deltarelay::cases {
namespace {

constexpr int64_t kCheckpointChunk = 64;  // of DR_CHECKPOINTS_CHUNKS

// Counts without building a list: a case that the library must refuse may have more checkpoints than memory holds.
int64_t count_checkpoints(const Case& c) {
  int64_t count = 0;
  for (const int64_t length : c.lengths) {
    if (c.checkpoints == DR_CHECKPOINTS_EVERY) count += length / c.checkpoint_every;
    if (c.checkpoints == DR_CHECKPOINTS_CHUNKS) count += (length + kCheckpointChunk - 1) / kCheckpointChunk;
    if (c.checkpoints == DR_CHECKPOINTS_LIST)
      count += std::upper_bound(c.checkpoint_list.begin(), c.checkpoint_list.end(), length) - c.checkpoint_list.begin();
  }
  return count;
}

constexpr int64_t kPad = 8;         // elements that Strides::kPadded adds to a token row
constexpr int64_t kAlignment = 16;  // bytes, the contract's default

int64_t bytes_of(int32_t dtype) { return dtype == DR_FP32 ? 4 : 2; }

dr_layout strides_of(const Case& c, int64_t heads, int64_t width) {
  dr_layout strides{};
  const int64_t tokens = c.batched ? c.lengths[0] : c.num_tokens();
  if (c.strides == Strides::kHeadFirst) {
    strides.token = width;
    strides.head = tokens * width;
    strides.sequence = heads * tokens * width;
  } else {
    strides.token = heads * width + (c.strides == Strides::kPadded ? kPad : 0);
    strides.head = width;
    strides.sequence = tokens * strides.token;
  }
  if (!c.batched) strides.sequence = 0;
  return strides;
}

dr_layout packed_strides(const Case& c, int64_t width) {
  dr_layout strides{};
  strides.token = packed_row(c).width;
  strides.head = width;
  if (c.batched) strides.sequence = c.lengths[0] * strides.token;
  return strides;
}

// Alignment of views of a packed row if the row itself has kAlignment.
int32_t packed_alignment(const Case& c) {
  const PackedRow row = packed_row(c);
  int64_t alignment = kAlignment;
  for (const int64_t offset : {row.k, row.v}) alignment = std::gcd(alignment, offset * bytes_of(c.dtype));
  return static_cast<int32_t>(alignment);
}

dr_state state_of(const Case& c, const State& state, int64_t entries) {
  dr_state out{};
  out.use = state.use;
  if (state.use == DR_STATE_NONE) return out;
  out.layout = state.layout;
  out.dtype = state.dtype;
  if (state.pad != 0) out.stride_slot = int64_t{c.heads_v} * c.dk * c.dv + state.pad;
  if (state.use == DR_STATE_SLOTS) {
    out.index_dtype = state.index_dtype;
    out.num_slots = pool_size(state, entries);
    out.has_null_index = state.null_index.has_value() ? 1 : 0;
    out.null_index = state.null_index.value_or(0);
  }
  return out;
}

// Gates at or near 0.
bool is_slow(const Case& c) {
  constexpr double kNearZero = -0.1;  // per token: more than half of the state survives six tokens
  // Softplus gates include slow heads: a_log goes down to -3, a mean log-decay of -0.04. Half of the channels of a
  // fresh layer are slower than -0.1 too.
  return c.gate_form == DR_GATE_RAW_SOFTPLUS || c.gate_profile == GateProfile::kInit ||
         c.gate_profile == GateProfile::kMixed ||
         (!c.raw_gate() &&
          (c.gate_profile == GateProfile::kZero || (c.gate_profile == GateProfile::kRange && c.gate_low >= kNearZero) ||
           (c.gate_profile == GateProfile::kMean && c.gate_low >= kNearZero)));
}

bool writes_near_2(const Case& c) { return c.beta == BetaProfile::kNear2 || c.beta == BetaProfile::kTwice; }

// Applies promises of single tensors over the promise for all.
void promise_alignments(dr_problem& problem, const Alignments& alignments) {
  const auto promise = [&](Tensor tensor, int32_t& of) {
    if (alignments[tensor] != 0) of = alignments[tensor];
  };
  for (const TensorLayout& of : kTensorLayouts) promise(of.tensor, (problem.*of.layout).alignment_bytes);
  for (const TensorPool& of : kTensorPools) promise(of.tensor, (problem.*of.state).alignment_bytes);
}

int32_t dtype_of(const Case& c, TensorType type) {
  switch (type) {
    case TensorType::kOutput:
      return c.output_dtype();
    case TensorType::kGate:
      return c.gate_dtype();
    case TensorType::kBeta:
      return c.beta_dtype();
    case TensorType::kIntermediate:
      return c.intermediate_dtype();
    case TensorType::kStates:
      return c.states_dtype();
    case TensorType::kFp32:
      return DR_FP32;
    default:
      return c.dtype;
  }
}

int64_t chunks_in(int64_t length, int64_t chunk) { return (length + chunk - 1) / chunk; }

// Chunks of all sequences; states of a carry enter summaries, which are its tokens.
int64_t state_rows(const Case& c) {
  if (!c.is_stage()) return 0;
  if (c.op == DR_CARRY || c.stage.chunk == 0) return c.num_tokens();
  int64_t rows = 0;
  for (const int64_t length : c.lengths) rows += chunks_in(length, c.stage.chunk);
  return rows;
}

dr_chunks chunks_of(const Stage& stage) {
  dr_chunks chunks;
  dr_chunks_init(&chunks);
  chunks.chunk = stage.chunk;
  chunks.given = stage.given;
  chunks.wanted = stage.wanted;
  chunks.dtype = stage.dtype;
  chunks.dtype_states = stage.dtype_states;
  chunks.states_layout = stage.states_layout;
  chunks.sums_base_2 = stage.sums_base_2 ? 1 : 0;
  return chunks;
}

bool shares_a_row(const Case& c, Tensor tensor) {
  return c.strides == Strides::kPacked && (tensor == Tensor::kQ || tensor == Tensor::kK || tensor == Tensor::kV);
}

}  // namespace

int32_t Case::beta_form() const {
  if (beta == BetaProfile::kLogit) return DR_BETA_LOGIT;
  if (beta == BetaProfile::kTwice) return DR_BETA_TWICE_LOGIT;
  return DR_BETA_VALUE;
}

int32_t Case::states_dtype() const {
  if (stage.dtype_states != 0) return stage.dtype_states;
  return op == DR_CARRY ? DR_FP32 : intermediate_dtype();
}

int64_t Case::tokens() const { return std::accumulate(lengths.begin(), lengths.end(), int64_t{0}); }

int64_t Case::num_tokens() const { return tokens() + tail; }

std::vector<int64_t> Case::offsets() const {
  std::vector<int64_t> all(lengths.size() + 1, 0);
  std::partial_sum(lengths.begin(), lengths.end(), all.begin() + 1);
  return all;
}

bool Case::on_gpu() const { return (device.empty() ? backend : device).substr(0, 4) == "cuda"; }

bool Case::hostile() const {
  constexpr int32_t kFewChannels = 16;  // half as many as a chunk has keys
  const bool narrow = rule == DR_KDA && dtype != DR_FP32 && dk <= kFewChannels;
  return is_slow(*this) && (keys == KeyProfile::kCorrelated || writes_near_2(*this) || narrow);
}

bool Case::strained() const {
  constexpr int32_t kMostChannels = 64;
  return (keys == KeyProfile::kCorrelated && writes_near_2(*this)) ||
         (rule == DR_KDA && dk <= kMostChannels && beta == BetaProfile::kOne && is_slow(*this));
}

PackedRow packed_row(const Case& c) {
  const int64_t qk = int64_t{c.heads_qk} * c.dk;
  return {2 * qk + int64_t{c.heads_v} * c.dv, qk, 2 * qk};
}

TensorSizes sizes_of(const Case& c, int64_t checkpoint_rows) {
  return {.tokens = c.num_tokens(),
          .sequences = c.num_seqs(),
          .heads_qk = c.heads_qk,
          .heads_v = c.heads_v,
          .dk = c.dk,
          .dv = c.dv,
          .gates = c.rule == DR_KDA ? c.dk : 1,
          .checkpoint_rows = checkpoint_rows,
          .chunk = c.stage.chunk,
          .state_rows = state_rows(c),
          .summary_rows = c.op == DR_CARRY ? c.num_tokens() : c.num_seqs()};
}

int32_t dtype_of_intermediate(const Case& c, const TensorEntry& entry) { return dtype_of(c, entry.type); }

std::vector<int64_t> intermediate_rows(const Case& c, const TensorEntry& entry) {
  const TensorAxis axis = entry.axes[0];
  const bool of_tokens = axis == TensorAxis::kTokens || (c.op == DR_CARRY && axis != TensorAxis::kSequences);
  if (of_tokens) return c.offsets();
  std::vector<int64_t> starts(1);
  for (const int64_t length : c.lengths)
    starts.push_back(starts.back() + (axis == TensorAxis::kStateRows ? chunks_in(length, c.stage.chunk) : 1));
  return starts;
}

Rows rows_of(const Case& c, Tensor tensor) {
  const TensorEntry& entry = entry_of(tensor);
  const TensorSizes sizes = sizes_of(c);
  const int64_t heads = size_of_axis(sizes, entry.axes[1]), width = size_of_axis(sizes, entry.axes[2]);
  return {.dtype = dtype_of(c, entry.type),
          .heads = heads,
          .width = width,
          .strides = shares_a_row(c, tensor) ? packed_strides(c, width) : strides_of(c, heads, width)};
}

int64_t extent(const Case& c, const Rows& rows) {
  const int64_t tokens = c.batched ? c.lengths[0] : c.num_tokens();
  if (tokens == 0) return 0;
  const int64_t sequences = c.batched ? c.num_seqs() : 1;
  const dr_layout& s = rows.strides;
  return (sequences - 1) * s.sequence + (tokens - 1) * s.token + (rows.heads - 1) * s.head + rows.width;
}

void promise_alignment(dr_problem& problem, int32_t bytes) {
  for (const TensorLayout& of : kTensorLayouts) (problem.*of.layout).alignment_bytes = bytes;
  for (const TensorPool& of : kTensorPools) (problem.*of.state).alignment_bytes = bytes;
}

Request::Request(const Case& c) : case_(c) {
  dr_problem_init(&problem);
  problem.rule = c.rule;
  problem.op = c.op;
  problem.num_seqs = c.num_seqs();
  problem.num_tokens = c.num_tokens();
  if (c.batched) {
    problem.seq_len = c.lengths[0];
  } else {
    offsets64_ = c.offsets();
    offsets32_.assign(offsets64_.begin(), offsets64_.end());
    problem.seq_offsets_dtype = c.offsets_dtype;
    if (c.lengths_at == LengthsAt::kPlan) problem.seq_offsets = seq_offsets();
    if (c.bound_seqs > 0) {
      problem.num_tokens = c.bound_tokens;
      problem.num_seqs = c.bound_seqs;
    }
  }
  problem.heads_qk = c.heads_qk;
  problem.heads_v = c.heads_v;
  problem.dk = c.dk;
  problem.dv = c.dv;
  problem.dtype = c.dtype;
  problem.dtype_o = c.dtype_o;
  problem.dtype_gate = c.dtype_gate;
  problem.dtype_beta = c.dtype_beta;
  problem.dtype_a_log = c.dtype_a_log;
  problem.dtype_dt_bias = c.dtype_dt_bias;
  problem.gate_form = c.gate_form;
  problem.beta_form = c.beta_form();
  problem.l2norm = c.l2norm ? 1 : 0;
  if (c.is_stage()) {
    chunks = chunks_of(c.stage);
    problem.chunks = &chunks;
  }
  problem.scale_given = c.scale.has_value() ? 1 : 0;
  problem.scale = static_cast<float>(c.scale.value_or(0.0));
  if (c.gate_form == DR_GATE_RAW_BOUNDED) problem.lower_bound = static_cast<float>(c.lower_bound);
  problem.gate_floor = static_cast<float>(c.gate_floor);
  for (const TensorLayout& of : kTensorLayouts) {
    const bool stated = c.strides == Strides::kPacked ? shares_a_row(c, of.tensor) : c.strides != Strides::kContiguous;
    if (stated) problem.*of.layout = rows_of(c, of.tensor).strides;
  }
  const int64_t num_checkpoints = count_checkpoints(c);
  problem.initial = state_of(c, c.initial, c.num_seqs());
  problem.final = state_of(c, c.final, c.num_seqs());
  problem.initial_mask = c.mask ? 1 : 0;
  problem.checkpoints = c.checkpoints;
  problem.checkpoint_every = c.checkpoint_every;
  problem.checkpoint = state_of(c, c.checkpoint, num_checkpoints);
  if (c.alignment != 0) {
    promise_alignment(problem, c.alignment);
  } else if (c.strides == Strides::kPacked) {
    promise_alignment(problem, packed_alignment(c));
  }
  promise_alignments(problem, c.alignments);
  // The plan does not know how many checkpoints a list or late lengths give, so the pool size must be stated.
  if (problem.checkpoint.use != DR_STATE_NONE) problem.checkpoint.num_slots = pool_size(c.checkpoint, num_checkpoints);

  dr_options_init(&options);
  options.segments = c.segments;
  options.segment_value = c.segment_value;
  const auto text_or_null = [](const std::string& text) { return text.empty() ? nullptr : text.c_str(); };
  options.backend = text_or_null(case_.backend);
  options.isa = text_or_null(case_.isa);
  options.variant = text_or_null(case_.variant);
  options.math = case_.math;
  options.policy = text_or_null(case_.policy);
  options.threads = c.threads;
  options.invariant = c.invariant ? 1 : 0;
  options.carry = c.carry;
  options.carry_log_decay = static_cast<float>(c.carry_log_decay);
  if (!c.device.empty()) {
    dr_device_init(&device_);
    if (dr_device_find(case_.device.c_str(), &device_) != DR_SUCCESS)
      throw CaseError("device: " + std::string(dr_last_error()));
    options.device = &device_;
  } else if (case_.facts != nullptr) {
    options.device = &case_.facts->device;
    options.costs = case_.facts->costs.data();
    options.num_costs = static_cast<int32_t>(case_.facts->costs.size());
  } else if (c.on_gpu()) {
    // A CUDA backend means the GPU of this machine. If there is none, the library reports it.
    dr_device_init(&device_);
    if (dr_device_find("cuda:0", &device_) == DR_SUCCESS) options.device = &device_;
  }
}

const void* Request::seq_offsets() const {
  if (case_.batched) return nullptr;
  return case_.offsets_dtype == DR_INT64 ? static_cast<const void*>(offsets64_.data()) : offsets32_.data();
}

int64_t pool_size(const State& state, int64_t entries) {
  if (state.use != DR_STATE_SLOTS) return entries;
  if (state.pool != 0) return state.pool;
  // Three unused slots, so that a stray write becomes visible.
  return std::max(entries + 3, state.null_index.value_or(-1) + 1) + (state.null_index ? 1 : 0);
}

std::vector<int64_t> slot_indices(const State& state, int64_t entries, uint64_t seed, uint64_t salt) {
  std::vector<int64_t> free;
  for (int64_t slot = 0; slot < pool_size(state, entries); ++slot)
    if (!state.null_index || slot != *state.null_index) free.push_back(slot);
  for (size_t i = free.size(); i > 1; --i) {
    const uint64_t random = mix(mix(seed) ^ mix(salt * 0x10001u + 17) ^ i);
    std::swap(free[i - 1], free[static_cast<size_t>(random % i)]);
  }
  std::vector<int64_t> indices;
  size_t next = 0;
  for (int64_t n = 0; n < entries; ++n) {
    if (state.null_index && n % 4 == 1) {
      indices.push_back(*state.null_index);
    } else if (state.negative && n % 4 == 3) {
      indices.push_back(-1);
    } else {
      if (next == free.size())
        throw CaseError("pool: expected a slot for each of " + std::to_string(entries) + " entries, found '" +
                        std::to_string(state.pool) + "'");
      indices.push_back(free[next++]);
    }
  }
  return indices;
}

std::vector<uint8_t> initial_mask(const Case& c) {
  std::vector<uint8_t> mask;
  for (int64_t n = 0; n < c.num_seqs(); ++n) mask.push_back(n % 3 == 1 ? 0 : 1);
  return mask;
}

std::vector<std::vector<int64_t>> checkpoint_positions(const Case& c) {
  std::vector<std::vector<int64_t>> all;
  for (const int64_t length : c.lengths) {
    std::vector<int64_t> positions;
    if (c.checkpoints == DR_CHECKPOINTS_EVERY)
      for (int64_t t = c.checkpoint_every; t <= length; t += c.checkpoint_every) positions.push_back(t);
    if (c.checkpoints == DR_CHECKPOINTS_CHUNKS)
      for (int64_t t = 0; t < length; t += kCheckpointChunk) positions.push_back(t);
    if (c.checkpoints == DR_CHECKPOINTS_LIST)
      for (const int64_t t : c.checkpoint_list)
        if (t <= length) positions.push_back(t);
    all.push_back(std::move(positions));
  }
  return all;
}

}  // namespace deltarelay::cases
