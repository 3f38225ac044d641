// How the segment table of a call reaches a GPU: sent with kernel parameters when the plan knew the lengths, or written
// there by one thread block from the offsets that only the GPU can read. Either way nothing is allocated, copied from
// pageable memory or waited for, and a CUDA graph can capture it.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/search/team_table.h"
#include "problem/types.h"

namespace deltarelay::cuda {

// Puts `image` at `to` in device memory. The bytes travel in the parameters of the launches, so neither the image nor
// its plan has to outlive the call. `report` (may be nullptr) is set to 0.
void send_table(const std::vector<std::byte>& image, std::byte* to, uint32_t* report, cudaStream_t stream);

// A table whose lengths are on the device.
struct PlanTableArgs {
  plan::TableRequest request;
  plan::TeamTable table;
  unsigned char* scratch;  // of team_space
  const void* offsets;     // [num_seqs + 1]
  DType offsets_dtype;
  int32_t fold_bound;  // folds that carry's grid covers
  uint32_t* report;    // may be nullptr; set to 0 or DR_REPORT_OFFSETS
};
void plan_table(const PlanTableArgs& args, cudaStream_t stream);

// Loads the kernels of both onto the current device.
void load_table_kernels();

}  // namespace deltarelay::cuda
