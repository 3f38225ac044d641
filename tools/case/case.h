// A case: one line that gives a problem, its values and its options. Tests, benchmarks, the command and bug reports
// share this grammar (docs/cases.md). A failure prints its line, and the line reproduces the failure.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "case/stages.h"
#include "deltarelay/tensor_list.hpp"

namespace deltarelay::cases {

// Thrown for a line that cannot be parsed. what() names the word, what was expected and what was found.
class CaseError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Values of the log-decay, before conversion to the gate's form (log: unchanged, linear: its exp). Raw forms draw a raw
// gate from a normal distribution; of the other profiles they accept only kInit and kAtBound (bounded).
enum class GateProfile {
  kRange,    // uniform in [gate_low, gate_high]; raw forms: normal raw values
  kZero,     // all 0: nothing is forgotten
  kExtreme,  // 90 % at -1000, the rest uniform in [-1, 0]
  kInf,      // 10 % at -inf (linear: 0), the rest uniform in [-1, 0]
  kMean,     // exponential with mean gate_low (< 0; 0 means all zero): strong and weak decays side by side
  kAtBound,  // bounded: raw values so large that every log-decay equals the bound
  kInit,     // a freshly initialised layer: see docs/cases.md
  kMixed     // heads 2, 5 and 8 of every ten at -1e-4, the others at -1
};

enum class BetaProfile {
  kValue,  // form value, uniform in [0, 1)
  kOne,    // form value, all 1
  kZero,   // form value, all 0
  kNear2,  // form value, uniform in [1.9, 2)
  kLogit,  // form logit, normal
  kTwice   // form 2 * sigmoid, normal
};

enum class KeyProfile {
  kNormal,      // normal, divided by sqrt(DK) (so that |k| is near 1) unless the call applies l2norm
  kCorrelated,  // uniform in [0, 1), normalised to length 1: every two keys point almost the same way
  kUneven       // normal, with lengths that differ by up to 2^20; needs l2norm
};

enum class Strides {
  kContiguous,
  kPacked,    // q, k, v are views of one [T, 2 HQK DK + HV DV] tensor
  kPadded,    // every token row of every tensor has 8 extra elements
  kHeadFirst  // [H, T, D] (batched: [B, H, T, D])
};

enum class LengthsAt { kPlan, kExecute };  // when the library learns the lengths

struct State {
  int32_t use = DR_STATE_NONE;
  int32_t layout = DR_STATE_VALUE_MAJOR;
  int32_t dtype = DR_FP32;
  // For slots. Indices are a seeded permutation of the pool without the null slot.
  int32_t index_dtype = DR_INT32;
  int64_t pool = 0;                   // slots; 0: as many as needed, plus the null slot
  std::optional<int64_t> null_index;  // entries n with n % 4 == 1 name this slot
  bool negative = false;              // entries n with n % 4 == 3 are -1
  int64_t pad = 0;                    // rows and slots: extra elements between slots
  bool operator==(const State&) const = default;
};

// A device as a caller describes it, with its stage costs.
struct DeviceFacts {
  dr_device device;
  std::vector<dr_costs> costs;
};

// Promised alignment in bytes of single tensors (token tensors and pools); 0: as of the others.
struct Alignments {
  int32_t& operator[](Tensor tensor) { return bytes[static_cast<size_t>(tensor)]; }
  int32_t operator[](Tensor tensor) const { return bytes[static_cast<size_t>(tensor)]; }
  bool operator==(const Alignments&) const = default;

  std::array<int32_t, kNumTensors> bytes{};
};

// What a stage is given and writes (dr_chunks). Of other operations every field has its default.
struct Stage {
  int32_t chunk = 0;          // tokens; carry: 0
  int32_t given = 0;          // DR_W, ...
  int32_t wanted = 0;         // DR_STATES, ...
  int32_t dtype = 0;          // of intermediates; 0: as q, k, v
  int32_t dtype_states = 0;   // 0: as intermediates; carry: fp32
  int32_t states_layout = 0;  // DR_STATE_*; 0: states are neither given nor wanted
  bool sums_base_2 = false;
  bool operator==(const Stage&) const = default;
};

struct Case {
  std::string name;  // label before the line; no blanks; part of equality

  int32_t rule = DR_KDA;
  int32_t op = DR_FORWARD;
  int32_t dtype = DR_FP32;
  int32_t dtype_o = 0;  // 0: as dtype
  int32_t dtype_gate = 0;
  int32_t dtype_beta = 0;
  int32_t dtype_a_log = DR_FP32;
  int32_t dtype_dt_bias = DR_FP32;
  int32_t heads_qk = 1;
  int32_t heads_v = 1;
  int32_t dk = 128;
  int32_t dv = 128;

  Stage stage;

  bool batched = false;          // all lengths are equal
  std::vector<int64_t> lengths;  // one per sequence; may be empty when packed
  int64_t tail = 0;              // packed: rows after the last offset
  int32_t offsets_dtype = DR_INT32;
  LengthsAt lengths_at = LengthsAt::kPlan;
  // Lengths at execution: tokens and sequences of the plan; 0: those of the case.
  int64_t bound_tokens = 0, bound_seqs = 0;

  int32_t gate_form = DR_GATE_LOG;
  GateProfile gate_profile = GateProfile::kRange;
  double gate_low = -5.0;     // kRange: lower end; kMean: the mean
  double gate_high = 0.0;     // kRange: upper end
  double gate_spread = 1.0;   // kInit: standard deviation of the raw values
  double lower_bound = -5.0;  // DR_GATE_RAW_BOUNDED
  double gate_floor = 0.0;    // 0: none
  bool a_log = true;          // raw forms: given (each head another one) or NULL
  bool dt_bias = true;        // raw forms: given or NULL
  BetaProfile beta = BetaProfile::kValue;
  KeyProfile keys = KeyProfile::kNormal;
  bool l2norm = false;
  std::optional<double> scale;  // absent: DK^-1/2
  Strides strides = Strides::kContiguous;
  int32_t alignment = 0;  // promised bytes of every tensor; 0: 16, or what packed views leave of it
  Alignments alignments;  // of one of them

  State initial;
  State final;            // equals initial when in_place
  bool in_place = false;  // final states overwrite initial ones
  bool mask = false;      // has_initial given; off for sequences n with n % 3 == 1
  int32_t checkpoints = DR_CHECKPOINTS_NONE;
  int64_t checkpoint_every = 0;
  std::vector<int64_t> checkpoint_list;  // for every sequence, those within its length
  State checkpoint;

  std::string backend;  // empty: the library's choice
  std::string isa;      // instruction set of the cpu backend
  std::string variant;  // a backend's way to do it
  int32_t math = DR_MATH_DEFAULT;
  std::string policy;
  std::string device;  // "h200" is a table of facts to plan for, "cuda:0" the first GPU of this machine
  int32_t segments = DR_SEGMENTS_AUTO;
  int64_t segment_value = 0;
  int32_t threads = 0;
  bool invariant = false;
  int32_t carry = DR_CARRY_EXACT;
  double carry_log_decay = 0;  // truncated; 0: the library's default
  uint64_t seed = 1;
  // Facts to plan with where `device` is empty; nullptr: the library's. No part of the line: a file has them.
  std::shared_ptr<const DeviceFacts> facts;

  bool operator==(const Case&) const = default;

  int32_t beta_form() const;  // DR_BETA_*
  int32_t output_dtype() const { return dtype_o != 0 ? dtype_o : dtype; }
  int32_t gate_dtype() const { return dtype_gate != 0 ? dtype_gate : dtype; }
  int32_t beta_dtype() const { return dtype_beta != 0 ? dtype_beta : dtype; }
  bool is_stage() const { return cases::is_stage(op); }
  bool gives(int32_t bits) const { return (stage.given & bits) == bits; }
  bool wants(int32_t bits) const { return (stage.wanted & bits) != 0; }
  int32_t intermediate_dtype() const { return stage.dtype != 0 ? stage.dtype : dtype; }
  int32_t states_dtype() const;
  bool reads_rows(Tensor tensor) const { return cases::reads_rows(op, stage.given, stage.wanted, tensor); }
  bool writes_o() const { return cases::writes_o(op); }
  bool raw_gate() const { return gate_form == DR_GATE_RAW_SOFTPLUS || gate_form == DR_GATE_RAW_BOUNDED; }
  int64_t num_seqs() const { return static_cast<int64_t>(lengths.size()); }
  int64_t tokens() const;      // sum of all lengths
  int64_t num_tokens() const;  // rows of the tensors: tokens() + tail
  int64_t token_heads() const { return tokens() * heads_v; }
  std::vector<int64_t> offsets() const;  // num_seqs + 1 entries
  // Does the case run in GPU memory? True if it names a GPU of this machine (device=cuda:0), or a CUDA backend and no
  // device.
  bool on_gpu() const;
  // Does the case need the wider column of the tolerance table? True for gates at or near 0 together with correlated
  // keys, beta near 2 or, for KDA in 16 bits, keys of few channels.
  bool hostile() const;
  // Is the case between typical and hostile, for bf16 (figures in docs/numerics.md)? True for correlated keys and beta
  // near 2 together, with any gates; and for KDA with gates at or near 0, beta 1 and keys of up to 64 channels.
  bool strained() const;
};

// Parses one line. Throws CaseError.
Case parse(std::string_view line);
// Returns the canonical line: parse(print(c)) == c for every c that parse can return.
std::string print(const Case& c);

// One word of the grammar for help, from the tables that parse() reads: "hv=N" and its meaning.
struct GrammarWord {
  std::string word;
  std::string meaning;
};
std::vector<GrammarWord> grammar();

// A text as errors show it: quoted, bytes that are not printable ASCII as \x1b, truncated after 60 characters.
std::string in_quotes(std::string_view text);

// A case line without its name, for titles.
std::string print_without_name(const Case& c);

// Reads the lines of a file, without blank lines and comments (#). Throws CaseError with file and line number.
std::vector<Case> read_file(const std::filesystem::path& path);
// Reads arguments of the command, in order: files of cases, quoted case lines, and bare words (each rule or `name:`
// starts a new case). Throws CaseError.
std::vector<Case> read_arguments(const std::vector<std::string>& arguments);

// Returns the case with some words replaced or added, e.g. "segments=3 threads=1", or with a rule and an operation in
// front, "gdn state-pass given=w,u". Throws CaseError.
Case with_words(const Case& c, std::string_view words);

// Draws a valid case from everything the grammar can express, with tokens x HV x DK x DV below `cost`. A seed gives the
// same case on every machine. The case names `backend` and avoids what that backend is known to decline.
Case random_case(uint64_t seed, int64_t cost, const std::string& backend = {});
// The same for a stage: the case of that seed, turned into one of its stages.
Case random_stage(uint64_t seed, int64_t cost, const std::string& backend = {});
// Can the tolerance table judge results of this case? (random.cpp has the reasons.)
bool is_measurable(const Case& c);
// The case of `draw(seed)` with some words replaced or added, as with_words. Drawn words that contradict the given
// ones, or with which the result could not be judged, are left out. If the sizes do, another case is drawn, by
// seed + 2^32, ... Throws CaseError if none can have these words.
Case drawn_with_words(const std::function<Case(uint64_t seed)>& draw, uint64_t seed, std::string_view words);

// Sets this promised alignment for every tensor and pool of a problem.
void promise_alignment(dr_problem& problem, int32_t bytes);

// The request that a case makes of the library. Its structures point into this object, so it must not be moved.
class Request {
 public:
  explicit Request(const Case& c);  // throws CaseError for an unknown device
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  dr_problem problem;
  dr_options options;
  dr_chunks chunks;  // of a stage

  const void* seq_offsets() const;  // in the type of the case, num_seqs + 1 entries; NULL if batched

 private:
  Case case_;  // owns the strings that the options point to
  dr_device device_;
  std::vector<int32_t> offsets32_;
  std::vector<int64_t> offsets64_;
};

// Strides::kPacked: elements per token row of the shared tensor, and the offsets of k and v in it (q is at 0).
struct PackedRow {
  int64_t width;
  int64_t k;
  int64_t v;
};
PackedRow packed_row(const Case& c);

// A tensor of tokens of the case, [T, heads, width] (GDN gates and beta: width 1). All strides are resolved; a Request
// leaves contiguous ones at 0.
struct Rows {
  int32_t dtype;
  int64_t heads;
  int64_t width;
  dr_layout strides;
};
Rows rows_of(const Case& c, Tensor tensor);

// Type of the elements of an intermediate.
int32_t dtype_of_intermediate(const Case& c, const TensorEntry& entry);
// For every sequence the first row of an intermediate whose rows belong to sequences, and at the end all rows that do:
// tokens, chunks, or one summary a sequence. Rows of a tail follow.
std::vector<int64_t> intermediate_rows(const Case& c, const TensorEntry& entry);

// Elements from the first to past the last. A kPacked view of q, k or v ends at the end of its own last row.
int64_t extent(const Case& c, const Rows& rows);

// Sizes of the axes of a call with `checkpoint_rows` checkpoints.
TensorSizes sizes_of(const Case& c, int64_t checkpoint_rows = 0);

// Number of states in the pool of `state` for `entries` rows (sequences or checkpoints).
int64_t pool_size(const State& state, int64_t entries);
// DR_STATE_SLOTS: the slot of every entry, by the permutation described at State. `salt` distinguishes the pools of a
// case.
std::vector<int64_t> slot_indices(const State& state, int64_t entries, uint64_t seed, uint64_t salt);
// The has_initial mask of all sequences.
std::vector<uint8_t> initial_mask(const Case& c);
// For every sequence, the positions after which a checkpoint is kept (kChunks: the starts of chunks).
std::vector<std::vector<int64_t>> checkpoint_positions(const Case& c);

const char* dtype_name(int32_t dtype);

}  // namespace deltarelay::cases
