// Tensors on the device for kernels that run without the library: filled, hashed, copied, timed.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "device.cuh"

namespace deltarelay::alone {

using Element = __nv_bfloat16;

enum class Fill { kNormal, kLogGate, kStrength };

template <class T>
__global__ void fill_kernel(T* data, size_t count, Fill fill, float scale, unsigned stream) {
  for (size_t i = blockIdx.x * size_t{256} + threadIdx.x; i < count; i += gridDim.x * size_t{256}) {
    const float x = normal_of(i, stream);
    const float value = fill == Fill::kNormal    ? scale * x
                        : fill == Fill::kLogGate ? -scale * log1pf(expf(-x))
                                                 : 1.0f / (1.0f + expf(-x));
    data[i] = static_cast<T>(value);
  }
}

__device__ inline unsigned bits_of(Element x) { return __bfloat16_as_ushort(x); }
__device__ inline unsigned bits_of(float x) { return __float_as_uint(x); }

template <class T>
__global__ void sum_kernel(const T* data, size_t count, unsigned long long* hash, double* sum) {
  unsigned long long bits = 0;
  double total = 0.0;
  for (size_t i = blockIdx.x * size_t{256} + threadIdx.x; i < count; i += gridDim.x * size_t{256}) {
    bits += (i * 2654435761u + 12345) * (bits_of(data[i]) + 1ull);
    total += fabs(static_cast<double>(static_cast<float>(data[i])));
  }
  atomicAdd(hash, bits);
  atomicAdd(sum, total);
}

// Device memory of one tensor.
template <class T>
class Array {
 public:
  explicit Array(size_t count) : count_(count) { require(cudaMalloc(&data_, count * sizeof(T)), "cudaMalloc"); }
  ~Array() { cudaFree(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  Array& fill(Fill how, unsigned stream, float scale = 1.0f) {
    fill_kernel<<<2048, 256>>>(data_, count_, how, scale, stream);
    return *this;
  }
  Array& poison() {
    require(cudaMemset(data_, 0xff, count_ * sizeof(T)), "cudaMemset");
    return *this;
  }
  T* data() const { return data_; }
  size_t count() const { return count_; }

 private:
  T* data_ = nullptr;
  size_t count_;
};

template <class T>
std::vector<T> copied(const Array<T>& of) {
  std::vector<T> host(of.count());
  require(cudaMemcpy(host.data(), of.data(), of.count() * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return host;
}

// Equal bits have equal hashes.
struct Content {
  unsigned long long hash = 0;
  double sum = 0.0;  // of magnitudes
};
template <class T>
Content content_of(const Array<T>& of) {
  Array<unsigned long long> hash(1);
  Array<double> sum(1);
  require(cudaMemset(hash.data(), 0, sizeof(unsigned long long)), "cudaMemset");
  require(cudaMemset(sum.data(), 0, sizeof(double)), "cudaMemset");
  sum_kernel<<<512, 256>>>(of.data(), of.count(), hash.data(), sum.data());
  return {copied(hash)[0], copied(sum)[0]};
}

// Differences from what is expected: rms over rms.
struct Error {
  double difference = 0.0, size = 0.0;
  void add(double found, double expected) {
    difference += (found - expected) * (found - expected);
    size += expected * expected;
  }
  double value() const { return size > 0.0 ? std::sqrt(difference / size) : std::sqrt(difference); }
};

// Milliseconds of a launch in series of kLaunches without a pause, after as many series to warm up.
struct Series {
  double median = 0.0, least = 0.0;
};
template <int kLaunches, int kSeries, class Launch>
Series time_series(const Launch& launch) {
  cudaEvent_t marks[2 * kSeries + 1];
  for (cudaEvent_t& mark : marks) require(cudaEventCreate(&mark), "cudaEventCreate");
  for (int i = 0; i <= 2 * kSeries; ++i) {
    for (int j = 0; i > 0 && j < kLaunches; ++j) launch();
    require(cudaEventRecord(marks[i]), "cudaEventRecord");
  }
  require(cudaDeviceSynchronize(), "the kernel");
  std::vector<float> times;
  for (int i = kSeries; i < 2 * kSeries; ++i) {
    float ms = 0.0f;
    require(cudaEventElapsedTime(&ms, marks[i], marks[i + 1]), "cudaEventElapsedTime");
    times.push_back(ms / kLaunches);
  }
  for (cudaEvent_t mark : marks) cudaEventDestroy(mark);
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[0]};
}

}  // namespace deltarelay::alone
