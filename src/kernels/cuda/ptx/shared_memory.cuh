// Shared memory by 32-bit addresses: asynchronous copies into it, loads and stores of a few numbers.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/ptx/barrier.cuh"

namespace deltarelay::cuda {

// Copies 16 bytes (copy_word: 4 bytes) from global memory. Only the first `bytes` are read; the rest becomes 0. Both
// addresses are multiples of 16 (of 4). Bypasses L1: a multiprocessor reads this data once.
__device__ __forceinline__ void copy_piece(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_piece(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_word(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// Closes a group of this thread's copies; waits until at most kPending groups are in flight.
__device__ __forceinline__ void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ float load_float(uint32_t address) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
  return x;
}
__device__ __forceinline__ float2 load_pair(uint32_t address) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
  return x;
}
// The same, but the compiler may move it across other memory accesses.
__device__ __forceinline__ float2 load_pair_unordered(uint32_t address) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address));
  return x;
}
__device__ __forceinline__ float4 load_quad(uint32_t address) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(address)
               : "memory");
  return x;
}
__device__ __forceinline__ uint2 load_two(uint32_t address) {
  uint2 x;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(address) : "memory");
  return x;
}
__device__ __forceinline__ uint4 load_four(uint32_t address) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(address)
               : "memory");
  return x;
}
// A trivially copyable object, 16 bytes at a time.
template <class Object>
__device__ __forceinline__ Object load_object(uint32_t address) {
  static_assert(sizeof(Object) % 16 == 0 && std::is_trivially_copyable_v<Object>);
  uint4 four[sizeof(Object) / 16];
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(Object) / 16); ++i) four[i] = load_four(address + 16 * i);
  Object object;
  memcpy(&object, four, sizeof object);
  return object;
}
__device__ __forceinline__ void store_short(uint32_t address, uint16_t bits) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(bits) : "memory");
}
__device__ __forceinline__ void store_word(uint32_t address, uint32_t bits) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(bits) : "memory");
}

}  // namespace deltarelay::cuda
