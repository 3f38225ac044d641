#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>

#include "kernels/cuda/launch/status.h"
#include "kernels/cuda/sm90/record.h"
#include "kernels/cuda/sm90/tensor_map.h"

namespace deltarelay::cuda::sm90 {
namespace {

// The driver's function, looked up at run time: the library also loads without a driver.
PFN_cuTensorMapEncodeTiled_v12000 find_encoder() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found;
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found),
        "cudaGetDriverEntryPointByVersion(cuTensorMapEncodeTiled)");
  if (entry == nullptr) throw Error(DR_DEVICE_ERROR, "cuTensorMapEncodeTiled: expected in the driver, found none");
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
}

constexpr int64_t kLeastStride = 16;  // bytes

// In bytes. An axis of one element needs no stride, but the map requires a legal one.
cuuint64_t stride_of(int64_t elements, int64_t element_bytes) {
  return static_cast<cuuint64_t>(std::max(elements * element_bytes, kLeastStride));
}

// Five axes. Elements of the first are neighbours.
struct Axes {
  cuuint64_t sizes[5], strides[4];
  cuuint32_t box[5];
};
CUtensorMap encode_map(void* data, CUtensorMapDataType type, const Axes& axes, CUtensorMapSwizzle swizzle,
                       CUtensorMapL2promotion promotion) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encoder();
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  CUtensorMap map;
  const CUresult status = encode(&map, type, 5, data, axes.sizes, axes.strides, axes.box, steps,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw Error(DR_DEVICE_ERROR, "cuTensorMapEncodeTiled: refused a tensor (CUresult " + std::to_string(status) + ")");
  }
  return map;
}

}  // namespace

CUtensorMap make_map(const MapRequest& request) {
  const TensorView& tensor = request.tensor;
  const auto bytes = static_cast<int64_t>(size_of(tensor.dtype));
  const auto numbers = static_cast<cuuint32_t>(kRowBytes / bytes);
  const Axes axes = {
      .sizes = {numbers, static_cast<cuuint64_t>(request.tokens), static_cast<cuuint64_t>(request.halves),
                static_cast<cuuint64_t>(request.heads), static_cast<cuuint64_t>(request.sequences)},
      .strides = {stride_of(tensor.token, bytes), kRowBytes, stride_of(tensor.head, bytes),
                  stride_of(tensor.sequence, bytes)},
      .box = {numbers, static_cast<cuuint32_t>(request.box_tokens), static_cast<cuuint32_t>(request.box_halves), 1, 1}};
  const CUtensorMapDataType type = tensor.dtype == DType::kFp32   ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                   : tensor.dtype == DType::kFp16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                                  : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return encode_map(tensor.data, type, axes, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

bool can_copy_numbers(const TensorView& tensor) {
  auto whole = [](int64_t numbers) { return numbers * 4 % kLeastStride == 0; };
  return tensor.dtype == DType::kFp32 && tensor.head == 1 && tensor.token > 0 && whole(tensor.token) &&
         tensor.sequence >= 0 && whole(tensor.sequence) && reinterpret_cast<uintptr_t>(tensor.data) % kLeastStride == 0;
}

CUtensorMap make_number_map(const MapRequest& request) {
  const TensorView& tensor = request.tensor;
  const Axes axes = {.sizes = {static_cast<cuuint64_t>(request.heads), static_cast<cuuint64_t>(request.tokens), 1, 1,
                               static_cast<cuuint64_t>(request.sequences)},
                     .strides = {stride_of(tensor.token, 4), kLeastStride, kLeastStride, stride_of(tensor.sequence, 4)},
                     .box = {kNumbersInRow, static_cast<cuuint32_t>(request.box_tokens), 1, 1, 1}};
  return encode_map(tensor.data, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, axes, CU_TENSOR_MAP_SWIZZLE_NONE,
                    CU_TENSOR_MAP_L2_PROMOTION_NONE);
}
}  // namespace deltarelay::cuda::sm90
