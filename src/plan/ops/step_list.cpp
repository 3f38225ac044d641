#include "plan/ops/step_list.h"

#include <cstdint>

namespace deltarelay {
namespace {

// Do any rows lie past the last offset, or is a sequence empty for which something is written? With lengths that come
// at execution there may be some.
bool leaves_anything(const Plan& plan, bool of_empty) {
  const Problem& p = plan.problem;
  if (p.batched()) return false;
  if (!p.lengths_known) return true;
  return p.offsets.back() < p.num_tokens || (of_empty && plan.num_filled < p.num_seqs);
}

}  // namespace

bool on_gpu(const Plan& plan) { return plan.options.device.kind == DR_DEVICE_CUDA; }

bool table_travels(const Plan& plan) {
  return plan.problem.lengths_known && static_cast<int64_t>(plan.device_image.size()) <= kTableInParameters;
}

// A GPU reads the table from its own memory, unless it travels; whoever wants a report has a kernel that clears the
// report word, and that may as well write the table. A CPU reads the plan's.
void StepList::table() {
  if (problem_.lengths_known && !on_gpu(plan_)) return;
  Step step{.stage = Stage::kTable, .when = table_travels(plan_) ? When::kReport : When::kAlways, .rows = 1};
  step.items = 1;
  add(step, BufferSet(BufferId::kTable, BufferId::kOffsets));
}

void StepList::prepare() {
  if (plan_.variant.record_bytes == 0) return;
  Step step{.stage = Stage::kPrepare, .rows = bounds_.chunks};
  step.items = bounds_.chunks * problem_.heads_v;
  step.predicted_ns = plan_.prepare_ns;
  add(step, BufferSet(BufferId::kTable, BufferId::kPrepared));
}

void StepList::aliases() {
  const StatePool &written = problem_.final, &inside = problem_.checkpoint;
  if (!on_gpu(plan_) || (!written.used() && !inside.used())) return;
  const bool slots = written.use == StateUse::kSlots || inside.use == StateUse::kSlots;
  Step step{.stage = Stage::kAliases, .when = slots ? When::kReport : When::kPoolsReport, .rows = bounds_.sequences};
  step.items = step.rows;
  add(step, BufferSet(BufferId::kTable));
}

void StepList::finish(bool of_empty) {
  if (!leaves_anything(plan_, of_empty)) return;
  Step step{.stage = Stage::kFinish, .rows = bounds_.sequences};
  step.items = step.rows;
  add(step, BufferSet(BufferId::kScratch, BufferId::kTable));
}

void StepList::add(Step step, BufferSet buffers, const RelayLine& relay, bool alike) {
  for (const Buffer& buffer : plan_.ledger.buffers()) {
    if (buffers.holds(buffer.id)) step.buffers = step.buffers | BufferSet(buffer.id);
  }
  step.variant = plan_.variant.name;
  if (plan_.backend->spread != nullptr) {
    plan_.backend->spread({problem_, plan_.variant, plan_.options.device.units, bounds_.sequences, relay, alike}, step);
  }
  steps_.add(step);
}

}  // namespace deltarelay
