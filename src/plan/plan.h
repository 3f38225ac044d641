// How it will be done: an immutable answer, a pure function of problem, options and device facts.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "kernels/step.h"
#include "kernels/variant.h"
#include "plan/device_table.h"
#include "plan/ledger.h"
#include "plan/options.h"
#include "plan/search/costs.h"
#include "plan/search/cut_rules.h"
#include "plan/search/rows.h"
#include "plan/segment_table.h"
#include "problem/problem.h"

namespace deltarelay {

struct PhaseTimes {
  plan::ns phase1 = 0, carry = 0, phase3 = 0;
  plan::ns total() const { return phase1 + carry + phase3; }
};

struct Plan {
  Problem problem;
  Options options;
  const Backend* backend = nullptr;
  Variant variant;  // of the backend
  Tiling tiling;
  int64_t grain = 0;         // chunks; 0: not invariant, -1: infinite
  SegmentTable table;        // empty when !problem.lengths_known: filled in the workspace at execution
  size_t scratch_bytes = 0;  // of one worker
  Ledger ledger;
  // What an execution does, in order (ops/). A call with fewer rows and sequences than the plan's bounds has steps of
  // its own: steps_of.
  Steps steps;
  int32_t other_variant = -1;  // number of a variant that was weighed and not taken
  int64_t prepare_ns = 0;      // of both below: the step before the phases, where the variant has one
  int64_t predicted_ns = 0;
  int64_t unsplit_ns = 0;
  PhaseTimes times;  // when the lengths are known

  CutRule rule = CutRule::kWhole;
  int32_t cut_value = 0;
  plan::Costs costs;  // of the chosen tiling
  plan::Limits limits;
  plan::Decision decision;   // of the search
  plan::TableSize capacity;  // upper bounds when lengths come at execution, else what the table holds
  int64_t num_chunks = 0;    // of all sequences; an upper bound when lengths come at execution
  int64_t num_filled = 0;    // sequences with a token, when the lengths are known
  int64_t checkpoints = 0;   // places of BufferId::kCheckpoints
  RelayLine relay;           // of rows that are handed on; without a share: none is

  // On a GPU: where the table lies in its buffer, and, when the lengths are known, what it holds.
  DeviceTableLayout device_table;
  std::vector<std::byte> device_image;

  int32_t chunk() const { return variant.chunk; }
};

// What an execution has at most; of a call with fewer rows and sequences than the plan's bounds, what that has.
CallBounds bounds_of(const Plan& plan);
CallBounds bounds_of(const Plan& plan, const CallCounts& counts);
// The steps of such a call.
Steps steps_of(const Plan& plan, const CallCounts& counts);

bool tries_suffixes(const Plan& plan);  // do summaries of the plan walk the last chunks of a row first?
bool walks_twins(const Plan& plan);     // do rows of the plan walk as twins?

// A transition of this plan none of whose numbers is above it has vanished (kernels/cuda/tile/vanished.cuh); 0 for an
// exact carry. The norm of DK x DK numbers of at most x is at most DK x.
float vanish_bound_of(const Plan& plan);

// Throws Error(DR_INVALID) or Error(DR_UNSUPPORTED).
std::unique_ptr<const Plan> make_plan(Problem problem, Options options);

// Predicted for the best plan of plan.other_variant; 0 where there is none. Makes that plan: a plan that loses is not
// searched to its end when it is weighed.
int64_t predict_other_variant(const Plan& plan);

}  // namespace deltarelay
