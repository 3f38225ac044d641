// The GPU as the checks see it: memory, streams, graphs, clocks. All CUDA calls of the tools are behind this header
// (device_memory.cu). A build without CUDA uses device_absent.cpp, where everything but why_absent() throws.
//
// Errors are RunError: DR_UNSUPPORTED if there is no GPU, DR_DEVICE_ERROR if CUDA reports an error (an error of a
// kernel shows at the next call that waits for it). A failed allocation throws std::bad_alloc.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace deltarelay::check::gpu {

// Why no case can run on a GPU here ("built without CUDA", "no GPU: ..."); empty if one can.
std::string why_absent();
// Throws unless a GPU can be used.
void require();

struct Facts {
  std::string name;    // "NVIDIA H200"
  std::string driver;  // "580.159.03"
  std::string cuda;    // of the runtime: "13.0"
  int32_t units = 0;
  int64_t l2_bytes = 0;
};
Facts facts();

// Bytes that are free on the GPU.
int64_t free_bytes();

class Memory {
 public:
  Memory() = default;
  explicit Memory(int64_t bytes);
  ~Memory();  // NOLINT(performance-trivially-destructible): empty in device_absent.cpp alone
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// These wait for all work of the GPU and return when done.
void upload(void* device, const void* host, int64_t bytes);
void download(void* host, const void* device, int64_t bytes);
void copy(void* device, const void* from_device, int64_t bytes);
void fill(void* device, uint8_t value, int64_t bytes);
// `rows` rows of `width` bytes between matrices on the GPU whose rows begin `pitch` and `from_pitch` bytes apart.
void copy_rows(void* device, int64_t pitch, const void* from_device, int64_t from_pitch, int64_t width, int64_t rows);
void synchronize();

class Stream {
 public:
  Stream();
  ~Stream();  // NOLINT(performance-trivially-destructible): empty in device_absent.cpp alone
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void* handle() const { return handle_; }  // a cudaStream_t, as dr_execute takes it
  void synchronize() const;
  // The following calls queue work and do not wait.
  void fill(void* device, uint8_t value, int64_t bytes) const;
  void copy(void* device, const void* from_device, int64_t bytes) const;
  // Adds a position-dependent hash of the bytes to *sum (device memory): equal memory gives equal sums. `salt`
  // distinguishes several pieces in one sum.
  void add_hash(const void* device, int64_t bytes, uint64_t* sum, uint64_t salt = 0) const;
  // Keeps the stream busy for this long, so that the host can queue work ahead.
  void pause(double milliseconds) const;

 private:
  void* handle_ = nullptr;
};

uint64_t hash(const void* device, int64_t bytes);

// Records what `work` puts on the stream, in the capture mode that refuses allocations and waits anywhere in the
// process. launch() replays it.
class Graph {
 public:
  Graph(const Stream& stream, const std::function<void()>& work);
  ~Graph();  // NOLINT(performance-trivially-destructible): empty in device_absent.cpp alone
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&&) = delete;

  void launch(const Stream& stream) const;
  int64_t num_nodes() const { return num_nodes_; }

 private:
  [[maybe_unused]] void* executable_ = nullptr;  // a cudaGraphExec_t; without CUDA there is none
  int64_t num_nodes_ = 0;
};

// Returns the milliseconds of each of `count` replays of graphs[0], graphs[1], ... in turn, with an event between any
// two. They are queued behind a pause, so launch overhead of the host is not part of the time.
std::vector<double> time_replays(const Stream& stream, const std::vector<Graph>& graphs, int64_t count);
// Returns the milliseconds of one replay if `count` replays follow each other without events in between.
double time_back_to_back(const Stream& stream, const std::vector<Graph>& graphs, int64_t count);

}  // namespace deltarelay::check::gpu
