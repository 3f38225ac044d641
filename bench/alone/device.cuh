// Shared by the programs of this folder: errors, random numbers, and the clock under the power limit.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace deltarelay::alone {

inline void require(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

// Numbers that never repeat and are never zero, because clocks depend on data.
__device__ inline float uniform_of(size_t index, unsigned stream) {
  uint64_t bits = index * 0x9e3779b97f4a7c15u + stream * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return static_cast<float>((bits ^ (bits >> 31)) >> 40) * 0x1p-24f;
}
__device__ inline float normal_of(size_t index, unsigned stream) {
  const float radius = sqrtf(-2.0f * logf(uniform_of(index, 2 * stream) + 1e-7f));
  return radius * cosf(6.2831853f * uniform_of(index, 2 * stream + 1));
}

inline int multiprocessors() {
  int units = 0;
  require(cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, 0), "cudaDeviceGetAttribute");
  return units;
}

// Records (time, clock) every millisecond until told to stop.
static __global__ void note_clock_kernel(unsigned long long* notes, int most, volatile int* stop, int* count) {
  constexpr unsigned long long kNanoseconds = 1000000;
  int i = 0;
  for (; i < most && *stop == 0; ++i) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    notes[2 * i] = begin;
    notes[2 * i + 1] = static_cast<unsigned long long>(clock64());
    do {
      __nanosleep(2000);
      asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - begin < kNanoseconds);
  }
  *count = i;
}

// Mean clock while other kernels run, measured on a multiprocessor that they leave free. The power limit lowers the
// clock within milliseconds, so a kernel of fewer cycles need not be faster. Cycles repeat to one in a thousand; times
// do not.
class ClockWatch {
 public:
  explicit ClockWatch(bool free) {
    if (!free) return;
    require(cudaHostAlloc(&notes_, kMost * 2 * sizeof(*notes_), cudaHostAllocMapped), "cudaHostAlloc");
    require(cudaHostAlloc(&words_, 2 * sizeof(int), cudaHostAllocMapped), "cudaHostAlloc");
    words_[0] = words_[1] = 0;
    require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    note_clock_kernel<<<1, 1, 0, stream_>>>(notes_, kMost, &words_[0], &words_[1]);
  }
  ~ClockWatch() {
    if (notes_ == nullptr) return;
    cudaStreamDestroy(stream_);
    cudaFreeHost(notes_);
    cudaFreeHost(words_);
  }
  ClockWatch(const ClockWatch&) = delete;
  ClockWatch& operator=(const ClockWatch&) = delete;

  // Returns MHz over the second half of the time since the start; 0 if nobody measured.
  double stop() {
    if (notes_ == nullptr) return 0.0;
    *static_cast<volatile int*>(&words_[0]) = 1;
    require(cudaStreamSynchronize(stream_), "the clock");
    const int last = words_[1] - 1, first = words_[1] / 2;
    if (last <= first) return 0.0;
    const double cycles = static_cast<double>(notes_[2 * last + 1] - notes_[2 * first + 1]);
    return 1e3 * cycles / static_cast<double>(notes_[2 * last] - notes_[2 * first]);
  }

 private:
  static constexpr int kMost = 20000;
  unsigned long long* notes_ = nullptr;
  int* words_ = nullptr;  // stop flag, number of records
  cudaStream_t stream_ = nullptr;
};

}  // namespace deltarelay::alone
