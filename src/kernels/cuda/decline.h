// Reasons why a GPU backend declines: the argument, what the backend takes, what it found. Plain C++: a plan for a GPU
// that is not here is declined for the same reasons.
#pragma once
#include <cstdint>
#include <string>

#include "kernels/backend.h"

namespace deltarelay::cuda {

inline std::string found(const std::string& argument, const std::string& expected, const std::string& actual) {
  return argument + ": expected " + expected + ", found " + actual;
}

// "8.0" for 80.
inline std::string capability_text(int32_t capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

// What every GPU backend declines.
inline std::string decline_request(const Request& request) {
  if (request.device_kind != DR_DEVICE_CUDA) {
    return found("device", "a CUDA device", "a CPU (plans for a GPU that is not here can be made and read)");
  }
  if (request.isa != nullptr) return found("isa", "none (instruction sets are of CPUs)", request.isa);
  if (request.num_columns > 0) {
    return found("columns", "all value columns", "a list of " + std::to_string(request.num_columns));
  }
  return {};
}

// For a backend that has the forward alone.
inline std::string decline_operation(const Problem& problem) {
  return problem.op == Op::kForward ? "" : found("op", name_of(Op::kForward), name_of(problem.op));
}

// What every GPU backend declines of a stage.
inline std::string decline_stage(const Problem& problem, const Request& request) {
  if (request.cut && problem.op != Op::kStatePass) {
    return found("segments", "auto or off (of the stages only state-pass can be cut)",
                 std::string("a forced cut of ") + name_of(problem.op));
  }
  if (request.variant != nullptr) return found("variant", "none (stages have one)", request.variant);
  return {};
}

// For a backend without reduced-precision products.
inline std::string decline_math(const Request& request) {
  return request.math == DR_MATH_DEFAULT ? "" : found("math", "default", "tf32");
}

// For a library built without CUDA, after every other check has passed.
inline std::string decline_without_kernels(const Request& request) {
  return request.here ? "device: expected one that is not here, this library was built without CUDA kernels" : "";
}

}  // namespace deltarelay::cuda
