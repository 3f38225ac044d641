// How it will be done: an immutable answer, a pure function of problem, options and device facts.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "deltarelay/deltarelay.h"
#include "kernels/stages.h"
#include "plan/device_table.h"
#include "plan/devices/device_costs.h"
#include "plan/search/costs.h"
#include "plan/search/cut_rules.h"
#include "plan/search/rows.h"
#include "problem/problem.h"

namespace deltarelay {

// The name of our own way to cut; others are presets of policies.h.
inline constexpr const char* kOwnPolicy = "deltarelay";

// dr_options with its strings owned and its defaults resolved.
struct Options {
  int32_t segments = DR_SEGMENTS_AUTO;
  int64_t segment_value = 0;
  std::string backend;  // empty: the first that accepts
  std::string isa;      // of a CPU; empty: the best
  std::string variant;  // empty: the fastest by the model
  int32_t math = DR_MATH_DEFAULT;
  std::string policy;  // "deltarelay" or a preset of policies.h
  dr_device device{};
  DeviceCosts costs;           // of that device, or the caller's
  bool device_is_here = true;  // false: planned for an absent device, cannot be executed
  int32_t cuda_device = -1;    // ordinal of a GPU of this machine; -1: a CPU, or absent
  int32_t threads = 0;         // resolved, >= 1
  bool invariant = false;
  CarryMode carry = CarryMode::kExact;
  float carry_log_decay = 0.0f;  // truncated: resolved, < 0
  std::vector<int32_t> columns;
  dr_parallel_for parallel_for = nullptr;
  void* parallel_pool = nullptr;
};

// Throws Error(DR_INVALID) naming the option. `given` may be nullptr. `asked` is a backend that the caller asks about
// without naming it in the options: one for CUDA means the current GPU where the options name no device.
Options validate_options(const dr_options* given, const Problem& problem, const char* asked = "");

// What a backend needs of the options to accept or decline. Refers to `options`.
inline Request request_of(const Options& options) {
  Request request;
  request.isa = options.isa.empty() ? nullptr : options.isa.c_str();
  request.variant = options.variant.empty() ? nullptr : options.variant.c_str();
  request.math = options.math;
  request.num_columns = static_cast<int32_t>(options.columns.size());
  request.cut =
      options.segments == DR_SEGMENTS_COUNT || options.segments == DR_SEGMENTS_LENGTH || options.policy != kOwnPolicy;
  request.device_kind = options.device.kind;
  request.compute_capability = options.device.compute_capability;
  request.here = options.device_is_here;
  return request;
}

// A named piece of the workspace, booked at planning and fetched by the same name at execution.
struct Buffer {
  const char* name;
  size_t offset;
  size_t bytes;
};

class Ledger {
 public:
  void book(const char* name, size_t bytes);  // aligned to kWorkspaceAlignment
  size_t total_bytes() const { return total_; }
  const std::vector<Buffer>& buffers() const { return buffers_; }
  const Buffer* find(const char* name) const;  // nullptr when not booked

 private:
  std::vector<Buffer> buffers_;
  size_t total_ = 0;
};

// Rows of both phases and the folds between them.
struct SegmentTable {
  std::vector<Row> rows1;
  std::vector<Fold> folds;
  std::vector<Row> rows3;
  int64_t num_slots = 0;
};

struct Step {         // one launch
  std::string stage;  // "prepare", "emit", "summarize + emit", "carry"
  int64_t items = 0;  // work items: rows x heads x value tiles, or chunks x heads to prepare
  int64_t predicted_ns = 0;
};

struct Candidate {  // something the planner weighed
  std::string what;
  int64_t predicted_ns = 0;
  std::string verdict;  // "chosen", "slower", ...
};

struct Declined {
  std::string backend;
  std::string reason;
};

struct Plan {
  Problem problem;
  Options options;
  const Backend* backend = nullptr;
  int32_t isa = 0;  // cpu: instruction set; else the way of the backend
  int32_t chunk = 0;
  Tiling tiling;
  int64_t grain = 0;   // chunks; 0: not invariant, -1: infinite
  SegmentTable table;  // empty when !problem.lengths_known: filled in the workspace at execution
  Sizes sizes;
  Ledger ledger;
  std::vector<Step> steps;
  int32_t other_way = -1;  // a way of the backend that was weighed and not taken
  int64_t prepare_ns = 0;  // of both below: the step before the phases, where the backend has one
  int64_t predicted_ns = 0;
  int64_t unsplit_ns = 0;

  CutRule rule = CutRule::kWhole;
  int32_t cut_value = 0;
  plan::Costs costs;  // of the chosen tiling
  plan::Limits limits;
  plan::Decision decision;   // of the search
  plan::TableSize capacity;  // upper bounds when lengths come at execution, else what the table holds
  int64_t num_chunks = 0;    // of all sequences; an upper bound when lengths come at execution
  int64_t checkpoints = 0;   // places of kBufferCheckpoints
  RelayLine relay;           // of rows that are handed on; without a share: none is

  // On a GPU: where the table lies in its buffer, and, when the lengths are known, what it holds.
  DeviceTableLayout device_table;
  std::vector<std::byte> device_image;
};

// Buffers of the workspace.
inline constexpr const char* kBufferScratch = "scratch";             // [threads, scratch_bytes]
inline constexpr const char* kBufferSlotState = "slot state";        // [slot, HV, state_floats] fp32
inline constexpr const char* kBufferTransition = "slot transition";  // [slot, HV, transition_floats] fp32
inline constexpr const char* kBufferOffsets =
    "sequence offsets";                                       // [num_seqs + 1] int64, lengths known only at execution
inline constexpr const char* kBufferTable = "segment table";  // lengths known only at execution, or on a GPU
// Instruction set of the cpu backend, else ""; variant where the backend has several, else "".
const char* isa_name(const Plan& plan);
const char* variant_name(const Plan& plan);
std::string way_text(const Plan& plan);  // " (fused)", for words; "" where there is one way

inline constexpr const char* kBufferPrepared = "prepared operands";  // [chunk, HV, record_bytes]
inline constexpr const char* kBufferLives = "live transitions";      // [slot, HV, 2] uint32, on a GPU
// [checkpoints, HV, DV, DK] fp32, on a GPU: on their way to a pool of 16 bits, where some may be due inside a chunk.
inline constexpr const char* kBufferCheckpoints = "checkpoints";

inline constexpr const char* kBufferRelayStates = "relayed states";  // [relay.places(), DV, DK] fp32, on a GPU
inline constexpr const char* kBufferRelayMarks = "relay marks";      // [relay.places(), 2] RelayMark, on a GPU

// What an execution on a GPU has at most; of a call with fewer rows and sequences than the plan's bounds, what that
// has.
CallBounds bounds_of(const Plan& plan);
CallBounds bounds_of(const Plan& plan, const CallCounts& counts);
bool tries_suffixes(const Plan& plan);  // Backend::tries_suffixes
bool walks_twins(const Plan& plan);     // Backend::walks_twins

// A transition of this plan none of whose numbers is above it has vanished (kernels/cuda/tile/vanished.cuh); 0 for an
// exact carry. The norm of DK x DK numbers of at most x is at most DK x.
float vanish_bound_of(const Plan& plan);

// Throws Error(DR_INVALID) or Error(DR_UNSUPPORTED).
std::unique_ptr<const Plan> make_plan(Problem problem, Options options);

// Predicted for the best plan of plan.other_way; 0 where there is none. Makes that plan: a plan that loses is not
// searched to its end when it is weighed.
int64_t predict_other_way(const Plan& plan);

// The table of a batch whose lengths come with the tensors, written into booked memory without allocating.
TableView fill_table(const Plan& plan, const Sequences& sequences, std::byte* memory, size_t bytes);

// Backends in order of preference, "reference" last.
int32_t backend_count();
const Backend* backend_at(int32_t index);
const Backend* backend_named(const std::string& name);  // nullptr: unknown

// What the planner weighed and why other backends declined. Worked out when asked for, so that making a plan stays
// cheap.
std::vector<Candidate> candidates_of(const Plan& plan);
std::vector<Declined> declined_of(const Plan& plan);

std::string describe_text(const Plan& plan);
std::string describe_json(const Plan& plan);
std::string describe_signature(const Plan& plan);
std::string carry_text(const Options& options);  // "exact", "truncated:-16"
inline const char* math_text(const Options& options) { return options.math == DR_MATH_TF32 ? "tf32" : "default"; }

// Known devices: 0 is this machine's CPU, then a table of GPUs, then the GPUs that are here as "cuda:0", "cuda:1", ...
// Only questions about the latter ask the CUDA runtime. devices.cpp.
int32_t device_count();
dr_device device_at(int32_t index);
// "cuda" is the current GPU. Throws Error(DR_INVALID) with the names there are.
dr_device device_named(const std::string& name);
// The facts of a GPU that is here.
dr_device cuda_device(int32_t ordinal);
// Which GPU of this machine these facts describe, -1: none. Costs and bandwidth are free: a caller may know better.
int32_t cuda_ordinal(const dr_device& device);

}  // namespace deltarelay
