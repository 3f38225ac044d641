// The GPUs of this machine, as far as planning asks about them. Declared here without a CUDA header and defined in
// src/run: by the CUDA runtime, or as "none" in a build without it. None of these prints, fails or starts a context;
// without a driver or a GPU there simply is none.
#pragma once
#include <cstdint>
#include <string>

namespace deltarelay {

// What the CUDA runtime says about one GPU.
struct CudaFacts {
  std::string model;  // "NVIDIA H200"
  int32_t units = 0;  // multiprocessors
  int32_t compute_capability = 0;
  int64_t shared_bytes = 0;  // per multiprocessor
  int64_t l2_bytes = 0;
};

int32_t cuda_device_count();
int32_t cuda_current_device();  // of the calling thread; -1: none
CudaFacts cuda_facts(int32_t ordinal);

// Version of the CUDA runtime that is linked in, and the architectures of the kernels: "sm_90a, portable 80-real
// 80-virtual (CUDA 13.0)"; "none" without.
std::string cuda_build_text();

}  // namespace deltarelay
