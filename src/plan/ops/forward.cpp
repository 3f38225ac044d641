#include "plan/ops/forward.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "plan/modes.h"
#include "plan/ops/step_list.h"
#include "plan/search/forms.h"
#include "plan/table.h"

namespace deltarelay {
namespace {

// Rows come longest first.
bool are_alike(const std::vector<Row>& rows) { return !rows.empty() && rows.front().chunks == rows.back().chunks; }

class ForwardSteps {
 public:
  ForwardSteps(const Plan& plan, const CallBounds& bounds)
      : plan_(plan), problem_(plan.problem), bounds_(bounds), list_(plan, bounds) {}

  Steps list() {
    list_.table();
    if (bounds_.chunks > 0) {
      list_.prepare();
      walk(1, bounds_.rows1, plan_.table.rows1, plan_.times.phase1);
      carry();
      walk(3, bounds_.rows3, plan_.table.rows3, plan_.times.phase3);
      checkpoints();
    }
    list_.aliases();
    list_.finish(problem_.final.used());
    return list_.steps();
  }

 private:
  void walk(int32_t phase, int64_t rows, const std::vector<Row>& known, plan::ns time) {
    if (rows == 0) return;
    const Variant& variant = plan_.variant;
    Step step{.stage = Stage::kWalk, .phase = phase, .rows = rows};
    step.summarizes = phase == 1 && bounds_.folds > 0;
    step.emits = known.empty() ||
                 std::any_of(known.begin(), known.end(), [](const Row& row) { return row.work == Work::kEmit; });
    step.has_form = variant.forms.pairs;
    step.form = plan::form_of(variant, plan::tiles_a_strip(variant, plan_.tiling.value_tiles), phase, bounds_);
    step.suffix = step.summarizes && suffixes() &&
                  (variant.suffix.beside_checkpoints || problem_.checkpoints == Checkpoints::kNone);
    step.backwards = step.summarizes && variant.backwards;
    step.items = rows * plan_.costs.copies;
    step.predicted_ns = time;
    const BufferSet always(BufferId::kScratch, BufferId::kTable, BufferId::kPrepared, BufferId::kSlotState,
                           BufferId::kCheckpoints);
    BufferSet buffers = always;
    if (step.summarizes) buffers = buffers | BufferSet(BufferId::kTransition, BufferId::kLives);
    if (phase == 1) buffers = buffers | BufferSet(BufferId::kRelayStates, BufferId::kRelayMarks);
    list_.add(step, buffers, phase == 1 ? plan_.relay : RelayLine{}, table_travels(plan_) && are_alike(known));
  }

  void carry() {
    if (bounds_.folds == 0) return;
    Step step{.stage = Stage::kCarry, .rows = bounds_.folds};
    step.items = bounds_.folds * plan_.costs.copies;
    step.predicted_ns = plan_.times.carry;
    list_.add(step, BufferSet(BufferId::kScratch, BufferId::kTable, BufferId::kSlotState, BufferId::kTransition,
                              BufferId::kLives));
  }

  // On a GPU the walk stores states between chunks only, and those that wait for a pool of 16 bits in the workspace.
  void checkpoints() {
    if (!on_gpu(plan_) || !problem_.checkpoints_inside(plan_.chunk())) return;
    Step step{.stage = Stage::kCheckpoints, .rows = problem_.checkpoint.num_slots};
    step.items = step.rows * problem_.heads_v;
    list_.add(step, BufferSet(BufferId::kTable, BufferId::kCheckpoints));
  }

  bool suffixes() const {
    return plan::tries_suffixes(plan_.variant, bounds_, int64_t{problem_.heads_v} * plan_.variant.strips,
                                plan_.options.device.units, vanish_bound_of(plan_) == 0.0f);
  }

  const Plan& plan_;
  const Problem& problem_;
  const CallBounds& bounds_;
  StepList list_;
};

// A GPU takes a checkpoint inside a chunk on from the start of that chunk. Until it is finished it is kept in fp32, for
// a pool of 16 bits would round it twice. No two are written to one slot, so there are at most as many as the pool has
// slots, however many a list may name.
int64_t count_waiting_checkpoints(const Plan& plan) {
  const Problem& p = plan.problem;
  if (p.checkpoint.dtype == DType::kFp32 || !p.checkpoints_inside(plan.chunk())) return 0;
  return std::min(p.checkpoint.num_slots, p.checkpoint_rows());
}

// A GPU reads the table from its own memory. What the plan knows of it is kept as the bytes to send; else the GPU
// writes it.
void lay_out_device_table(Plan& plan) {
  const Problem& p = plan.problem;
  plan.device_table = device_table_layout(p.num_seqs, plan.capacity, !p.lengths_known);
  if (!p.lengths_known) return;
  const Sequences sequences{p.batched() ? nullptr : p.offsets.data(), p.seq_len, p.num_seqs};
  plan.device_image = device_table_image(plan.device_table, sequences, plan.chunk(), plan.table);
}

// Scratch of one worker. The tiling may change with the bounds of late lengths, while the workspace must only grow with
// them: then it is the scratch of the largest tiling.
size_t scratch_of(const Plan& plan) {
  const auto bytes_of = plan.backend->scratch_bytes;
  if (bytes_of == nullptr) return 0;
  size_t bytes = bytes_of(plan.problem, plan.variant, plan.tiling.value_tiles);
  if (plan.problem.lengths_known) return bytes;
  const Modes modes = modes_of(plan.problem, plan.options, *plan.backend, plan.variant);
  for (int32_t m = 0; m < modes.count; ++m)
    bytes = std::max(bytes, bytes_of(plan.problem, plan.variant, modes.tiles[m]));
  return bytes;
}

}  // namespace

Steps forward_steps(const Plan& plan, const CallBounds& bounds) { return ForwardSteps(plan, bounds).list(); }

void book_forward(Plan& plan) {
  const Problem& p = plan.problem;
  const Variant& variant = plan.variant;
  Ledger& ledger = plan.ledger;
  const auto heads = static_cast<size_t>(p.heads_v), strips = static_cast<size_t>(variant.strips);
  const size_t states = static_cast<size_t>(plan.table.num_slots) * heads;
  plan.scratch_bytes = scratch_of(plan);
  ledger.book(BufferId::kScratch, static_cast<size_t>(plan.tiling.threads) * plan.scratch_bytes);
  ledger.book(BufferId::kSlotState, states * static_cast<size_t>(variant.state_floats) * sizeof(float));
  ledger.book(BufferId::kTransition, states * static_cast<size_t>(variant.transition_floats) * sizeof(float));
  ledger.book(BufferId::kPrepared,
              static_cast<size_t>(plan.num_chunks) * heads * static_cast<size_t>(variant.record_bytes));
  if (on_gpu(plan)) {
    ledger.book(BufferId::kLives, states * strips * 2 * sizeof(uint32_t));
    plan.checkpoints = count_waiting_checkpoints(plan);
    ledger.book(BufferId::kCheckpoints, static_cast<size_t>(plan.checkpoints) * heads * static_cast<size_t>(p.dk) *
                                            static_cast<size_t>(p.dv) * sizeof(float));
    const auto places = static_cast<size_t>(plan.relay.places());
    ledger.book(BufferId::kRelayStates, places * static_cast<size_t>(variant.state_floats) / strips * sizeof(float));
    ledger.book(BufferId::kRelayMarks, places * 2 * sizeof(RelayMark));
    lay_out_device_table(plan);
    ledger.book(BufferId::kTable, plan.device_table.bytes);
  } else if (!p.lengths_known) {
    ledger.book(BufferId::kTable, table_bytes(p.num_seqs, plan.capacity));
    ledger.book(BufferId::kOffsets, sizeof(int64_t) * static_cast<size_t>(p.num_seqs + 1));
  }
}

}  // namespace deltarelay
