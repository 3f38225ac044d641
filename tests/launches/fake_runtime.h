// A CUDA runtime for tests without a GPU. It describes GPUs that are not there, runs nothing, and records every call.
// A program that links it instead of cudart executes the library's own host code: planning, loading, launching.
//
// It has the functions that the library calls and no other. Library code that calls another one does not link here:
// add it, and say in calls_test.cpp whether an execution may call it.
//
// A recording belongs to the thread that started it. Which kernels are loaded is known per device, for all threads.
#pragma once
#include <driver_types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launches/kernel_images.h"

namespace deltarelay::launches {

struct Gpu {
  const char* model;
  const char* name;  // as the logs write it
  int major, minor;
  int multiprocessors;
  int shared_bytes;        // of a multiprocessor
  int shared_bytes_block;  // the most that a block may ask for
  int l2_bytes;
  int cluster;  // most blocks of a cluster; 1: no clusters

  int capability() const { return 10 * major + minor; }
};

// By ordinal. Facts as the real runtime gives them.
inline constexpr std::array<Gpu, 4> kGpus = {{
    {"NVIDIA H200", "h200", 9, 0, 132, 233472, 232448, 62914560, 8},
    {"NVIDIA A100-SXM4-80GB", "a100", 8, 0, 108, 167936, 166912, 41943040, 1},
    {"NVIDIA GeForce RTX 4090", "rtx4090", 8, 9, 128, 102400, 101376, 75497472, 1},
    {"NVIDIA GeForce RTX 5090", "rtx5090", 12, 0, 170, 102400, 101376, 100663296, 8},
}};
constexpr int kMostThreads = 1024;           // of a block
constexpr int kMostSharedBytes = 48 * 1024;  // of a block whose kernel was not allowed more

// A kernel of the program, by its name without the namespaces that all have.
struct Kernel {
  std::string name;
  std::vector<std::string> parameters;  // types, named alike
  std::optional<KernelFacts> facts;     // where its image can be read
};

// The bytes of one parameter of a launch.
struct Parameter {
  std::string type;
  std::vector<uint8_t> bytes;
};

struct Launch {
  const Kernel* kernel;
  dim3 grid, block;
  unsigned cluster;
  size_t shared_bytes;  // dynamic
  bool dependent;       // may start before the kernel ahead of it in the stream ends
  std::vector<Parameter> parameters;
};

// One call of the runtime. Only launches that succeeded have a launch; the library puts nothing else onto a stream.
struct Call {
  std::string function;
  std::string what;  // of the arguments, what matters
  cudaError_t status;
  int device;  // that was current
  const void* stream = nullptr;
  std::optional<Launch> launch = {};
};

// Records the calls of this thread while it lives. Recordings do not nest.
class Recording {
 public:
  Recording();
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  const std::vector<Call>& calls() const { return calls_; }

 private:
  friend class Recorder;
  std::vector<Call> calls_;
};

// Lets calls of this thread fail with cudaErrorLaunchFailure: `count` of them, the first after `number` others. Of the
// encoder of tensor maps too.
void fail_calls(int number, int count);
// Calls of this thread since the last fail_calls.
int calls_made();
// What cudaGetErrorName says of such an error.
constexpr const char* kInjectedError = "cudaErrorLaunchFailure";

// What the program has done to a kernel on a device.
struct KernelState {
  bool loaded = false;   // its code is there
  int shared_bytes = 0;  // dynamic bytes that a launch may ask for; 0: not set
  int carveout = -1;     // percent; -1: not set
};
std::vector<const Kernel*> all_kernels();  // in the order of their names
KernelState state_of(const Kernel& kernel, int device);
const void* function_of(const Kernel& kernel);  // the address that launches name it by

// What the fake encoder of tensor maps writes into a CUtensorMap.
struct MapContents {
  uint64_t address;
  uint64_t sizes[5], strides[4];
  uint16_t box[5];
  uint8_t type, rank, interleave, swizzle, promotion, fill;
};

}  // namespace deltarelay::launches
