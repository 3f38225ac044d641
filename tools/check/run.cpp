#include "check/run.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>

#include "check/generate.h"
#include "check/parallel.h"
#include "check/tolerance.h"

namespace deltarelay::check {
namespace {

constexpr int64_t kWorkspaceAlignment = 256;

void require(dr_status status) {
  if (status != DR_SUCCESS) throw RunError(status, std::string(dr_status_string(status)) + ": " + dr_last_error());
}

// The same problem for the reference: outputs in fp32, contiguous, one row per sequence and checkpoint.
cases::Case reference_case(const cases::Case& c) {
  cases::Case r = c;
  r.backend = "reference";
  r.isa.clear();
  r.variant.clear();
  r.math = DR_MATH_DEFAULT;
  r.policy.clear();
  r.device.clear();
  r.segments = DR_SEGMENTS_OFF;
  r.segment_value = 0;
  r.threads = 0;
  r.invariant = false;
  r.carry = DR_CARRY_EXACT;
  r.carry_log_decay = 0;
  r.dtype_o = DR_FP32;
  r.dtype_gate = c.gate_dtype();
  r.dtype_beta = c.beta_dtype();
  r.in_place = false;
  cases::State rows;
  rows.use = DR_STATE_ROWS;
  if (c.final.use != DR_STATE_NONE) r.final = rows;
  if (c.checkpoints != DR_CHECKPOINTS_NONE) r.checkpoint = rows;
  if (c.is_stage()) {
    r.stage.dtype = DR_FP32;
    r.stage.dtype_states = c.stage.states_layout != 0 ? DR_FP32 : 0;
  }
  return r;
}

// Reads a state of a Reference: [row, HV, DV, DK].
double state_element(const std::vector<float>& states, const cases::Case& c, int64_t row, int64_t head, int64_t i,
                     int64_t column) {
  return states[static_cast<size_t>(((row * c.heads_v + head) * c.dv + column) * c.dk + i)];
}

// A vector of float has the alignment of every intermediate.
static_assert(__STDCPP_DEFAULT_NEW_ALIGNMENT__ >= kLeastAlignment);

// The intermediates of a stage for the reference: those that are given as they were rounded, now in fp32, and room for
// those that are wanted. Pointers go to `to`.
std::vector<std::vector<float>> widened_intermediates(const TensorSet& tensors, dr_intermediates& to) {
  constexpr int64_t kWorthAThread = 1 << 16;
  std::vector<std::vector<float>> all;
  for (const StageTensor& x : tensors.intermediates()) {
    // One number more than needed: a tensor without rows still has an address.
    std::vector<float>& wide = all.emplace_back(static_cast<size_t>(x.count()) + 1);
    in_parallel(x.given ? x.count() : 0, kWorthAThread, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) wide[static_cast<size_t>(i)] = static_cast<float>(x.get(i));
    });
    set_pointer(to, *x.entry, wide.data());
  }
  return all;
}

struct Columns {
  explicit Columns(const cases::Case& c, const std::vector<int32_t>& chosen)
      : measured(static_cast<size_t>(c.dv), chosen.empty()) {
    for (const int32_t column : chosen) measured[static_cast<size_t>(column)] = true;
  }
  std::vector<bool> measured;
};

// Uses all cores. Each (sequence, head) is summed in a fixed order, so the figures do not depend on the number of
// cores.
template <class Body>
Measure measure_heads(const cases::Case& c, int64_t elements, const Body& body) {
  constexpr int64_t kWorthAThread = 1 << 20;  // elements
  const int64_t grain = std::max<int64_t>(1, kWorthAThread * c.heads_v / std::max<int64_t>(elements, 1));
  Measure all(c.num_seqs(), c.heads_v);
  std::mutex mutex;
  in_parallel(c.heads_v, grain, [&](int64_t begin, int64_t end) {
    Measure part(c.num_seqs(), c.heads_v);
    for (int64_t head = begin; head < end; ++head) body(head, part);
    const std::lock_guard<std::mutex> lock(mutex);
    all.merge(part);
  });
  return all;
}

// expected(row, head, t, column) and expected(row, head, i, column) return the values to compare with.
template <class Expected>
TensorError compare_output(const TensorSet& tensors, const Columns& columns, const Spoiled& spoiled,
                           const Expected& expected) {
  const cases::Case& c = tensors.of();
  const Measure measure = measure_heads(c, c.token_heads() * c.dv, [&](int64_t head, Measure& part) {
    for (int64_t n = 0; n < c.num_seqs(); ++n) {
      for (int64_t t = 0; t < c.lengths[static_cast<size_t>(n)] && !spoiled.open(n, head, t); ++t) {
        const int64_t at = tensors.o().at(n, t, head, 0);
        for (int64_t i = 0; i < c.dv; ++i) {
          const double out = tensors.o().get(at + i);
          if (columns.measured[static_cast<size_t>(i)]) {
            const double reference = expected(n, head, t, i);
            part.add(n, head, out, reference, rounded_to(c.output_dtype(), reference));
          } else {
            part.add_unmeasured(out);
          }
        }
      }
    }
  });
  return measure.finish("o", tolerance_of_output(c), storage_of_output(c));
}

// `sequence_of` says to which block the states of a row belong. nullptr: row n is sequence n.
template <class Expected>
TensorError compare_states(const char* name, const cases::Case& c, const StateTensor& states,
                           const std::vector<int64_t>* sequence_of, const Columns& columns, const Spoiled& spoiled,
                           const Expected& expected) {
  const auto rows = static_cast<int64_t>(states.slots.size());
  const Measure measure = measure_heads(c, rows * c.heads_v * c.dk * c.dv, [&](int64_t head, Measure& part) {
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t slot = states.slots[static_cast<size_t>(row)];
      if (slot < 0) continue;
      const int64_t sequence = sequence_of != nullptr ? (*sequence_of)[static_cast<size_t>(row)] : row;
      if (spoiled.state_open(sequence, head)) continue;
      for (int64_t column = 0; column < c.dv; ++column) {
        for (int64_t i = 0; i < c.dk; ++i) {
          const double out = states.get(states.at(slot, head, i, column));
          if (columns.measured[static_cast<size_t>(column)]) {
            const double reference = expected(row, head, i, column);
            part.add(sequence, head, out, reference, rounded_to(states.state.dtype, reference));
          } else {
            part.add_unmeasured(out);
          }
        }
      }
    }
  });
  return measure.finish(name, tolerance_of_state(c, states.state.dtype), storage_of_state(states.state.dtype));
}

// expected(element) returns the value to compare with.
template <class Expected>
TensorError compare_intermediate(const TensorSet& tensors, const StageTensor& x, const Expected& expected) {
  const cases::Case& c = tensors.of();
  // Sums of gates of -inf are -inf. Elsewhere the measure takes any number where the reference has no finite one.
  const bool exact_infinity = x.entry->tensor == Tensor::kGateSums;
  const Measure measure = measure_heads(c, x.count(), [&](int64_t head, Measure& part) {
    for (int64_t n = 0; n < c.num_seqs(); ++n) {
      const int64_t start = x.starts[static_cast<size_t>(n)], end = x.starts[static_cast<size_t>(n) + 1];
      for (int64_t row = start; row < end; ++row) {
        for (int64_t i = 0; i < x.width; ++i) {
          if (!x.holds(row - start, i)) continue;
          const int64_t at = x.at(row, head, i);
          const double out = x.get(at), reference = expected(at);
          if (exact_infinity && std::isinf(reference)) {
            if (out != reference) part.add_unmeasured(std::nan(""));
            continue;
          }
          part.add(n, head, out, reference, rounded_to(x.dtype, reference));
        }
      }
    }
  });
  return measure.finish(x.entry->name, tolerance_of_intermediate(c, *x.entry), storage_of_intermediate(c, *x.entry));
}

}  // namespace

PlannedRun::PlannedRun(const cases::Case& c, const CheckOptions& options) {
  if (c.on_gpu()) gpu::require();
  const cases::Request request(c);
  create(request.problem, request.options);
  if (c.on_gpu()) {
    device_workspace_ = gpu::GuardedMemory(workspace_bytes_, kWorkspaceAlignment);
    if (options.poison_workspace) device_workspace_.poison();
  } else {
    workspace_ = GuardedBuffer(workspace_bytes_, kWorkspaceAlignment);
  }
}

PlannedRun::PlannedRun(const dr_problem& problem, const dr_options& options) {
  create(problem, options);
  workspace_ = GuardedBuffer(workspace_bytes_, kWorkspaceAlignment);
}

void PlannedRun::create(const dr_problem& problem, const dr_options& options) {
  require(dr_plan_create(&problem, &options, &plan_));
  size_t bytes = 0;
  require(dr_plan_workspace_bytes(plan_, &bytes));
  workspace_bytes_ = static_cast<int64_t>(bytes);
}

PlannedRun::~PlannedRun() { dr_plan_destroy(plan_); }

void PlannedRun::destroy_plan() {
  dr_plan_destroy(plan_);
  plan_ = nullptr;
}

void PlannedRun::poison_workspace() {
  if (workspace_.data() != nullptr) workspace_.poison();
  if (device_workspace_.data() != nullptr) device_workspace_.poison();
}

dr_plan_summary PlannedRun::summary() const {
  dr_plan_summary summary{};
  summary.size = sizeof summary;
  require(dr_plan_summarize(plan_, &summary));
  return summary;
}

std::string PlannedRun::describe(int32_t format) const {
  size_t needed = 0;
  require(dr_plan_describe(plan_, format, nullptr, 0, &needed));
  std::string text(needed, '\0');
  require(dr_plan_describe(plan_, format, text.data(), text.size(), nullptr));
  text.resize(text.find('\0') == std::string::npos ? text.size() : text.find('\0'));
  return text;
}

void PlannedRun::execute(const dr_tensors& tensors) {
  require(dr_execute(plan_, &tensors, workspace_.data(), static_cast<size_t>(workspace_bytes_), nullptr));
}

void PlannedRun::execute(const dr_tensors& tensors, const gpu::Stream& stream) {
  require(
      dr_execute(plan_, &tensors, device_workspace_.data(), static_cast<size_t>(workspace_bytes_), stream.handle()));
}

int32_t measured_columns(const cases::Case& c) {
  if (c.is_stage()) return c.dv;
  if (c.token_heads() <= kFullColumns) return c.dv;
  int64_t shortest = c.tokens();
  for (const int64_t length : c.lengths) shortest = length > 0 ? std::min(shortest, length) : shortest;
  const int64_t wanted = (kBlockNumbers + shortest - 1) / shortest, paid = kReferenceWork / c.token_heads();
  const int64_t columns = std::max<int64_t>(kSampledColumns, std::min(wanted, paid));
  return static_cast<int32_t>(std::min<int64_t>(columns, c.dv));
}

cases::Case fewer_heads(const cases::Case& c) {
  constexpr int32_t kKeyHeads = 2;  // so that reading the neighbour's keys shows
  const bool stage = c.op == DR_CHUNK_LOCAL || c.op == DR_STATE_PASS;
  const bool plain = c.strides == cases::Strides::kContiguous && c.tail == 0 &&
                     c.lengths_at == cases::LengthsAt::kPlan && c.initial.use == DR_STATE_NONE &&
                     (c.final.use == DR_STATE_NONE || (c.final.use == DR_STATE_ROWS && c.final.pad == 0));
  // As initialised, and mixed, each head has gates of its own.
  const bool alike =
      !c.raw_gate() && c.gate_profile != cases::GateProfile::kInit && c.gate_profile != cases::GateProfile::kMixed;
  if (!stage || !plain || !alike || !c.on_gpu() || c.token_heads() <= kFullColumns) return c;
  if (c.heads_qk % kKeyHeads != 0) return c;
  cases::Case few = c;
  few.heads_qk = kKeyHeads;
  few.heads_v = kKeyHeads * (c.heads_v / c.heads_qk);
  return few;
}

std::vector<int32_t> sampled_columns(const cases::Case& c) {
  const int32_t columns = measured_columns(c);
  if (columns == c.dv) return {};
  std::vector<int32_t> all(static_cast<size_t>(c.dv));
  std::iota(all.begin(), all.end(), 0);
  for (size_t i = 0; i < static_cast<size_t>(columns); ++i) {
    const uint64_t random = random_bits(c.seed, Stream::kColumns, i);
    std::swap(all[i], all[i + static_cast<size_t>(random % (all.size() - i))]);
  }
  all.resize(static_cast<size_t>(columns));
  std::sort(all.begin(), all.end());
  return all;
}

Reference run_reference(const TensorSet& tensors, const CheckOptions& options) {
  const cases::Case& c = tensors.of();
  const cases::Case r = reference_case(c);
  Reference reference;
  if (!options.full_columns) reference.columns = sampled_columns(c);
  cases::Request request(r);
  // The alignment promised for the case's pointers need not hold for the vectors below: they have element alignment
  // only.
  request.problem.layout_o = {};
  cases::promise_alignment(request.problem, 1);
  request.options.threads = options.reference_threads;
  if (!reference.columns.empty()) {
    request.options.columns = reference.columns.data();
    request.options.num_columns = static_cast<int32_t>(reference.columns.size());
  }
  const int64_t state = int64_t{c.heads_v} * c.dk * c.dv;
  dr_tensors pointers = tensors.inputs();
  if (c.writes_o()) {
    reference.o.resize(static_cast<size_t>(c.num_tokens() * c.heads_v * c.dv));
    pointers.o = reference.o.data();
  }
  dr_intermediates intermediates;
  dr_intermediates_init(&intermediates);
  reference.intermediates = widened_intermediates(tensors, intermediates);
  if (c.is_stage()) pointers.intermediates = &intermediates;
  if (c.final.use != DR_STATE_NONE) {
    reference.final_state.resize(static_cast<size_t>(c.num_seqs() * state));
    pointers.final = reference.final_state.data();
  }
  if (c.checkpoints != DR_CHECKPOINTS_NONE) {
    reference.checkpoint.resize(tensors.checkpoint_sequence().size() * static_cast<size_t>(state));
    pointers.checkpoint = reference.checkpoint.data();
  }
  PlannedRun run(request.problem, request.options);
  run.execute(pointers);
  for (size_t i = 0; i < reference.intermediates.size(); ++i)
    if (tensors.intermediates()[i].given) reference.intermediates[i] = {};
  return reference;
}

std::vector<TensorError> compare(const TensorSet& tensors, const Reference& reference, const Spoiled& spoiled) {
  const cases::Case& c = tensors.of();
  const std::vector<int64_t> offsets = c.offsets();
  const Columns columns(c, reference.columns);
  std::vector<TensorError> errors;
  if (c.writes_o()) {
    errors.push_back(compare_output(tensors, columns, spoiled, [&](int64_t n, int64_t head, int64_t t, int64_t i) {
      return reference.o[static_cast<size_t>(((offsets[static_cast<size_t>(n)] + t) * c.heads_v + head) * c.dv + i)];
    }));
  }
  if (tensors.final_state().used()) {
    errors.push_back(compare_states("final", c, tensors.final_state(), nullptr, columns, spoiled,
                                    [&](auto... at) { return state_element(reference.final_state, c, at...); }));
  }
  if (tensors.checkpoint().used()) {
    errors.push_back(compare_states("checkpoint", c, tensors.checkpoint(), &tensors.checkpoint_sequence(), columns,
                                    spoiled,
                                    [&](auto... at) { return state_element(reference.checkpoint, c, at...); }));
  }
  for (size_t k = 0; k < tensors.intermediates().size(); ++k) {
    const StageTensor& x = tensors.intermediates()[k];
    if (x.given) continue;
    const std::vector<float>& expected = reference.intermediates[k];
    errors.push_back(
        compare_intermediate(tensors, x, [&](int64_t at) { return double{expected[static_cast<size_t>(at)]}; }));
  }
  return errors;
}

std::vector<TensorError> compare(const TensorSet& tensors, const TensorSet& other) {
  const cases::Case& c = tensors.of();
  const Columns columns(c, {});
  std::vector<TensorError> errors;
  if (c.writes_o()) {
    errors.push_back(compare_output(tensors, columns, {}, [&](int64_t n, int64_t head, int64_t t, int64_t i) {
      return other.o().get(other.o().at(n, t, head, i));
    }));
  }
  const auto against = [&](const char* name, const StateTensor& a, const StateTensor& b,
                           const std::vector<int64_t>* sequence_of) {
    if (!a.used()) return;
    const auto expected = [&](int64_t row, int64_t head, int64_t i, int64_t column) {
      return b.get(b.at(b.slots[static_cast<size_t>(row)], head, i, column));
    };
    errors.push_back(compare_states(name, c, a, sequence_of, columns, {}, expected));
  };
  against("final", tensors.final_state(), other.final_state(), nullptr);
  against("checkpoint", tensors.checkpoint(), other.checkpoint(), &tensors.checkpoint_sequence());
  for (size_t k = 0; k < tensors.intermediates().size(); ++k) {
    const StageTensor& x = tensors.intermediates()[k];
    const StageTensor& y = other.intermediates()[k];
    if (!x.given) errors.push_back(compare_intermediate(tensors, x, [&](int64_t at) { return y.get(at); }));
  }
  return errors;
}

}  // namespace deltarelay::check
