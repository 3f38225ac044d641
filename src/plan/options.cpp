// dr_options: every rule once.
#include "plan/options.h"

#include <cstddef>
#include <cstring>
#include <string>

#include "plan/backends.h"
#include "plan/devices/cuda_devices.h"
#include "plan/devices/devices.h"
#include "plan/search/policies.h"
#include "problem/status.h"
#include "problem/struct_size.h"

namespace deltarelay {
namespace {

constexpr int32_t kMostThreads = 4096;  // far beyond any machine; a larger number is a mistake, not a wish
constexpr int32_t kMostUnits = 1 << 16;
constexpr float kLeastCarryLogDecay = -80.0f;  // e^-80 / 256 is above the least normal number of fp32
constexpr float kCarryLogDecay = -16.0f;       // 1.1e-7, the rounding of fp32

void expect_range(const char* argument, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return;
  fail_invalid(argument, std::to_string(least) + " to " + std::to_string(most), std::to_string(value));
}

void expect_not_negative(const char* argument, int64_t value) {
  if (value < 0) fail_invalid(argument, "at least 0", std::to_string(value));
}

void expect_zero(const char* argument, int64_t value) {
  if (value != 0) fail_invalid(argument, "0", std::to_string(value));
}

void check_costs(const std::string& name, const dr_costs& c) {
  auto at_least = [&](const char* field, int32_t value, int32_t least) {
    if (value < least) fail_invalid(name + "." + field, "at least " + std::to_string(least), std::to_string(value));
  };
  at_least("chunk", c.chunk, 1);
  at_least("emit_ns", c.emit_ns, 1);
  at_least("summarize_ns", c.summarize_ns, 1);
  auto part_of = [&](const char* field, int32_t value, const char* whole, int32_t most) {
    at_least(field, value, 0);
    if (value > most) fail_invalid(name + "." + field, std::string("at most ") + whole, std::to_string(value));
  };
  part_of("local_ns", c.local_ns, "emit_ns", c.emit_ns);
  part_of("summarize_local_ns", c.summarize_local_ns, "summarize_ns", c.summarize_ns);
  at_least("carry_ns", c.carry_ns, 0);
  at_least("carry_unit_ns", c.carry_unit_ns, 0);
  at_least("split_ns", c.split_ns, 0);
  at_least("item_ns", c.item_ns, 0);
  at_least("emit_bytes", c.emit_bytes, 0);
  at_least("summarize_bytes", c.summarize_bytes, 0);
  at_least("prepare_ns", c.prepare_ns, 0);
}

std::string cost_names() {
  std::string names;
  for (int32_t row = 0; row < num_cost_rows(); ++row) {
    const CostRow at = cost_row_at(row);
    names += (names.empty() ? "'" : ", '") + std::string(at.backend->name) + (*at.variant != '\0' ? " " : "") +
             at.variant + "'";
  }
  return names;
}

// The caller's costs in the place of the library's. Entries of a caller with another header have another size.
void take_costs(const dr_options& request, Options& options) {
  options.costs = costs_of_device(options.device);
  constexpr int32_t kMost = 1024;  // far more than there are backends, variants, rules and operations
  expect_range("options.num_costs", request.num_costs, 0, kMost);
  if (request.num_costs > 0 && request.costs == nullptr)
    fail_invalid("options.costs", "a pointer while num_costs is not 0", "NULL");
  const auto* bytes = reinterpret_cast<const std::byte*>(request.costs);
  for (int32_t i = 0; i < request.num_costs; ++i) {
    const std::string name = "options.costs[" + std::to_string(i) + "]";
    const size_t step = request.costs->size;
    dr_costs c;  // copied by its bytes: a size that is no multiple of 4 puts entries at odd addresses
    copy_input(name.c_str(), bytes + i * step, &c, kSizing<dr_costs>);
    if (c.size != step) fail_invalid(name + ".size", std::to_string(step) + ", as the first", std::to_string(c.size));
    check_text(name + ".backend", c.backend);
    check_text(name + ".variant", c.variant);
    check_text(name + ".measured_on", c.measured_on);
    const int32_t row = cost_row(c.backend, c.variant);
    if (row < 0)
      fail_invalid(name, "costs of one of " + cost_names(), "'" + std::string(c.backend) + " " + c.variant + "'");
    expect_range((name + ".rule").c_str(), c.rule, DR_KDA, DR_GDN);
    expect_range((name + ".op").c_str(), c.op, DR_FORWARD, DR_FORWARD);
    check_costs(name, c);
    options.costs.at(row, static_cast<Rule>(c.rule)) = c;
  }
}

void check_device(const dr_device& device) {
  expect_range("options.device.kind", device.kind, DR_DEVICE_CPU, DR_DEVICE_CUDA);
  check_text("options.device.name", device.name);
  check_text("options.device.model", device.model);
  expect_range("options.device.units", device.units, 1, device.kind == DR_DEVICE_CPU ? kMostThreads : kMostUnits);
  expect_not_negative("options.device.l1_bytes", device.l1_bytes);
  expect_not_negative("options.device.l2_bytes", device.l2_bytes);
  expect_not_negative("options.device.bytes_per_ns", device.bytes_per_ns);
  expect_not_negative("options.device.flops_per_ns", device.flops_per_ns);
}

std::string backend_names() {
  std::string names;
  for (int32_t i = 0; i < backend_count(); ++i) names += (i ? ", " : "") + std::string(backend_at(i)->name);
  return names;
}

std::string policy_names() {
  std::string names = kOwnPolicy;
  for (int32_t i = 0; i < policy_count(); ++i) names += ", " + std::string(policy_name(i));
  return names;
}

void take_isa(const dr_options& request, Options& options) {
  if (request.isa == nullptr || *request.isa == '\0') return;
  options.isa = request.isa;
  if (cpu_isa_find(request.isa) >= 0) return;
  std::string names;
  for (int32_t i = 0; i < cpu_isa_count(); ++i) names += (i ? ", " : "") + std::string(cpu_isa_name(i));
  fail_unsupported("options.isa: expected one that this machine has (" + names + "), found '" + options.isa + "'");
}

void take_variant(const dr_options& request, Options& options) {
  if (request.variant == nullptr || *request.variant == '\0') return;
  options.variant = request.variant;
  std::string names;
  for (int32_t b = 0; b < backend_count(); ++b) {
    for (const char* name : backend_at(b)->variant_names) {
      if (name == options.variant) return;
      names += (names.empty() ? "" : ", ") + std::string(name) + " (" + backend_at(b)->name + ")";
    }
  }
  fail_invalid("options.variant", "one of " + names, "'" + options.variant + "'");
}

void take_segments(const dr_options& request, Options& options) {
  expect_range("options.segments", request.segments, DR_SEGMENTS_AUTO, DR_SEGMENTS_LENGTH);
  options.segments = request.segments;
  if (request.segments == DR_SEGMENTS_COUNT || request.segments == DR_SEGMENTS_LENGTH) {
    if (request.segment_value < 1) {
      fail_invalid(
          "options.segment_value",
          request.segments == DR_SEGMENTS_COUNT ? "a number of segments, at least 1" : "a length in tokens, at least 1",
          std::to_string(request.segment_value));
    }
    options.segment_value = request.segment_value;
  }
  if (request.segments == DR_SEGMENTS_COUNT && request.segment_value == 1) options.segments = DR_SEGMENTS_OFF;
  options.invariant = request.invariant != 0;
  if (options.invariant && options.segments == DR_SEGMENTS_COUNT) {
    fail_invalid("options.segments",
                 "auto, off or a length while options.invariant is set (a count cuts by the length of a sequence)",
                 std::to_string(request.segment_value) + " segments");
  }
}

void take_policy(const dr_options& request, Options& options) {
  options.policy = request.policy != nullptr ? request.policy : kOwnPolicy;
  if (options.policy == kOwnPolicy) return;
  if (policy_find(options.policy) < 0)
    fail_invalid("options.policy", "one of " + policy_names(), "'" + options.policy + "'");
  if (options.segments != DR_SEGMENTS_AUTO || options.invariant) {
    fail_invalid("options.policy", std::string(kOwnPolicy) + " while segments are forced or invariant is set",
                 "'" + options.policy + "'");
  }
}

void take_columns(const dr_options& request, const Problem& problem, Options& options) {
  expect_range("options.num_columns", request.num_columns, 0, problem.dv);
  if (request.num_columns == 0) return;
  if (request.columns == nullptr) fail_invalid("options.columns", "a pointer while num_columns is not 0", "NULL");
  options.columns.assign(request.columns, request.columns + request.num_columns);
  int32_t last = -1;
  for (const int32_t column : options.columns) {
    if (column <= last || column >= problem.dv) {
      fail_invalid("options.columns", "increasing value columns below " + std::to_string(problem.dv),
                   std::to_string(column) + (last >= 0 ? " after " + std::to_string(last) : ""));
    }
    last = column;
  }
}

// What is dropped is bounded only where no token makes a state grow: keys of length 1 at most, strengths of 0 to 2,
// gates of 0 at most (which every gate form has).
void take_carry(const dr_options& request, const Problem& problem, Options& options) {
  expect_range("options.carry", request.carry, DR_CARRY_EXACT, DR_CARRY_TRUNCATED);
  options.carry = static_cast<CarryMode>(request.carry);
  const float log_decay = request.carry_log_decay;
  if (options.carry == CarryMode::kExact) {
    if (log_decay != 0.0f)
      fail_invalid("options.carry_log_decay", "0 while options.carry is exact", std::to_string(log_decay));
    return;
  }
  if (log_decay != 0.0f && !(log_decay >= kLeastCarryLogDecay && log_decay < 0.0f))
    fail_invalid("options.carry_log_decay", "0 (which stands for -16) or a number from -80 to below 0",
                 std::to_string(log_decay));
  if (!problem.l2norm)
    fail_invalid("options.carry", "exact while problem.l2norm is 0 (a long key makes a state grow)", "truncated");
  if (problem.beta_form == BetaForm::kValue)
    fail_invalid("options.carry",
                 "exact while problem.beta_form is the write strength itself (one above 2 makes a state grow)",
                 "truncated");
  options.carry_log_decay = log_decay != 0.0f ? log_decay : kCarryLogDecay;
}

// The device that the options describe. Without one it is this machine: its CPU, or, for a CUDA backend, its current
// GPU.
void take_device(const dr_device* given, const std::string& backend, Options& options) {
  if (given != nullptr) {
    const dr_device device = take_input("options.device", *given);
    check_device(device);
    options.cuda_device = cuda_ordinal(device);
    // Facts of a CPU decide how work is cut and how many threads do it: any CPU can do as they say.
    options.device_is_here = options.cuda_device >= 0 || device.kind == DR_DEVICE_CPU;
    options.device = device;
    return;
  }
  const Backend* named = backend_named(backend);
  if (named != nullptr && named->device_kind == DR_DEVICE_CUDA) options.cuda_device = cuda_current_device();
  options.device = options.cuda_device >= 0 ? cuda_device(options.cuda_device) : device_at(0);
}

}  // namespace

Options validate_options(const dr_options* given, const Problem& problem, const char* asked) {
  Options options;
  options.policy = kOwnPolicy;
  if (given == nullptr) {
    take_device(nullptr, asked, options);
    options.costs = costs_of_device(options.device);
    options.threads = options.device.units;
    return options;
  }
  const dr_options copy = take_input("options", *given);
  const dr_options* const request = &copy;
  take_segments(*request, options);
  take_policy(*request, options);
  if (request->backend != nullptr && *request->backend != '\0') {
    options.backend = request->backend;
    if (backend_named(options.backend) == nullptr) {
      fail_invalid("options.backend", "one of " + backend_names(), "'" + options.backend + "'");
    }
  }
  take_isa(*request, options);
  take_variant(*request, options);
  expect_range("options.math", request->math, DR_MATH_DEFAULT, DR_MATH_TF32);
  options.math = request->math;
  take_device(request->device, *asked != '\0' ? std::string(asked) : options.backend, options);
  take_costs(*request, options);
  expect_range("options.threads", request->threads, 0, kMostThreads);
  options.threads = request->threads > 0 ? request->threads : options.device.units;
  take_carry(*request, problem, options);
  take_columns(*request, problem, options);
  expect_zero("options.reserved", request->reserved);
  options.parallel_for = request->parallel_for;
  options.parallel_pool = request->parallel_pool;
  return options;
}

}  // namespace deltarelay
