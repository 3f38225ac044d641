#include "check/given.h"

#include <cmath>
#include <string>

#include "check/parallel.h"
#include "check/run.h"

namespace deltarelay::check {
namespace {

constexpr int32_t kLocal = DR_AQK | DR_INVERSE | DR_W | DR_U | DR_K_TO_END | DR_Q_FROM_START | DR_GATE_SUMS;
constexpr int32_t kPassed = DR_V_NEW | DR_STATES;
constexpr int64_t kRowsWorthAThread = 1 << 8;  // rows

// A stage on the same values, with intermediates in fp32.
cases::Case earlier(const cases::Case& c, int32_t op, int32_t given, int32_t wanted) {
  cases::Case e;
  e.rule = c.rule;
  e.op = op;
  e.dtype = c.dtype;
  e.dtype_gate = c.gate_dtype();
  e.dtype_beta = c.beta_dtype();
  e.dtype_a_log = c.dtype_a_log;
  e.dtype_dt_bias = c.dtype_dt_bias;
  e.heads_qk = c.heads_qk;
  e.heads_v = c.heads_v;
  e.dk = c.dk;
  e.dv = c.dv;
  e.batched = c.batched;
  e.lengths = c.lengths;
  e.gate_form = c.gate_form;
  e.gate_profile = c.gate_profile;
  e.gate_low = c.gate_low;
  e.gate_high = c.gate_high;
  e.gate_spread = c.gate_spread;
  e.lower_bound = c.lower_bound;
  e.gate_floor = c.gate_floor;
  e.a_log = c.a_log;
  e.dt_bias = c.dt_bias;
  e.beta = c.beta;
  e.keys = c.keys;
  e.l2norm = c.l2norm;
  e.scale = c.scale;
  e.backend = "reference";
  e.seed = c.seed;
  e.stage = {.chunk = c.stage.chunk, .given = given, .wanted = wanted, .dtype = DR_FP32, .dtype_states = 0};
  e.stage.sums_base_2 = c.stage.sums_base_2;
  if (((given | wanted) & DR_STATES) != 0) e.stage.states_layout = DR_STATE_VALUE_MAJOR;
  return e;
}

// Where number i of a row of `to` lies in the same row of `from`, whose states are value-major.
int64_t source_of(const cases::Case& c, const StageTensor& to, int64_t i) {
  if (to.entry->tensor != Tensor::kStates || c.stage.states_layout == DR_STATE_VALUE_MAJOR) return i;
  return i % c.dv * c.dk + i / c.dv;
}

void copy(const cases::Case& c, const StageTensor& from, const StageTensor& to) {
  for (size_t n = 0; n + 1 < to.starts.size(); ++n) {
    const int64_t start = to.starts[n];
    in_parallel(to.starts[n + 1] - start, kRowsWorthAThread, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        for (int64_t head = 0; head < to.heads; ++head)
          for (int64_t i = 0; i < to.width; ++i)
            if (to.holds(t, i))
              to.set(to.at(start + t, head, i), from.get(from.at(start + t, head, source_of(c, to, i))));
    });
  }
}

void require_finite(const cases::Case& c, const StageTensor& sums) {
  for (int64_t i = 0; i < sums.starts.back() * sums.heads * sums.width; ++i)
    if (!std::isfinite(sums.get(i)))
      throw cases::CaseError("given: expected finite gate_sums, found '" + std::to_string(sums.get(i)) + "' from the " +
                             "gates of " + cases::print_without_name(c));
}

void run_and_copy(TensorSet& tensors, const cases::Case& source, int32_t bits, int32_t threads) {
  const TensorSet made(source, kLeastAlignment, {}, threads);
  cases::Request request(source);
  request.options.threads = threads;
  try {
    PlannedRun run(request.problem, request.options);
    run.execute(made.tensors());
  } catch (const RunError& error) {
    throw RunError(error.status(), std::string("given intermediates, made by the reference: ") + error.what());
  }
  for (const StageTensor& to : tensors.intermediates()) {
    if (!to.given || (bit_of(to.entry->tensor) & bits) == 0) continue;
    copy(tensors.of(), *made.intermediate(to.entry->tensor), to);
  }
}

}  // namespace

void make_given(TensorSet& tensors, int32_t threads) {
  const cases::Case& c = tensors.of();
  const int32_t given = c.stage.given;
  if (c.tokens() == 0) return;
  if (c.op == DR_CARRY) {
    cases::Case summary = earlier(c, DR_SUMMARY, 0, DR_SUMMARIES);
    summary.batched = true;
    summary.lengths.assign(static_cast<size_t>(c.tokens()), kSummaryTokens);
    summary.stage.chunk = kSummaryTokens;
    run_and_copy(tensors, summary, DR_SUMMARIES, threads);
    return;
  }
  if ((given & kLocal) != 0) run_and_copy(tensors, earlier(c, DR_CHUNK_LOCAL, 0, given & kLocal), kLocal, threads);
  if ((given & kPassed) != 0) {
    cases::Case pass = earlier(c, DR_STATE_PASS, DR_W | DR_U, given & kPassed);
    pass.initial.use = DR_STATE_ROWS;
    run_and_copy(tensors, pass, kPassed, threads);
  }
  if (const StageTensor* sums = tensors.intermediate(Tensor::kGateSums); sums != nullptr && sums->given)
    require_finite(c, *sums);
}

}  // namespace deltarelay::check
