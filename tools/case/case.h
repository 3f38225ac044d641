// A case: one line that says what is asked, on what values, and how it is to be done. Tests, benchmarks, the command and
// bug reports share this grammar (docs/cases.md); a failure prints its line, and the line brings it back.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "deltarelay/tensor_list.hpp"

namespace deltarelay::cases {

// A line that does not read: what() names the word, what was expected and what was found.
class CaseError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Values of the log-decay before it is put into the gate's form (log: as it is, linear: exp of it). Raw forms draw a raw
// gate from a normal distribution; of the other profiles they know kInit and kAtBound (bounded) only.
enum class GateProfile {
  kRange,    // uniform in [gate_low, gate_high]; raw forms: normal raw values
  kZero,     // all 0: nothing is forgotten
  kExtreme,  // 90 % at -1000, the rest uniform in [-1, 0]
  kInf,      // 10 % at -inf (linear: 0), the rest uniform in [-1, 0]
  kMean,     // exponential with mean gate_low (< 0; 0 is all zero): dense and thin decays side by side
  kAtBound,  // bounded: raw values so large that every log-decay is the bound
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
  kNormal,      // normal, divided by sqrt(DK) (so that |k| is near 1), unless l2norm does it in the call
  kCorrelated,  // uniform in [0, 1), normalised to length 1: every pair of keys points almost the same way
  kUneven       // normal, of lengths that differ by up to 2^20: only l2norm makes them keys
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
  // Slots only. Indices are a seeded permutation of the pool that leaves out the null slot.
  int32_t index_dtype = DR_INT32;
  int64_t pool = 0;                   // slots; 0: as many as needed, plus the null slot
  std::optional<int64_t> null_index;  // entries n with n % 4 == 1 name this slot
  bool negative = false;              // entries n with n % 4 == 3 are -1
  int64_t pad = 0;                    // rows and slots: extra elements between slots
  bool operator==(const State&) const = default;
};

// A device as a caller describes it, with the stage costs that plans for it are made with.
struct DeviceFacts {
  dr_device device;
  std::vector<dr_costs> costs;
};

// Promised bytes of single tensors (token tensors and pools); 0: as of the others.
struct Alignments {
  int32_t& operator[](Tensor tensor) { return bytes[static_cast<size_t>(tensor)]; }
  int32_t operator[](Tensor tensor) const { return bytes[static_cast<size_t>(tensor)]; }
  bool operator==(const Alignments&) const = default;

  std::array<int32_t, kNumTensors> bytes{};
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

  bool batched = false;          // all lengths are equal
  std::vector<int64_t> lengths;  // one per sequence; may be empty when packed
  int64_t tail = 0;              // packed: rows after the last offset
  int32_t offsets_dtype = DR_INT32;
  LengthsAt lengths_at = LengthsAt::kPlan;
  // Lengths at execution: tokens and sequences that the plan is made for; 0: as many as there are.
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
  double carry_log_decay = 0;  // truncated; 0: the library's
  uint64_t seed = 1;
  // Facts to plan with where `device` is empty; nullptr: the library's. No part of the line: a file has them.
  std::shared_ptr<const DeviceFacts> facts;

  bool operator==(const Case&) const = default;

  int32_t beta_form() const;  // DR_BETA_*
  int32_t output_dtype() const { return dtype_o != 0 ? dtype_o : dtype; }
  int32_t gate_dtype() const { return dtype_gate != 0 ? dtype_gate : dtype; }
  int32_t beta_dtype() const { return dtype_beta != 0 ? dtype_beta : dtype; }
  bool raw_gate() const { return gate_form == DR_GATE_RAW_SOFTPLUS || gate_form == DR_GATE_RAW_BOUNDED; }
  int64_t num_seqs() const { return static_cast<int64_t>(lengths.size()); }
  int64_t tokens() const;      // of all sequences
  int64_t num_tokens() const;  // rows of the tensors: tokens and tail
  int64_t token_heads() const { return tokens() * heads_v; }
  std::vector<int64_t> offsets() const;  // num_seqs + 1 entries
  // Runs in the memory of a GPU: it names one that is here (device=cuda:0), or a CUDA backend and no device.
  bool on_gpu() const;
  // Gates at or near 0 together with correlated keys, beta near 2 or, of KDA in 16 bits, keys of few channels: the wider column of the table of
  // tolerances.
  bool hostile() const;
  // Between typical and hostile, for bf16 (docs/numerics.md has the figures): correlated keys and beta near 2 at once, whatever the gates are; or
  // KDA with gates at or near 0, beta 1 and keys of up to 64 channels.
  bool strained() const;
};

// One line. Throws CaseError.
Case parse(std::string_view line);
// The canonical line: parse(print(c)) == c for every c that parse can return.
std::string print(const Case& c);

// One word of the grammar for help, made from the tables that parse() reads: "hv=N" and what it means.
struct GrammarWord {
  std::string word;
  std::string meaning;
};
std::vector<GrammarWord> grammar();

// A text as errors show it: in quotes, bytes that are no printable ASCII as \x1b, cut after 60 characters.
std::string in_quotes(std::string_view text);

// A case line with the name left out, for titles.
std::string print_without_name(const Case& c);

// Lines of a file; blank lines and what follows a # are left out. Throws CaseError with file and line number.
std::vector<Case> read_file(const std::filesystem::path& path);
// Arguments of the command, in order: files of cases, quoted case lines, and bare words (a case then begins at each rule or
// `name:`). Throws CaseError.
std::vector<Case> read_arguments(const std::vector<std::string>& arguments);

// The case with some words replaced or added, e.g. "segments=3 threads=1". Throws CaseError.
Case with_words(const Case& c, std::string_view words);

// A valid case drawn from everything the grammar can say, small enough that tokens x HV x DK x DV stays under `cost`.
// The same seed gives the same case on every machine. `backend` is named in it, and what that is known to decline is not drawn.
Case random_case(uint64_t seed, int64_t cost, const std::string& backend = {});

// Promises this alignment of every tensor and pool of a problem.
void promise_alignment(dr_problem& problem, int32_t bytes);

// The request that a case makes of the library. The structures point into this object, which therefore stays where it is.
class Request {
 public:
  explicit Request(const Case& c);  // throws CaseError when the device is unknown
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  dr_problem problem;
  dr_options options;

  const void* seq_offsets() const;  // in the type of the case, num_seqs + 1 entries; NULL when batched

 private:
  Case case_;  // owns the strings that options points to
  dr_device device_;
  std::vector<int32_t> offsets32_;
  std::vector<int64_t> offsets64_;
};

// Strides::kPacked: elements of one token row of the shared tensor, and where k and v begin in it (q at 0).
struct PackedRow {
  int64_t width;
  int64_t k;
  int64_t v;
};
PackedRow packed_row(const Case& c);

// A tensor of tokens as the case has it, [T, heads, width] (GDN gates and beta: width 1). No stride is left at its default (a Request
// leaves contiguous ones at 0).
struct Rows {
  int32_t dtype;
  int64_t heads;
  int64_t width;
  dr_layout strides;
};
Rows rows_of(const Case& c, Tensor tensor);

// Elements from the first to past the last of it. A kPacked view of q, k or v ends where its own last row ends.
int64_t extent(const Case& c, const Rows& rows);

// Sizes of the axes of a call, where `checkpoint_rows` are kept.
TensorSizes sizes_of(const Case& c, int64_t checkpoint_rows = 0);

// States in the pool of `state` when `entries` rows (sequences or checkpoints) are wanted.
int64_t pool_size(const State& state, int64_t entries);
// Slot of every entry, DR_STATE_SLOTS: the permutation described at State. `salt` tells the pools of one case apart.
std::vector<int64_t> slot_indices(const State& state, int64_t entries, uint64_t seed, uint64_t salt);
// has_initial of every sequence.
std::vector<uint8_t> initial_mask(const Case& c);
// Rows of checkpoints: for every sequence, the positions after which a state is kept (kChunks: the starts of chunks).
std::vector<std::vector<int64_t>> checkpoint_positions(const Case& c);

const char* dtype_name(int32_t dtype);

}  // namespace deltarelay::cases
