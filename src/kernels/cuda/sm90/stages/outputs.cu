#include "kernels/cuda/launch/launch.h"
#include "kernels/cuda/sm90/stages/outputs.cuh"

namespace deltarelay::cuda::sm90 {
namespace {

using Kernel = void(OutputsMaps, OutputsArgs);

template <class Element>
Kernel* kernel_of(bool scores, bool key_major) {
  if (scores)
    return key_major ? outputs::outputs_kernel<Element, true, true> : outputs::outputs_kernel<Element, true, false>;
  return key_major ? outputs::outputs_kernel<Element, false, true> : outputs::outputs_kernel<Element, false, false>;
}
Kernel* kernel_of(DType dtype, bool scores, bool key_major) {
  return dtype == DType::kBf16 ? kernel_of<__nv_bfloat16>(scores, key_major) : kernel_of<__half>(scores, key_major);
}

}  // namespace

cudaError_t launch_outputs(const OutputsMaps& maps, const OutputsArgs& args, DType dtype, cudaStream_t stream) {
  return launch_dependent(kernel_of(dtype, !args.has_aqk, args.key_major), dim3(args.ctas), outputs::kThreads,
                          sizeof(outputs::Shared), stream, maps, args);
}

cudaError_t load_outputs() {
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    for (const bool scores : {false, true}) {
      for (const bool key_major : {false, true}) {
        Kernel* const kernel = kernel_of(dtype, scores, key_major);
        cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                                  cudaSharedmemCarveoutMaxShared);
        if (status == cudaSuccess) status = load_kernel(kernel, sizeof(outputs::Shared));
        if (status != cudaSuccess) return status;
      }
    }
  }
  return cudaSuccess;
}

}  // namespace deltarelay::cuda::sm90
