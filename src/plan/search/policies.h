// How other systems would cut the same sequences, as pure functions of lengths, heads and device: for comparison, and
// to hold the published tables against. Each gives whole multiples of its own chunk; none of them is used unless asked
// for by name.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace deltarelay {

int32_t policy_count();
const char* policy_name(int32_t index);
int32_t policy_find(const std::string& name);  // -1: unknown

struct PolicyRequest {
  std::vector<int64_t> lengths;  // tokens of each sequence
  int64_t heads = 1;             // value heads
  int64_t units = 1;             // multiprocessors
  int32_t compute_capability = 0;
};

// The pieces of one sequence: `pieces` of `tokens` each, the last one taking what is left. One piece: whole.
struct PolicyCut {
  int64_t tokens = 0;
  int64_t pieces = 1;
  bool operator==(const PolicyCut&) const = default;
};

// One entry per sequence, or none when the policy leaves the whole call as it is.
std::vector<PolicyCut> policy_cuts(int32_t policy, const PolicyRequest& request);

}  // namespace deltarelay
