#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <new>
#include <utility>

#include "case/mix.h"
#include "check/device_memory.h"
#include "check/run_error.h"

namespace deltarelay::check::gpu {
namespace {

void expect(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // clears an error that is not sticky
  if (error == cudaErrorMemoryAllocation) throw std::bad_alloc();
  throw RunError(DR_DEVICE_ERROR, std::string("device: ") + call + ": " + cudaGetErrorString(error));
}

cudaStream_t stream_of(void* handle) { return static_cast<cudaStream_t>(handle); }

size_t size(int64_t bytes) { return static_cast<size_t>(bytes); }

// Returns a version such as "580.159.03" from the driver's management library. The runtime knows only the driver's
// CUDA.
std::string driver_version() {
  std::string version;
  if (void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    const auto initialise = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
    const auto query = reinterpret_cast<int (*)(char*, unsigned)>(dlsym(library, "nvmlSystemGetDriverVersion"));
    char text[96] = "";
    if (initialise != nullptr && query != nullptr && initialise() == 0 && query(text, sizeof text) == 0) version = text;
    dlclose(library);
  }
  if (!version.empty()) return version;
  int number = 0;
  expect(cudaDriverGetVersion(&number), "cudaDriverGetVersion");
  return "for CUDA " + std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

constexpr int kThreads = 256;

// A sum of mixed words does not depend on the order of addition.
__global__ void __launch_bounds__(kThreads)
    hash_kernel(const uint8_t* data, int64_t bytes, uint64_t* sum, uint64_t salt) {
  const int64_t words = (bytes + 3) / 4;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  uint64_t part = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words; i += stride) {
    uint64_t word = 0;
    if (4 * i + 4 <= bytes && reinterpret_cast<uintptr_t>(data) % 4 == 0) {
      word = reinterpret_cast<const uint32_t*>(data)[i];
    } else {
      for (int64_t b = 4 * i; b < bytes && b < 4 * i + 4; ++b) word = word << 8 | data[b];
    }
    part += cases::mix(cases::mix(static_cast<uint64_t>(i) + (salt << 48)) ^ word);
  }
  for (int offset = 16; offset > 0; offset /= 2) part += __shfl_down_sync(0xffffffffu, part, offset);
  if (threadIdx.x % 32 == 0) atomicAdd(reinterpret_cast<unsigned long long*>(sum), part);
}

__global__ void pause_kernel(uint64_t nanoseconds) {
  uint64_t start = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  uint64_t now = start;
  while (now - start < nanoseconds) asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
}

class Event {
 public:
  Event() { expect(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(const Stream& stream) { expect(cudaEventRecord(event_, stream_of(stream.handle())), "cudaEventRecord"); }
  double milliseconds_since(const Event& before) const {
    float milliseconds = 0;
    expect(cudaEventElapsedTime(&milliseconds, before.event_, event_), "cudaEventElapsedTime");
    return milliseconds;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Time the host may need to queue one graph and one mark. A pause of this length per replay keeps the host ahead.
constexpr double kLaunchMilliseconds = 0.02;

}  // namespace

std::string why_absent() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return std::string("no GPU: ") + cudaGetErrorString(error);
  }
  return count > 0 ? "" : "no GPU";
}

void require() {
  static const std::string why = why_absent();
  if (!why.empty()) throw RunError(DR_UNSUPPORTED, "device: expected a GPU to run on, found none (" + why + ")");
}

Facts facts() {
  require();
  cudaDeviceProp properties{};
  expect(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  int runtime = 0;
  expect(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  Facts facts;
  facts.name = properties.name;
  facts.driver = driver_version();
  facts.cuda = std::to_string(runtime / 1000) + "." + std::to_string(runtime % 1000 / 10);
  facts.units = properties.multiProcessorCount;
  facts.l2_bytes = properties.l2CacheSize;
  return facts;
}

int64_t free_bytes() {
  size_t free = 0;
  size_t total = 0;
  expect(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<int64_t>(free);
}

Memory::Memory(int64_t bytes) : bytes_(bytes) {
  void* data = nullptr;
  expect(cudaMalloc(&data, size(std::max<int64_t>(bytes, 1))), "cudaMalloc");
  data_ = static_cast<std::byte*>(data);
}

Memory::~Memory() { cudaFree(data_); }

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void synchronize() { expect(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

void upload(void* device, const void* host, int64_t bytes) {
  synchronize();
  expect(cudaMemcpy(device, host, size(bytes), cudaMemcpyHostToDevice), "cudaMemcpy to the GPU");
  synchronize();
}

void download(void* host, const void* device, int64_t bytes) {
  synchronize();
  expect(cudaMemcpy(host, device, size(bytes), cudaMemcpyDeviceToHost), "cudaMemcpy from the GPU");
}

void copy(void* device, const void* from_device, int64_t bytes) {
  synchronize();
  expect(cudaMemcpy(device, from_device, size(bytes), cudaMemcpyDeviceToDevice), "cudaMemcpy on the GPU");
  synchronize();
}

void copy_rows(void* device, int64_t pitch, const void* from_device, int64_t from_pitch, int64_t width, int64_t rows) {
  if (width == 0 || rows == 0) return;
  synchronize();
  expect(cudaMemcpy2D(device, size(pitch), from_device, size(from_pitch), size(width), size(rows),
                      cudaMemcpyDeviceToDevice),
         "cudaMemcpy2D on the GPU");
  synchronize();
}

void fill(void* device, uint8_t value, int64_t bytes) {
  synchronize();
  expect(cudaMemset(device, value, size(bytes)), "cudaMemset");
  synchronize();
}

Stream::Stream() {
  require();
  cudaStream_t stream = nullptr;
  expect(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  handle_ = stream;
}

Stream::~Stream() { cudaStreamDestroy(stream_of(handle_)); }

void Stream::synchronize() const { expect(cudaStreamSynchronize(stream_of(handle_)), "cudaStreamSynchronize"); }

void Stream::fill(void* device, uint8_t value, int64_t bytes) const {
  expect(cudaMemsetAsync(device, value, size(bytes), stream_of(handle_)), "cudaMemsetAsync");
}

void Stream::copy(void* device, const void* from_device, int64_t bytes) const {
  expect(cudaMemcpyAsync(device, from_device, size(bytes), cudaMemcpyDeviceToDevice, stream_of(handle_)),
         "cudaMemcpyAsync");
}

void Stream::add_hash(const void* device, int64_t bytes, uint64_t* sum, uint64_t salt) const {
  if (bytes == 0) return;
  constexpr int64_t kMostBlocks = 1024;
  const auto blocks = static_cast<unsigned>(std::min((bytes / 4 + kThreads) / kThreads, kMostBlocks));
  hash_kernel<<<blocks, kThreads, 0, stream_of(handle_)>>>(static_cast<const uint8_t*>(device), bytes, sum, salt);
  expect(cudaGetLastError(), "hash_kernel");
}

void Stream::pause(double milliseconds) const {
  pause_kernel<<<1, 1, 0, stream_of(handle_)>>>(static_cast<uint64_t>(milliseconds * 1e6));
  expect(cudaGetLastError(), "pause_kernel");
}

uint64_t hash(const void* device, int64_t bytes) {
  const Memory sum(sizeof(uint64_t));
  gpu::fill(sum.data(), 0, sum.bytes());
  const Stream stream;
  stream.add_hash(device, bytes, reinterpret_cast<uint64_t*>(sum.data()));
  uint64_t value = 0;
  download(&value, sum.data(), sizeof value);
  return value;
}

Graph::Graph(const Stream& stream, const std::function<void()>& work) {
  const cudaStream_t on = stream_of(stream.handle());
  cudaGraph_t graph = nullptr;
  expect(cudaStreamBeginCapture(on, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(on, &graph);
    cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  expect(cudaStreamEndCapture(on, &graph), "cudaStreamEndCapture");
  size_t nodes = 0;
  cudaGraphExec_t executable = nullptr;
  cudaError_t error = cudaGraphGetNodes(graph, nullptr, &nodes);
  if (error == cudaSuccess) error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  expect(error, "cudaGraphInstantiate");
  executable_ = executable;
  num_nodes_ = static_cast<int64_t>(nodes);
}

Graph::~Graph() {
  if (executable_ != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_));
}

Graph::Graph(Graph&& other) noexcept
    : executable_(std::exchange(other.executable_, nullptr)), num_nodes_(other.num_nodes_) {}

void Graph::launch(const Stream& stream) const {
  expect(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), stream_of(stream.handle())), "cudaGraphLaunch");
}

std::vector<double> time_replays(const Stream& stream, const std::vector<Graph>& graphs, int64_t count) {
  std::vector<Event> marks(static_cast<size_t>(count) + 1);
  stream.synchronize();
  stream.pause(kLaunchMilliseconds * static_cast<double>(count));
  marks[0].record(stream);
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    graphs[i % graphs.size()].launch(stream);
    marks[i + 1].record(stream);
  }
  stream.synchronize();
  std::vector<double> milliseconds;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i)
    milliseconds.push_back(marks[i + 1].milliseconds_since(marks[i]));
  return milliseconds;
}

double time_back_to_back(const Stream& stream, const std::vector<Graph>& graphs, int64_t count) {
  Event begin;
  Event end;
  stream.synchronize();
  stream.pause(kLaunchMilliseconds * static_cast<double>(count));
  begin.record(stream);
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) graphs[i % graphs.size()].launch(stream);
  end.record(stream);
  stream.synchronize();
  return end.milliseconds_since(begin) / static_cast<double>(count);
}

}  // namespace deltarelay::check::gpu
