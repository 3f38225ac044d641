// What the compiled code of kernels says about them, read from the images that a program registers with the runtime.
#pragma once
#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace deltarelay::launches {

struct KernelFacts {
  int static_shared_bytes = 0;
  int most_threads = 0;                 // of a block, by its launch bounds; 0: the kernel has none
  std::vector<size_t> parameter_bytes;  // by their order; of 16 KB and more, what is left of whole 16 KB
};

// Kernels by their mangled names. `binary` is what __cudaRegisterFatBinary receives. nvcc compresses some images,
// mostly large ones; their kernels are missing.
std::map<std::string, KernelFacts> kernels_in(const void* binary);

}  // namespace deltarelay::launches
