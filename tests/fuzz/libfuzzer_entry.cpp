// The same targets for libFuzzer, which is guided by coverage. Build with Clang and DELTARELAY_LIBFUZZER=ON.
#include <cstdio>
#include <cstdlib>

#include "input.h"

void fuzz::fail(const std::string& words) {
  std::fprintf(stderr, "fuzz: %s\n", words.c_str());
  std::abort();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  fuzz::run_input(input);
  return 0;
}
