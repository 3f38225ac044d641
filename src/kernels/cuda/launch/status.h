// Errors of the CUDA runtime and driver as exceptions of the library.
#pragma once
#include <cuda_runtime_api.h>

#include <string>

#include "problem/status.h"

namespace deltarelay::cuda {

// `call` names the function that returned `status`. Every result is checked as it is returned. cudaGetLastError would
// blame this library for an error that the caller left behind, or hide one from the caller.
inline void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  throw Error(DR_DEVICE_ERROR,
              std::string(call) + ": " + cudaGetErrorString(status) + " (" + cudaGetErrorName(status) + ")");
}

}  // namespace deltarelay::cuda
