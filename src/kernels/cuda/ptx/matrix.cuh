// Matrix fragments of one warp: ldmatrix, stmatrix, mma.sync.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/ptx/number.cuh"

namespace deltarelay::cuda {

// A 16 x 16 block of 16-bit numbers in the layout of an A operand. An fp32 accumulator has the same layout.
// Lane l holds rows l / 4 and l / 4 + 8, columns 2 (l % 4) + {0, 1} and those + 8:
// reg[0] (row, col), reg[1] (row + 8, col), reg[2] (row, col + 8), reg[3] (row + 8, col + 8).
struct Fragment {
  uint32_t reg[4];
};

__device__ __forceinline__ Fragment load_matrix(uint32_t address) {
  Fragment f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(f.reg[0]), "=r"(f.reg[1]), "=r"(f.reg[2]), "=r"(f.reg[3])
               : "r"(address)
               : "memory");
  return f;
}
__device__ __forceinline__ Fragment load_matrix_transposed(uint32_t address) {
  Fragment f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(f.reg[0]), "=r"(f.reg[1]), "=r"(f.reg[2]), "=r"(f.reg[3])
               : "r"(address)
               : "memory");
  return f;
}
__device__ __forceinline__ void store_matrix(uint32_t address, const Fragment& f) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(f.reg[0]),
               "r"(f.reg[1]), "r"(f.reg[2]), "r"(f.reg[3])
               : "memory");
}
__device__ __forceinline__ void store_matrix_transposed(uint32_t address, const Fragment& f) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(f.reg[0]),
               "r"(f.reg[1]), "r"(f.reg[2]), "r"(f.reg[3])
               : "memory");
}

// Transposes an 8 x 8 block of 16-bit numbers; lane l holds row l / 4, columns 2 (l % 4) + {0, 1}. This turns a packed
// accumulator into a B operand.
__device__ __forceinline__ uint32_t transpose_block(uint32_t block) {
  uint32_t transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(block));
  return transposed;
}

// d[16 x 8] += a[16 x 16] b[16 x 8]. Two registers hold b: rows 2 (l % 4) + {0, 1} and those + 8 of column l / 4.
template <class Element>
__device__ __forceinline__ void mma(float (&d)[4], const Fragment& a, uint32_t b0, uint32_t b1);

template <>
__device__ __forceinline__ void mma<__nv_bfloat16>(float (&d)[4], const Fragment& a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.reg[0]), "r"(a.reg[1]), "r"(a.reg[2]), "r"(a.reg[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma<__half>(float (&d)[4], const Fragment& a, uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a.reg[0]), "r"(a.reg[1]), "r"(a.reg[2]), "r"(a.reg[3]), "r"(b0), "r"(b1));
}

// d[16 x 8] += (columns 0-7 of a) b[8 x 8].
template <class Element>
__device__ __forceinline__ void mma_half(float (&d)[4], const Fragment& a, uint32_t b);

template <>
__device__ __forceinline__ void mma_half<__nv_bfloat16>(float (&d)[4], const Fragment& a, uint32_t b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a.reg[0]), "r"(a.reg[1]), "r"(b));
}
template <>
__device__ __forceinline__ void mma_half<__half>(float (&d)[4], const Fragment& a, uint32_t b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a.reg[0]), "r"(a.reg[1]), "r"(b));
}

// fp32 rounded to tf32, which has 11 significant bits.
__device__ __forceinline__ uint32_t as_tf32(float x) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}

// d[16 x 8] += a[16 x 8] b[8 x 8] in tf32, with row = l / 4 and k = l % 4.
// a: (row, k), (row + 8, k), (row, k + 4), (row + 8, k + 4). b: rows l % 4 and l % 4 + 4 of column l / 4.
__device__ __forceinline__ void mma_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Block `block` (16 columns, 8 numbers a lane) of an accumulator as an A operand.
template <class Element, int kCount>
__device__ __forceinline__ Fragment pack_block(const float (&values)[kCount], int block) {
  Fragment f;
#pragma unroll
  for (int r = 0; r < 4; ++r) f.reg[r] = Pair<Element>::pack(values[8 * block + 2 * r], values[8 * block + 2 * r + 1]);
  return f;
}

}  // namespace deltarelay::cuda
