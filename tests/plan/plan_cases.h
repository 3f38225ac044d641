// Problems, devices and options for planner tests.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "plan/backends.h"
#include "plan/describe/describe.h"
#include "plan/devices/devices.h"
#include "plan/modes.h"
#include "plan/plan.h"
#include "plan/search/policies.h"
#include "problem/problem.h"

namespace deltarelay::test {

inline Problem problem_of(Rule rule, const std::vector<int64_t>& lengths, int32_t heads, int32_t dk = 128,
                          int32_t dv = 128) {
  Problem p;
  p.rule = rule;
  p.num_seqs = static_cast<int64_t>(lengths.size());
  p.offsets.push_back(0);
  for (const int64_t length : lengths) p.offsets.push_back(p.offsets.back() + length);
  p.num_tokens = p.offsets.back();
  p.heads_qk = p.heads_v = heads;
  p.dk = dk;
  p.dv = dv;
  p.v = p.o = {int64_t{heads} * dv, dv, 0};
  p.dtype = p.dtype_o = p.dtype_gate = p.dtype_beta = DType::kBf16;
  return p;
}

inline Problem problem_with_bounds(Rule rule, int64_t num_tokens, int64_t num_seqs, int32_t heads, int32_t dk = 128,
                                   int32_t dv = 128) {
  Problem p = problem_of(rule, {}, heads, dk, dv);
  p.num_tokens = num_tokens;
  p.num_seqs = num_seqs;
  p.offsets.clear();
  p.lengths_known = false;
  return p;
}

// Asks for checkpoints: every so many tokens or, for 0, by a list.
inline Problem with_checkpoints(Problem p, int64_t every, int64_t num_slots, DType pool = DType::kBf16) {
  p.checkpoints = every > 0 ? Checkpoints::kEvery : Checkpoints::kList;
  p.checkpoint_every = every;
  p.checkpoint.use = StateUse::kSlots;
  p.checkpoint.num_slots = num_slots;
  p.checkpoint.dtype = pool;
  return p;
}

// Rows of DeviceCosts.
inline const int32_t kCpuCosts = cost_row("cpu", ""), kSm90PreparedCosts = cost_row("cuda-sm90", "prepared"),
                     kSm90FusedCosts = cost_row("cuda-sm90", "fused"), kSm80Costs = cost_row("cuda-sm80", "");

// A device with the costs that plans for it are made with.
struct Machine {
  dr_device device{};
  DeviceCosts costs;
  std::string variant;  // of a backend that has several; empty: the planner's choice

  operator const dr_device&() const { return device; }  // NOLINT(google-explicit-constructor): mostly facts are wanted
};

inline Machine device_of(const std::string& name) {
  for (int32_t i = 0; i < device_count(); ++i) {
    if (name == device_at(i).name) return {device_at(i), costs_of_device(device_at(i)), ""};
  }
  return {};
}

inline dr_costs costs_on(const char* name, int32_t row, Rule rule) {
  return costs_of_device(device_of(name)).at(row, rule);
}

// A device that is planned with `prepare`, whatever else there is.
inline Machine prepared_on(const char* name) {
  Machine machine = device_of(name);
  machine.variant = "prepared";
  return machine;
}

// A CPU with this many cores and round costs: emit 26 us a chunk of 16, a summary 1.8 times that, a quarter of it
// local.
inline Machine cpu_with(int32_t units) {
  Machine machine;
  machine.device.size = sizeof machine.device;
  machine.device.kind = DR_DEVICE_CPU;
  std::string("test-cpu").copy(machine.device.name, sizeof machine.device.name - 1);
  machine.device.units = units;
  for (const Rule rule : {Rule::kKda, Rule::kGdn}) {
    dr_costs& costs = machine.costs.at(test::kCpuCosts, rule);
    costs.rule = static_cast<int32_t>(rule);
    costs.chunk = 16;
    costs.emit_ns = 26000;
    costs.summarize_ns = 47000;
    costs.local_ns = costs.summarize_local_ns = 6000;
    costs.carry_ns = costs.carry_unit_ns = 52000;
    costs.split_ns = 10000;
    costs.item_ns = 500;
  }
  return machine;
}

inline void move_to(const Machine& machine, Options& options) {
  options.device = machine.device;
  options.costs = machine.costs;
  options.variant = machine.variant;
}

inline Options options_on(const Machine& machine) {
  Options options;
  options.policy = kOwnPolicy;
  move_to(machine, options);
  options.device_is_here = false;
  options.threads = machine.device.units;
  return options;
}

// The variant of a backend for a problem: of this name or, for "", its first.
inline Variant variant_of(const char* backend, const Problem& problem, const Options& options, const char* name = "") {
  Request request = request_of(options);
  if (*name != '\0') request.variant = name;
  return backend_named(backend)->variants(problem, request)[0];
}
inline plan::Costs costs_of(const char* backend, const Problem& problem, const Options& options, const char* name,
                            int32_t tiles) {
  const Variant variant = variant_of(backend, problem, options, name);
  return deltarelay::costs_of(problem, options, *backend_named(backend), variant, tiles);
}

inline std::vector<int32_t> chunks_of(const Problem& problem, int32_t chunk) {
  std::vector<int32_t> chunks;
  for (int64_t n = 0; n < problem.num_seqs; ++n) {
    chunks.push_back(static_cast<int32_t>((problem.length(n) + chunk - 1) / chunk));
  }
  return chunks;
}

}  // namespace deltarelay::test
