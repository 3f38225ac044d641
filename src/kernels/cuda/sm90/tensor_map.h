// Tensor maps: descriptions of a tensor of the call for TMA.
#pragma once
#include <cuda.h>

#include "kernels/cuda/args.h"

namespace deltarelay::cuda::sm90 {

// Maps [sequences, tokens, heads, 128] of 16-bit elements as {64 channels, tokens, 2 halves, heads, sequences}, in
// boxes of {64, box_tokens, box_halves, 1, 1}. A box arrives as swizzled half tiles, one behind the other. Elements of
// fp32: 32 channels, and 4 quarters in place of halves. Strides and address are multiples of 16 bytes. Throws
// Error(DR_DEVICE_ERROR).
struct MapRequest {
  TensorView tensor;
  int64_t sequences, tokens, heads;
  int32_t box_tokens, box_halves;
  int32_t halves = 2;  // of the numbers of a row: 128 bytes each
};
CUtensorMap make_map(const MapRequest& request);

// Maps [sequences, tokens, heads] in fp32 with neighbouring heads as {heads, tokens, 1, 1, sequences}, in boxes of
// {kNumbersInRow, box_tokens, 1, 1, 1}: rows of 16 bytes, the least that TMA copies. can_copy_numbers tests that
// strides and address are multiples of 16 bytes.
constexpr int kNumbersInRow = 4;
bool can_copy_numbers(const TensorView& tensor);
CUtensorMap make_number_map(const MapRequest& request);

}  // namespace deltarelay::cuda::sm90
