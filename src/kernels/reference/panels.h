// Panels: columns of a state that advance together, and products with them in double.
#pragma once
#include <algorithm>
#include <cstdint>

namespace deltarelay::reference {

// Columns of a panel lie side by side. Their sums stay in registers, and 128 x 32 doubles are 32 KB, which fits any L1.
constexpr int32_t kPanel = 32;

constexpr int32_t panels_of(int32_t columns) { return (columns + kPanel - 1) / kPanel; }

// out += factor a b for one row a [n], a panel b [n, kPanel] and one row out [kPanel].
inline void multiply_add(int32_t n, double factor, const double* __restrict a, const double* __restrict b,
                         double* __restrict out) {
  double sum[kPanel] = {};
  for (int32_t i = 0; i < n; ++i) {
    for (int32_t c = 0; c < kPanel; ++c) sum[c] += a[i] * b[i * kPanel + c];
  }
  for (int32_t c = 0; c < kPanel; ++c) out[c] += factor * sum[c];
}

// out [rows, kPanel] += factor a b for a matrix a [rows, n], whose rows are `stride` apart, and a panel b [n, kPanel].
inline void multiply_add(int32_t rows, int32_t n, double factor, const double* a, int32_t stride, const double* b,
                         double* out) {
  for (int32_t r = 0; r < rows; ++r)
    multiply_add(n, factor, a + static_cast<int64_t>(r) * stride, b, out + static_cast<int64_t>(r) * kPanel);
}

// The same for a lower triangular a [rows, rows]: what stands above its diagonal is not read.
inline void multiply_add_lower(int32_t rows, double factor, const double* a, int32_t stride, const double* b,
                               double* out) {
  for (int32_t r = 0; r < rows; ++r)
    multiply_add(r + 1, factor, a + static_cast<int64_t>(r) * stride, b, out + static_cast<int64_t>(r) * kPanel);
}

}  // namespace deltarelay::reference
