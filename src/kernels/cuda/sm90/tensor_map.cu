#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>

#include "kernels/cuda/sm90/record.h"
#include "kernels/cuda/sm90/tensor_map.h"
#include "kernels/cuda/status.h"

namespace deltarelay::cuda::sm90 {
namespace {

// The driver's function, fetched at run time: the library loads where there is no driver.
PFN_cuTensorMapEncodeTiled_v12000 find_encoder() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found;
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found),
        "cudaGetDriverEntryPointByVersion(cuTensorMapEncodeTiled)");
  if (entry == nullptr) throw Error(DR_DEVICE_ERROR, "cuTensorMapEncodeTiled: expected in the driver, found none");
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
}

}  // namespace

CUtensorMap make_map(const MapRequest& request) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encoder();
  constexpr cuuint64_t kElement = 2, kLeastStride = 16;  // bytes
  const TensorView& tensor = request.tensor;
  // An axis of one element needs no stride, but the map wants a legal one.
  auto stride = [&](int64_t elements) { return std::max(static_cast<cuuint64_t>(elements) * kElement, kLeastStride); };
  const cuuint64_t sizes[5] = {kHalfWidth, static_cast<cuuint64_t>(request.tokens), 2,
                               static_cast<cuuint64_t>(request.heads), static_cast<cuuint64_t>(request.sequences)};
  const cuuint64_t strides[4] = {stride(tensor.token), kRowBytes, stride(tensor.head), stride(tensor.sequence)};
  const cuuint32_t box[5] = {kHalfWidth, static_cast<cuuint32_t>(request.box_tokens),
                             static_cast<cuuint32_t>(request.box_halves), 1, 1};
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  CUtensorMap map;
  const CUresult status =
      encode(&map, tensor.dtype == DType::kFp16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5,
             tensor.data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw Error(DR_DEVICE_ERROR, "cuTensorMapEncodeTiled: refused a tensor (CUresult " + std::to_string(status) + ")");
  }
  return map;
}

}  // namespace deltarelay::cuda::sm90
