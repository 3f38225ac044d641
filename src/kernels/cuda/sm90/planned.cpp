// The cuda-sm90 backend of a library built without CUDA: it can make and read plans for such a GPU.
#include "kernels/cuda/decline.h"
#include "kernels/cuda/sm90/accepts.h"

namespace deltarelay {
namespace {

std::string decline_sm90(const Problem& problem, const Request& request) {
  const std::string reason = cuda::sm90::decline(problem, request);
  return reason.empty() ? cuda::decline_without_kernels(request) : reason;
}

}  // namespace

constinit const Backend kCudaSm90Backend = [] {
  Backend backend = cuda::sm90::planned_backend();
  backend.decline = decline_sm90;
  return backend;
}();

}  // namespace deltarelay
