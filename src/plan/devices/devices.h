// Devices that plans can be made for.
#pragma once
#include <cstdint>
#include <string>

#include "deltarelay/deltarelay.h"

namespace deltarelay {

// Known devices: 0 is this machine's CPU, then a table of GPUs, then the GPUs that are here as "cuda:0", "cuda:1", ...
// Only questions about the latter ask the CUDA runtime.
int32_t device_count();
dr_device device_at(int32_t index);
// "cuda" is the current GPU. Throws Error(DR_INVALID) with the names there are.
dr_device device_named(const std::string& name);
// The facts of a GPU that is here.
dr_device cuda_device(int32_t ordinal);
// Which GPU of this machine these facts describe, -1: none. Costs and bandwidth are free: a caller may know better.
int32_t cuda_ordinal(const dr_device& device);

}  // namespace deltarelay
