// A plan in words, as JSON, and as the line that fixes its bits. Worked out when asked for, so that making a plan stays
// cheap.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "plan/options.h"
#include "plan/plan.h"
#include "problem/problem.h"

namespace deltarelay {

struct Candidate {  // something the planner weighed
  std::string what;
  int64_t predicted_ns = 0;
  std::string verdict;  // "chosen", "slower", ...
};

struct Declined {
  std::string backend;
  std::string reason;
};

// What the planner weighed.
std::vector<Candidate> candidates_of(const Plan& plan);
// Why other backends than the chosen one declined, or were not asked.
std::vector<Declined> declined_of(const Problem& problem, const Options& options, const Backend* chosen);
inline std::vector<Declined> declined_of(const Plan& plan) {
  return declined_of(plan.problem, plan.options, plan.backend);
}

std::string describe_text(const Plan& plan);
std::string describe_json(const Plan& plan);
std::string describe_signature(const Plan& plan);
std::string way_text(const Plan& plan);  // " (fused)", for words; "" where there is one variant

}  // namespace deltarelay
