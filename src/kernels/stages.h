// What a call brings to the kernels: of a host backend stage by stage (StageArgs), of a device backend all at once
// (DeviceCall).
#pragma once
#include <cstddef>
#include <cstdint>

#include "deltarelay/deltarelay.h"
#include "kernels/relay.h"
#include "kernels/rows.h"
#include "problem/problem.h"

namespace deltarelay {

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

// One execution on a GPU. The table is on its way: kernels put onto `stream` find it filled. Refers to the plan, so
// `enqueue` copies what its kernels need into their parameters.
struct DeviceCall {
  const Problem& problem;
  const dr_tensors& tensors;   // device pointers; a report word is 0 when the kernels start
  int32_t device;              // CUDA ordinal, current on the calling thread
  void* stream;                // cudaStream_t
  int32_t variant;             // number of the backend's, as the plan has chosen
  int32_t chunk;               // tokens
  int64_t checkpoint_places;   // of `checkpoints`
  float vanish_bound;          // of a truncated carry: no number of a vanished transition is above it; 0: it is all 0
  const cuda::Tables& tables;  // device pointers into the workspace
  std::byte* prepared;         // [chunk, HV, record_bytes]; nullptr where the call has no chunk
  float* slot_state;           // [slot, HV, state_floats]; nullptr where the call has no slot
  float* slot_transition;      // [slot, HV, transition_floats]; nullptr where the call has no slot
  uint32_t* slot_lives;        // [slot, HV, strips, 2]; nullptr where the call has no slot
  float* checkpoints;          // [checkpoint_places, HV, DV, DK]; nullptr where none waits
  RelayLine relay;             // of rows that are handed on; without a share: none is
  float* relay_states;         // [relay.places(), DV / strips, DK]
  RelayMark* relay_marks;      // [relay.places(), 2]
};

}  // namespace deltarelay
