// The cuda-sm80 backend of a library that was built without CUDA: plans for such a GPU can be made and read.
#include "kernels/cuda/decline.h"
#include "kernels/cuda/sm80/accepts.h"

namespace deltarelay {
namespace {

std::string decline_sm80(const Problem& problem, const Request& request) {
  const std::string reason = cuda::sm80::decline(problem, request);
  return reason.empty() ? cuda::decline_without_kernels(request) : reason;
}

}  // namespace

constinit const Backend kCudaSm80Backend = [] {
  Backend backend = cuda::sm80::planned_backend();
  backend.decline = decline_sm80;
  return backend;
}();

}  // namespace deltarelay
