#include "deltarelay/own_data.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "check/element.h"
#include "deltarelay/commands.h"

namespace deltarelay::command {
namespace {

using arrays::Array;
using arrays::shape_text;

constexpr int64_t kMostHeads = 1 << 16;
constexpr int64_t kMostWidth = 1 << 12;

[[noreturn]] void fail(const std::string& what, const std::string& expected, const std::string& found) {
  throw UsageError(what + ": expected " + expected + ", found " + found);
}

// Words that contradict the file or describe what to draw.
const std::set<std::string> kFromFile = {
    "hqk",     "hv",   "dk",   "dv",   "seqs", "batch", "tail", "offsets",     "bound",           "g", "b", "a-log",
    "dt-bias", "fp32", "bf16", "fp16", "keys", "seed",  "mask", "checkpoints", "checkpoint-state"};

std::string joined(const std::vector<std::string>& names, const char* between) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : between) + name;
  return text;
}

cases::Case parse_words(const std::string& rule, const std::vector<std::string>& words) {
  std::string line = rule + " seqs=1";
  for (const std::string& word : words) {
    if (kFromFile.count(word.substr(0, word.find('='))) > 0)
      fail("case", "words on gates, beta, states and how it is to be done", "'" + word + "', which the file says");
    line += " " + word;
  }
  cases::Case c = cases::parse(line);
  for (const cases::State* state : {&c.initial, &c.final})
    if (state->use == DR_STATE_SLOTS) fail("case", "states in rows", "slots");
  if (c.op != DR_FORWARD) fail("case", "forward", "another operation");
  return c;
}

// Checks a shape; `axes` names its axes: "[T, HQK, DK]".
void require_shape(const Array& array, const std::vector<int64_t>& shape, const char* axes) {
  if (array.shape != shape) fail(array.name, std::string(axes) + " = " + shape_text(shape), shape_text(array.shape));
}

}  // namespace

const Array* OwnData::find(const std::vector<std::string>& names) {
  const Array* found = nullptr;
  for (const Array& array : file_.arrays()) {
    if (std::find(names.begin(), names.end(), array.name) == names.end()) continue;
    if (found != nullptr) fail(found->name, "one array of this meaning", "'" + array.name + "' too");
    found = &array;
    used_.push_back(&array);
  }
  return found;
}

const Array& OwnData::require(const std::vector<std::string>& names) {
  const Array* array = find(names);
  if (array != nullptr) return *array;
  std::vector<std::string> there;
  for (const Array& other : file_.arrays()) there.push_back(other.name);
  fail(joined(names, " or "), "an array of this name in the file", there.empty() ? "none at all" : joined(there, ", "));
}

int32_t OwnData::float_type(const Array& array) const {
  if (array.dtype == DR_FP32 || array.dtype == DR_BF16 || array.dtype == DR_FP16) return array.dtype;
  if (array.dtype == arrays::kUint16 && bf16_) return DR_BF16;
  if (array.dtype == arrays::kUint16)
    fail(array.name, "fp32 or fp16, or with --bf16 bits of bf16 in 16-bit words", array.type);
  fail(array.name, "fp32, bf16 or fp16", array.type);
}

OwnData::OwnData(const arrays::File& file, const std::string& rule, const std::vector<std::string>& words, bool bf16)
    : file_(file), bf16_(bf16), case_(parse_words(rule, words)) {
  read_sizes();
  read_parameters();
  const bool final_asked = case_.final.use != DR_STATE_NONE;
  read_states(final_asked);
  for (const Array& array : file_.arrays())
    if (std::find(used_.begin(), used_.end(), &array) == used_.end()) unused_.push_back(array.name);
}

void OwnData::read_sizes() {
  q_ = &require({"q"}), k_ = &require({"k"}), v_ = &require({"v"});
  g_ = &require({"g"}), beta_ = &require({"beta"});
  const Array* offsets = find({"seq_offsets", "cu_seqlens"});
  const bool head_first = case_.strides == cases::Strides::kHeadFirst;
  const char* const axes = head_first ? "[HQK, T, DK] or [B, HQK, T, DK]" : "[T, HQK, DK] or [B, T, HQK, DK]";
  const size_t rank = q_->shape.size();
  if (rank != 3 && rank != 4) fail("q", axes, shape_text(q_->shape));
  const int64_t batch = rank == 4 ? q_->shape[0] : 1;
  const int64_t tokens = q_->shape[rank - (head_first ? 2 : 3)];
  const int64_t heads_qk = q_->shape[rank - (head_first ? 3 : 2)], dk = q_->shape[rank - 1];
  if (v_->shape.size() != rank) fail("v", "as many axes as q, " + std::to_string(rank), shape_text(v_->shape));
  const int64_t heads_v = v_->shape[rank - (head_first ? 3 : 2)], dv = v_->shape[rank - 1];
  for (const auto& [array, heads, width] : {std::tuple{q_, heads_qk, dk}, std::tuple{v_, heads_v, dv}}) {
    if (heads < 1 || heads > kMostHeads) fail(array->name, "1 to 65536 heads", shape_text(array->shape));
    if (width < 1 || width > kMostWidth) fail(array->name, "a width of 1 to 4096", shape_text(array->shape));
  }
  case_.heads_qk = static_cast<int32_t>(heads_qk), case_.heads_v = static_cast<int32_t>(heads_v);
  case_.dk = static_cast<int32_t>(dk), case_.dv = static_cast<int32_t>(dv);

  const auto shape = [&](int64_t heads, int64_t width) {
    std::vector<int64_t> all;
    if (rank == 4) all.push_back(batch);
    all.push_back(head_first ? heads : tokens);
    all.push_back(head_first ? tokens : heads);
    if (width > 0) all.push_back(width);
    return all;
  };
  const bool kda = case_.rule == DR_KDA;
  require_shape(*k_, shape(heads_qk, dk), "the shape of q");
  require_shape(*v_, shape(heads_v, dv), "the tokens of q, HV heads, DV wide");
  require_shape(*g_, shape(heads_v, kda ? dk : 0),
                kda ? "a gate for each token, value head and key channel" : "a gate for each token and value head");
  require_shape(*beta_, shape(heads_v, 0), "one for each token and value head");
  case_.dtype = float_type(*q_);
  for (const Array* array : {k_, v_})
    if (float_type(*array) != case_.dtype) fail(array->name, "the type of q, " + q_->type, array->type);
  const auto unless_as_q = [this](int32_t dtype) { return dtype == case_.dtype ? 0 : dtype; };
  case_.dtype_gate = unless_as_q(float_type(*g_));
  case_.dtype_beta = unless_as_q(float_type(*beta_));
  if (offsets != nullptr && batch != 1)
    fail(offsets->name, "tokens in one row, [T, HQK, DK] or [1, T, HQK, DK]", "q " + shape_text(q_->shape));
  rows_ = tokens;
  if (offsets == nullptr && rank == 4) {
    case_.batched = true;
    case_.lengths.assign(static_cast<size_t>(batch), tokens);
  } else {
    read_lengths(tokens, offsets);
  }
  offsets_ = case_.offsets();
}

void OwnData::read_lengths(int64_t tokens, const Array* offsets) {
  case_.batched = false;
  case_.lengths = {tokens};
  case_.tail = 0;
  if (offsets == nullptr) return;
  const int32_t dtype = offsets->dtype;
  if (dtype != DR_INT32 && dtype != DR_INT64) fail(offsets->name, "int32 or int64", offsets->type);
  if (offsets->shape.size() != 1 || offsets->shape[0] < 2)
    fail(offsets->name, "[N + 1] with at least two entries", shape_text(offsets->shape));
  case_.offsets_dtype = dtype;
  case_.lengths.clear();
  int64_t before = 0;
  for (int64_t i = 0; i < offsets->shape[0]; ++i) {
    const auto at = static_cast<size_t>(i);
    const int64_t offset = dtype == DR_INT32 ? static_cast<int32_t>(arrays::number_at<uint32_t>(offsets->data, 4 * at))
                                             : static_cast<int64_t>(arrays::number_at<uint64_t>(offsets->data, 8 * at));
    if (offset < before || offset > tokens || (i == 0 && offset != 0))
      fail(offsets->name, "offsets that begin with 0, never fall and end at " + std::to_string(tokens) + " or before",
           std::to_string(offset) + " at " + std::to_string(i));
    if (i > 0) case_.lengths.push_back(offset - before);
    before = offset;
  }
  case_.tail = tokens - before;
}

void OwnData::read_parameters() {
  a_log_ = find({"a_log", "A_log"});
  dt_bias_ = find({"dt_bias"});
  const int64_t gates = case_.rule == DR_KDA ? case_.dk : 1;
  const auto read = [&](const Array* array, const char* name, bool wanted, int64_t count, int32_t& dtype) {
    const std::string word = std::string(name) == "a_log" ? "no-a-log" : "no-dt-bias";
    if (array == nullptr) {
      if (wanted) fail(name, "an array of this name with a raw gate, or the word " + word, "none");
      return;
    }
    if (!wanted)
      fail(name, case_.raw_gate() ? "no array with " + word : "gate=softplus or gate=bounded:B beside it",
           case_.raw_gate() ? "one" : "a gate that takes none");
    if (arrays::count_of(array->shape) != count)
      fail(name, std::to_string(count) + " elements", shape_text(array->shape));
    dtype = float_type(*array);
  };
  const bool raw = case_.raw_gate();
  read(a_log_, "a_log", raw && case_.a_log, case_.heads_v, case_.dtype_a_log);
  read(dt_bias_, "dt_bias", raw && case_.dt_bias, case_.heads_v * gates, case_.dtype_dt_bias);
}

void OwnData::read_states(bool final_asked) {
  initial_ = find({"initial", "initial_state"});
  if (initial_ == nullptr && case_.initial.use != DR_STATE_NONE) require({"initial", "initial_state"});
  if (initial_ != nullptr) {
    case_.initial.use = DR_STATE_ROWS;
    case_.initial.dtype = float_type(*initial_);
    const bool by_value = case_.initial.layout == DR_STATE_VALUE_MAJOR;
    std::vector<int64_t> shape = {case_.num_seqs(), case_.heads_v, by_value ? case_.dv : case_.dk,
                                  by_value ? case_.dk : case_.dv};
    require_shape(*initial_, shape, by_value ? "[N, HV, DV, DK] (init=key: [N, HV, DK, DV])" : "[N, HV, DK, DV]");
    if (case_.in_place) case_.final = case_.initial;
  }
  if (final_asked) return;
  case_.final.use = DR_STATE_ROWS;
  case_.final.layout = case_.initial.layout;
}

int64_t OwnData::row_of(int64_t sequence, int64_t t, int64_t head, int64_t heads) const {
  const int64_t batch = case_.batched ? sequence : 0;
  const int64_t token = case_.batched ? t : offsets_[static_cast<size_t>(sequence)] + t;
  return case_.strides == cases::Strides::kHeadFirst ? (batch * heads + head) * rows_ + token
                                                     : (batch * rows_ + token) * heads + head;
}

namespace {

// Calls body for every row of a tensor of tokens: sequence, token in the sequence, head.
template <class Body>
void for_each_row(const cases::Case& c, int64_t heads, const Body& body) {
  for (int64_t n = 0; n < c.num_seqs(); ++n)
    for (int64_t t = 0; t < c.lengths[static_cast<size_t>(n)]; ++t)
      for (int64_t head = 0; head < heads; ++head) body(n, t, head);
}

}  // namespace

void OwnData::copy_rows(const Array& array, const check::TokenTensor& tensor) const {
  const int64_t element = check::bytes_of(tensor.dtype), bytes = tensor.width * element;
  for_each_row(case_, tensor.heads, [&](int64_t n, int64_t t, int64_t head) {
    std::memcpy(tensor.data + tensor.at(n, t, head, 0) * element,
                array.data.data() + row_of(n, t, head, tensor.heads) * bytes, static_cast<size_t>(bytes));
  });
}

void OwnData::fill(check::TensorSet& tensors) const {
  copy_rows(*q_, tensors.q());
  copy_rows(*k_, tensors.k());
  copy_rows(*v_, tensors.v());
  copy_rows(*g_, tensors.g());
  copy_rows(*beta_, tensors.beta());
  if (a_log_ != nullptr) std::memcpy(tensors.a_log(), a_log_->data.data(), a_log_->data.size());
  if (dt_bias_ != nullptr) std::memcpy(tensors.dt_bias(), dt_bias_->data.data(), dt_bias_->data.size());
  if (initial_ == nullptr) return;
  const check::StateTensor& states = tensors.initial();
  const int64_t element = check::bytes_of(states.state.dtype), bytes = case_.heads_v * states.stride_head * element;
  for (int64_t n = 0; n < case_.num_seqs(); ++n)
    std::memcpy(states.data + states.at(n, 0, 0, 0) * element, initial_->data.data() + n * bytes,
                static_cast<size_t>(bytes));
}

std::vector<Array> OwnData::results(check::TensorSet& tensors, std::vector<std::vector<std::byte>>& memory) const {
  std::vector<Array> all;
  const auto add = [&](const char* name, int32_t dtype, std::vector<int64_t> shape) -> std::byte* {
    const int64_t bytes = arrays::count_of(shape) * check::bytes_of(dtype);
    memory.emplace_back(static_cast<size_t>(bytes));  // zeros, like rows after the last offset
    all.push_back({name, dtype, cases::dtype_name(dtype), std::move(shape), memory.back()});
    return memory.back().data();
  };
  const check::TokenTensor& o = tensors.o();
  const int64_t element = check::bytes_of(o.dtype), bytes = o.width * element;
  std::byte* out = add("o", o.dtype, v_->shape);
  for_each_row(case_, o.heads, [&](int64_t n, int64_t t, int64_t head) {
    std::memcpy(out + row_of(n, t, head, o.heads) * bytes, o.data + o.at(n, t, head, 0) * element,
                static_cast<size_t>(bytes));
  });
  const check::StateTensor& states = tensors.final_state();
  const bool by_value = states.state.layout == DR_STATE_VALUE_MAJOR;
  out = add("final", states.state.dtype,
            {case_.num_seqs(), case_.heads_v, by_value ? case_.dv : case_.dk, by_value ? case_.dk : case_.dv});
  const int64_t state = case_.heads_v * states.stride_head * check::bytes_of(states.state.dtype);
  for (int64_t n = 0; n < case_.num_seqs(); ++n)
    std::memcpy(out + n * state, states.data + states.at(n, 0, 0, 0) * check::bytes_of(states.state.dtype),
                static_cast<size_t>(state));
  return all;
}

}  // namespace deltarelay::command
