// What a backend is: a named table of functions over rows of work. Kernels see this header and src/problem, nothing
// else. A host backend is called stage by stage (StageArgs); a device backend puts the whole call onto a stream
// (DeviceCall).
//
// A plan runs in up to three phases:
// 1  rows: whole sequences and first segments are emitted (they start from the true state), middle segments summarized
//   2  folds: carry gives the state that enters every later segment
//   3  rows: middle and last segments are emitted
// Between phases the state that enters or leaves a segment lives in numbered slots of the workspace.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "deltarelay/deltarelay.h"
#include "kernels/relay.h"
#include "problem/problem.h"

namespace deltarelay {

enum class Work : int32_t { kEmit = 0, kSummarize = 1 };

// One segment (or whole sequence) of every head: `chunks` chunks from chunk `begin` of sequence `sequence`.
struct Row {
  int32_t sequence;
  int32_t begin;
  int32_t chunks;
  Work work;
  int32_t slot_in;      // emit: slot of the entering state; -1: the caller's initial state (zero if none)
  int32_t slot_out;     // emit: slot that receives the exit state, -1: none; summarize: slot that receives (M, B)
  int32_t slot_folded;  // emit: slot whose state replaces the exit state in final state and checkpoints; -1: none
  // A row that ends its sequence writes the final state, if one is wanted.
  bool operator==(const Row&) const = default;
};

// The carry of one sequence. State of slot `slot` is given (or, when from_initial, first copied from the caller's
// initial state); then for j = 1..count:  state[slot + j] = M[slot + j] * state[slot + j - 1] + B[slot + j]. B and the
// state that replaces it share storage.
struct Fold {
  int32_t sequence;
  int32_t slot;
  int32_t count;
  bool from_initial;
  bool operator==(const Fold&) const = default;
};

// Rows of both phases and the folds between them, in memory that someone else owns.
struct TableView {
  const Row* rows1;
  int64_t num_rows1;
  const Fold* folds;
  int64_t num_folds;
  const Row* rows3;
  int64_t num_rows3;
};

// How a backend spreads work; changes speed, never results.
struct Tiling {
  int32_t threads = 1;
  int32_t value_tiles = 1;  // work items over which the value columns of one head are spread
  bool operator==(const Tiling&) const = default;
};

// Calls body(worker) for worker in [0, workers), possibly at once, and returns when all are done.
class Executor {
 public:
  using Body = void (*)(void* context, int32_t worker);
  virtual void run(int32_t workers, Body body, void* context) = 0;

 protected:
  ~Executor() = default;
};

struct StageArgs {
  const Problem& problem;
  const dr_tensors& tensors;
  Sequences sequences;
  int32_t chunk;  // tokens
  Tiling tiling;
  int32_t isa;             // cpu: index into its instruction sets
  const int32_t* columns;  // reference: chosen value columns, nullptr: all
  int32_t num_columns;
  float* slot_state;       // [slot, HV, state_floats]
  float* slot_transition;  // [slot, HV, transition_floats]
  std::byte* scratch;      // [threads, scratch_bytes]
  size_t scratch_bytes;    // of one worker, a multiple of kWorkspaceAlignment
};

namespace cuda {
struct Tables;  // kernels/cuda/args.h
}

// How much of everything a call on a device has: exact when the plan knew the lengths, else upper bounds for which
// grids and workspace are sized (the table itself then says how many there are).
struct CallBounds {
  int64_t rows1 = 0, folds = 0, rows3 = 0;
  int64_t chunks = 0;  // of all sequences
  int64_t slots = 0;
  int64_t checkpoints = 0;  // that wait in the workspace
};

// One execution on a GPU. The table is on its way: kernels put onto `stream` find it filled. Refers to the plan, so
// `enqueue` copies what its kernels need into their parameters.
struct DeviceCall {
  const Problem& problem;
  const dr_tensors& tensors;  // device pointers; a report word is 0 when the kernels start
  int32_t device;             // CUDA ordinal, current on the calling thread
  int32_t units;              // multiprocessors
  void* stream;               // cudaStream_t
  int32_t way;                // of the backend's, as the plan has chosen
  int32_t chunk;              // tokens
  Tiling tiling;
  CallBounds bounds;
  float vanish_bound;          // of a truncated carry: no number of a vanished transition is above it; 0: it is all 0
  const cuda::Tables& tables;  // device pointers into the workspace
  std::byte* prepared;         // [chunk, HV, record_bytes]; nullptr where the call has no chunk
  float* slot_state;           // [slot, HV, state_floats]; nullptr where the call has no slot
  float* slot_transition;      // [slot, HV, transition_floats]; nullptr where the call has no slot
  uint32_t* slot_lives;        // [slot, HV, strips, 2]; nullptr where the call has no slot
  float* checkpoints;          // [bounds.checkpoints, HV, DV, DK]; nullptr where none waits (plan.h)
  RelayLine relay;             // of rows that are handed on; without a share: none is
  float* relay_states;         // [relay.places(), DV / strips, DK]
  RelayMark* relay_marks;      // [relay.places(), 2]
};

// Options that concern the choice of a backend.
struct Request {
  const char* isa = nullptr;      // nullptr: not named
  const char* variant = nullptr;  // likewise
  int32_t math = DR_MATH_DEFAULT;
  int32_t num_columns = 0;  // > 0: a subset of value columns is asked for
  bool cut = false;         // segments are forced, or asked for in the manner of another system
  int32_t device_kind = DR_DEVICE_CPU;
  int32_t compute_capability = 0;
  bool here = true;  // the device is this machine's: the plan is to run
};

struct Sizes {
  int64_t state_floats = 0;       // per (slot, head)
  int64_t transition_floats = 0;  // per (slot, head)
  size_t scratch_bytes = 0;       // per worker
  int64_t record_bytes = 0;  // per (chunk, value head): operands that `prepare` leaves in memory for the other stages
};

// A CTA of the kernel that takes most of the time, and how many of them a unit of the device runs at once.
struct CtaTiling {
  int32_t value_columns = 0;
  int32_t threads = 0;
  int32_t stages = 0;  // chunks that shared memory holds at once
  int32_t shared_bytes = 0;
  int32_t registers = 0;         // that a thread may have
  int32_t by_registers = 1;      // CTAs that a unit has registers for,
  int32_t by_shared_memory = 1;  // and shared memory
  int32_t together() const {
    const int32_t fewer = by_registers < by_shared_memory ? by_registers : by_shared_memory;
    return fewer < 1 ? 1 : fewer;
  }
};

struct Backend {
  const char* name;
  // Empty when the backend serves the problem, else the reason why not: names the argument, what it takes, what it
  // found.
  std::string (*decline)(const Problem&, const Request&);
  int32_t (*chunk)(const Problem&, int32_t isa);          // tokens a chunk; `isa`: see num_ways
  int32_t (*panel_columns)(const Problem&, int32_t isa);  // value columns that are never spread over work items
  Sizes (*sizes)(const Problem&, int32_t isa, const Tiling&);

  // Of a host backend, else nullptr.
  void (*run_rows)(const StageArgs&, const Row* rows, int64_t count, Executor&) = nullptr;
  void (*run_folds)(const StageArgs&, const Fold* folds, int64_t count, Executor&) = nullptr;
  // What belongs to no row: outputs of rows past the last offset are zeroed, empty sequences get final = initial.
  void (*finish)(const StageArgs&, Executor&) = nullptr;

  // Of a device backend, else nullptr. Both throw Error(DR_DEVICE_ERROR).
  // Puts the whole call onto the stream: all three phases and what belongs to no row. Allocates nothing, waits for
  // nothing.
  void (*enqueue)(const DeviceCall&) = nullptr;
  // Loads every kernel that `enqueue` may launch onto this device, which is current, so that no execution has to. A
  // backend with kernels of its own for each shape of a problem loads here what they share.
  void (*load)(int32_t device) = nullptr;
  // Number of the problem's shape, below kMostShapes, and loading the kernels of that shape onto the current device.
  // nullptr: `load` is all.
  static constexpr int32_t kMostShapes = 63;
  int32_t (*shape)(const Problem&) = nullptr;
  void (*load_shape)(const Problem&) = nullptr;
  // Ways to serve a problem that differ in chunks and records: `chunk`, `panel_columns` and `sizes` are told which,
  // where a backend of a CPU is told the instruction set. A plan takes the one that it predicts to be fastest, unless
  // options.variant names one. 0: there is one way. A way that nobody need name has an empty name.
  int32_t num_ways = 0;
  int32_t tf32_way = -1;  // the one of DR_MATH_TF32, taken when that is asked for and never else; -1: none
  const char* const* way_names = nullptr;
  bool (*takes_way)(const Problem&, int32_t way) = nullptr;
  // Number of strips that the value columns of a head are divided into. Each strip is walked as a head of its own, with
  // its own state and transition; tilings count work items of a head, so they are multiples of this. nullptr: 1.
  int32_t (*strips)(const Problem&) = nullptr;
  // Where the tiling is not for the planner to choose: value tiles of a head, and what one unit with so much shared
  // memory (0: not known) runs at once, each CTA a work item.
  int32_t (*value_tiles)(const Problem&) = nullptr;
  CtaTiling (*cta_tiling)(const Problem&, int64_t unit_shared_bytes) = nullptr;
  // May summaries turn out short, since gates mostly forget a segment and the kernels find out? nullptr: they never do.
  bool (*short_summaries)(const Problem&) = nullptr;
  // Do summaries of such a call walk the last chunks of a row first? `units`: multiprocessors; `exact`: the carry is.
  // nullptr: never.
  bool (*tries_suffixes)(const Problem&, const CallBounds&, int32_t units, bool exact) = nullptr;
  // Where a work item of a way without records is a whole strip: do two strips of one key share their making? nullptr:
  // never.
  bool (*walks_twins)(const Problem&, const CallBounds&) = nullptr;
  // Whether units of a way and tiling can hand rows on to each other (relay.h). nullptr: they cannot.
  RelayUnits (*relay_units)(const Problem&, int32_t way, int32_t tiles_a_strip, const CallBounds&,
                            int32_t units) = nullptr;
};

extern const Backend kReferenceBackend;
extern const Backend kCpuBackend;
extern const Backend kCudaSm90Backend;  // without CUDA in the build: to plan with, not to run
extern const Backend kCudaSm80Backend;  // the same

// Instruction sets of the cpu backend on this machine, best first.
int32_t cpu_isa_count();
const char* cpu_isa_name(int32_t index);
int32_t cpu_isa_find(const char* name);  // -1: not on this machine; nullptr: 0, the best

// Facts of this machine's CPU, asked afresh.
void cpu_describe(dr_device* device);
// Stage costs of the cpu backend on a CPU with these facts.
void cpu_costs(const dr_device& device, Rule rule, dr_costs* costs);

// Lets the calling thread run on every CPU that the main thread of the process may run on, whatever thread made it.
void cpu_run_anywhere();

}  // namespace deltarelay
