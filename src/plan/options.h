// dr_options, validated once: strings owned, defaults resolved.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "deltarelay/deltarelay.h"
#include "kernels/backend.h"
#include "plan/devices/device_costs.h"
#include "problem/problem.h"

namespace deltarelay {

// The name of our own way to cut; others are presets of policies.h.
inline constexpr const char* kOwnPolicy = "deltarelay";

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
  request.unit_shared_bytes = options.device.l1_bytes;
  request.here = options.device_is_here;
  return request;
}

std::string carry_text(const Options& options);  // "exact", "truncated:-16"
inline const char* math_text(const Options& options) { return options.math == DR_MATH_TF32 ? "tf32" : "default"; }

}  // namespace deltarelay
