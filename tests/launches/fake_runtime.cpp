#include "launches/fake_runtime.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "launches/parameters.h"

// Functions of the runtime that only nvcc's own text calls.
extern "C" {
void** __cudaRegisterFatBinary(void* binary);
void __cudaRegisterFatBinaryEnd(void** handle);
void __cudaUnregisterFatBinary(void** handle);
void __cudaRegisterFunction(void** handle, const char* host, char* device, const char* name, int threads, uint3* thread,
                            uint3* block, dim3* block_shape, dim3* grid_shape, int* warp);
void __cudaRegisterVar(void** handle, char* host, char* device, const char* name, int external, size_t bytes,
                       int constant, int global);
unsigned __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream);
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
                               cudaStream_t stream);
}

namespace deltarelay::launches {
namespace {

struct Registered {
  Kernel kernel;
  std::array<KernelState, kGpus.size()> states;
};

// The kernels of one object file.
struct Binary {
  std::map<std::string, KernelFacts> facts;  // by mangled names
};

// Kernels by the address of their host function. Never destroyed: objects unregister themselves at exit.
struct Registry {
  std::mutex mutex;
  std::map<const void*, std::unique_ptr<Registered>> kernels;
  std::map<const Kernel*, const void*> functions;  // the other way
  std::vector<std::unique_ptr<Binary>> binaries;
};
Registry& registry() {
  static auto* const all = new Registry;
  return *all;
}

// What CUDA keeps for each thread, and what this file does.
struct ThreadState {
  int device = 0;
  cudaError_t last_error = cudaSuccess;
  Recording* recording = nullptr;
  int calls = 0;
  int fail_first = 0, fail_count = 0;
};
thread_local ThreadState thread;

}  // namespace

class Recorder {
 public:
  // A call of the runtime by this thread that would end with `status`: counts it, lets it fail if it has to, and
  // records it. Returns how it ends.
  static cudaError_t made(const char* function, cudaError_t status, std::string what = {}) {
    return made({.function = function, .what = std::move(what), .status = status, .device = thread.device});
  }
  static cudaError_t made(Call call) {
    const int number = thread.calls++;
    if (number >= thread.fail_first && number - thread.fail_first < thread.fail_count)
      call.status = cudaErrorLaunchFailure;
    const cudaError_t status = call.status;
    if (status != cudaSuccess) {
      thread.last_error = status;
      call.launch.reset();
    }
    if (thread.recording != nullptr) thread.recording->calls_.push_back(std::move(call));
    return status;
  }
};

Recording::Recording() { thread.recording = this; }
Recording::~Recording() { thread.recording = nullptr; }

namespace {

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return status == 0 ? text.get() : name;
}

Registered* find(const void* function) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto at = all.kernels.find(function);
  return at == all.kernels.end() ? nullptr : at->second.get();
}

bool is_device(int ordinal) { return ordinal >= 0 && ordinal < static_cast<int>(kGpus.size()); }
const Gpu& gpu() { return kGpus[static_cast<size_t>(thread.device)]; }

int static_shared_bytes(const Kernel& kernel) { return kernel.facts ? kernel.facts->static_shared_bytes : 0; }

// Dynamic bytes of shared memory that a launch of the kernel may ask for.
int allowed_shared_bytes(const Kernel& kernel, const KernelState& state) {
  return state.shared_bytes != 0 ? state.shared_bytes : kMostSharedBytes - static_shared_bytes(kernel);
}

// Changes or reads what has been done to a kernel on the current device.
template <class Body>
auto with_state(Registered& registered, const Body& body) {
  const std::lock_guard<std::mutex> lock(registry().mutex);
  return body(registered.states[static_cast<size_t>(thread.device)]);
}

// Would the GPU take a launch of this shape? `allowed`: dynamic bytes of shared memory that the kernel may have.
cudaError_t judge(const Launch& launch, int allowed) {
  auto within = [](dim3 shape, int64_t x, int64_t y, int64_t z) {
    return shape.x > 0 && shape.y > 0 && shape.z > 0 && shape.x <= x && shape.y <= y && shape.z <= z;
  };
  const int64_t threads = int64_t{launch.block.x} * launch.block.y * launch.block.z;
  const std::optional<KernelFacts>& facts = launch.kernel->facts;
  const int64_t most_threads = facts && facts->most_threads != 0 ? facts->most_threads : kMostThreads;
  if (!within(launch.grid, INT32_MAX, 65535, 65535) || !within(launch.block, 1024, 1024, 64) ||
      threads > most_threads || launch.cluster > static_cast<unsigned>(gpu().cluster) ||
      launch.grid.x % launch.cluster != 0)
    return cudaErrorInvalidConfiguration;
  if (launch.dependent && gpu().major < 9) return cudaErrorNotSupported;
  if (launch.shared_bytes > static_cast<size_t>(allowed)) return cudaErrorInvalidValue;
  return cudaSuccess;
}

cudaError_t launch(const char* function, const void* kernel, Launch shape, void** arguments, cudaStream_t stream) {
  Registered* const registered = find(kernel);
  if (registered == nullptr) return Recorder::made(function, cudaErrorInvalidDeviceFunction);
  shape.kernel = &registered->kernel;
  for (size_t i = 0; i < registered->kernel.parameters.size(); ++i) {
    const std::string& type = registered->kernel.parameters[i];
    const auto* const bytes = static_cast<const uint8_t*>(arguments[i]);
    shape.parameters.push_back({type, std::vector<uint8_t>(bytes, bytes + size_of_type(type))});
  }
  const int allowed = with_state(
      *registered, [&](const KernelState& state) { return allowed_shared_bytes(registered->kernel, state); });
  const cudaError_t status = judge(shape, allowed);
  return Recorder::made({.function = function,
                         .what = registered->kernel.name,
                         .status = status,
                         .device = thread.device,
                         .stream = stream,
                         .launch = std::move(shape)});
}

}  // namespace

void fail_calls(int number, int count) {
  thread.calls = 0;
  thread.fail_first = number;
  thread.fail_count = count;
}
int calls_made() { return thread.calls; }

std::vector<const Kernel*> all_kernels() {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  std::vector<const Kernel*> kernels;
  for (const auto& [function, registered] : all.kernels) kernels.push_back(&registered->kernel);
  std::sort(kernels.begin(), kernels.end(), [](const Kernel* a, const Kernel* b) { return a->name < b->name; });
  return kernels;
}

KernelState state_of(const Kernel& kernel, int device) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return all.kernels.at(all.functions.at(&kernel))->states[static_cast<size_t>(device)];
}

const void* function_of(const Kernel& kernel) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return all.functions.at(&kernel);
}

namespace {

// The driver's encoder, with the rules of its documentation.
CUresult encode_map(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address, const cuuint64_t* sizes,
                    const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* steps,
                    CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                    CUtensorMapFloatOOBfill fill) {
  if (Recorder::made("cuTensorMapEncodeTiled", cudaSuccess) != cudaSuccess) return CUDA_ERROR_LAUNCH_FAILED;
  const bool single = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  const uint64_t bytes = single ? 4 : 2;
  if (rank != 5 || (!single && type != CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16) ||
      interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || reinterpret_cast<uintptr_t>(address) % 16 != 0)
    return CUDA_ERROR_INVALID_VALUE;
  MapContents contents{};
  contents.address = reinterpret_cast<uintptr_t>(address);
  for (size_t i = 0; i < 5; ++i) {
    if (sizes[i] == 0 || sizes[i] > uint64_t{1} << 32 || box[i] == 0 || box[i] > 256 || steps[i] != 1)
      return CUDA_ERROR_INVALID_VALUE;
    if (i < 4 && (strides[i] % 16 != 0 || strides[i] >= uint64_t{1} << 40)) return CUDA_ERROR_INVALID_VALUE;
    contents.sizes[i] = sizes[i];
    contents.box[i] = static_cast<uint16_t>(box[i]);
    if (i < 4) contents.strides[i] = strides[i];
  }
  const uint64_t row_bytes = box[0] * bytes;
  if (row_bytes % 16 != 0 || (swizzle == CU_TENSOR_MAP_SWIZZLE_128B && row_bytes > 128))
    return CUDA_ERROR_INVALID_VALUE;
  contents.type = static_cast<uint8_t>(type);
  contents.rank = static_cast<uint8_t>(rank);
  contents.interleave = static_cast<uint8_t>(interleave);
  contents.swizzle = static_cast<uint8_t>(swizzle);
  contents.promotion = static_cast<uint8_t>(promotion);
  contents.fill = static_cast<uint8_t>(fill);
  static_assert(sizeof contents <= sizeof *map);
  std::memset(map, 0, sizeof *map);
  std::memcpy(map, &contents, sizeof contents);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace deltarelay::launches

using namespace deltarelay::launches;

// ---- kernels of the program

void** __cudaRegisterFatBinary(void* binary) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.binaries.push_back(std::make_unique<Binary>(Binary{kernels_in(binary)}));
  return reinterpret_cast<void**>(all.binaries.back().get());
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

void __cudaRegisterFunction(void** handle, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  auto registered = std::make_unique<Registered>();
  registered->kernel = kernel_named(demangled(name));
  const auto& facts = reinterpret_cast<const Binary*>(handle)->facts;
  if (const auto at = facts.find(name); at != facts.end()) registered->kernel.facts = at->second;
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.functions[&registered->kernel] = host;
  all.kernels[host] = std::move(registered);
}

// Of a launch in angle brackets, which the library does not use.
unsigned __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return cudaErrorMissingConfiguration; }
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
                               cudaStream_t stream) {
  return launch("__cudaLaunchKernel", kernel, {nullptr, grid, block, 1, shared_bytes, false, {}}, arguments, stream);
}

// ---- launches

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
                             cudaStream_t stream) {
  return launch("cudaLaunchKernel", function, {nullptr, grid, block, 1, shared_bytes, false, {}}, arguments, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  Launch shape{nullptr, config->gridDim, config->blockDim, 1, config->dynamicSmemBytes, false, {}};
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config->attrs[i];
    switch (attribute.id) {
      case cudaLaunchAttributeProgrammaticStreamSerialization:
        shape.dependent = attribute.val.programmaticStreamSerializationAllowed != 0;
        break;
      case cudaLaunchAttributeClusterDimension:
        shape.cluster = attribute.val.clusterDim.x;
        if (attribute.val.clusterDim.y != 1 || attribute.val.clusterDim.z != 1)
          return Recorder::made(__func__, cudaErrorNotSupported);
        break;
      default:
        return Recorder::made(__func__, cudaErrorNotSupported);  // the log would not show it
    }
  }
  return launch("cudaLaunchKernelExC", function, std::move(shape), arguments, config->stream);
}

// ---- attributes of kernels

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  Registered* const registered = find(function);
  if (registered == nullptr) return Recorder::made(__func__, cudaErrorInvalidDeviceFunction);
  const bool carveout = attribute == cudaFuncAttributePreferredSharedMemoryCarveout;
  const int most = carveout ? 100 : gpu().shared_bytes_block - static_shared_bytes(registered->kernel);
  cudaError_t status = value < 0 || value > most ? cudaErrorInvalidValue : cudaSuccess;
  if (!carveout && attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) status = cudaErrorNotSupported;
  status = Recorder::made(__func__, status, registered->kernel.name);
  if (status == cudaSuccess)
    with_state(*registered, [&](KernelState& state) { (carveout ? state.carveout : state.shared_bytes) = value; });
  return status;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  Registered* const registered = find(function);
  if (registered == nullptr) return Recorder::made(__func__, cudaErrorInvalidDeviceFunction);
  const cudaError_t status = Recorder::made(__func__, cudaSuccess, registered->kernel.name);
  if (status != cudaSuccess) return status;
  *attributes = {};
  with_state(*registered, [&](KernelState& state) {
    state.loaded = true;
    attributes->maxDynamicSharedSizeBytes = allowed_shared_bytes(registered->kernel, state);
  });
  return status;
}

// ---- devices

cudaError_t cudaGetDeviceCount(int* count) {
  *count = static_cast<int>(kGpus.size());
  return Recorder::made(__func__, cudaSuccess);
}

cudaError_t cudaGetDevice(int* device) {
  *device = thread.device;
  return Recorder::made(__func__, cudaSuccess);
}

cudaError_t cudaSetDevice(int device) {
  const cudaError_t status =
      Recorder::made(__func__, is_device(device) ? cudaSuccess : cudaErrorInvalidDevice, std::to_string(device));
  if (status == cudaSuccess) thread.device = device;
  return status;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!is_device(device)) return Recorder::made(__func__, cudaErrorInvalidDevice);
  const Gpu& gpu = kGpus[static_cast<size_t>(device)];
  *properties = {};
  std::strncpy(properties->name, gpu.model, sizeof properties->name - 1);
  properties->major = gpu.major;
  properties->minor = gpu.minor;
  properties->multiProcessorCount = gpu.multiprocessors;
  return Recorder::made(__func__, cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!is_device(device)) return Recorder::made(__func__, cudaErrorInvalidDevice);
  const Gpu& gpu = kGpus[static_cast<size_t>(device)];
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = gpu.multiprocessors;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = gpu.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = gpu.minor;
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = gpu.shared_bytes;
      break;
    case cudaDevAttrL2CacheSize:
      *value = gpu.l2_bytes;
      break;
    default:
      return Recorder::made(__func__, cudaErrorNotSupported);
  }
  return Recorder::made(__func__, cudaSuccess);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const bool known = std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
  *function = known ? reinterpret_cast<void*>(encode_map) : nullptr;
  if (found != nullptr) *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return Recorder::made(__func__, cudaSuccess, symbol);
}

// ---- errors

cudaError_t cudaGetLastError() {
  const cudaError_t error = thread.last_error;
  thread.last_error = cudaSuccess;
  return error;
}
const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorLaunchFailure:
      return kInjectedError;
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidDeviceFunction:
      return "cudaErrorInvalidDeviceFunction";
    case cudaErrorNotSupported:
      return "cudaErrorNotSupported";
    default:
      return "an error that the fake runtime does not name";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "an error of the fake runtime";
}
