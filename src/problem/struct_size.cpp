#include "problem/struct_size.h"

#include <cstdint>
#include <cstring>
#include <string>

#include "problem/status.h"

namespace deltarelay {
namespace {

// No structure of the contract comes near this. A size above it is memory that was never initialised, and must not be
// believed when it says how far the structure may be read.
constexpr uint32_t kLargestBelievable = 4096;

uint32_t size_field(const void* structure) {
  uint32_t size = 0;
  std::memcpy(&size, structure, sizeof size);
  return size;
}

void check_plausible(const char* argument, uint32_t found, size_t known) {
  if (found >= known && found <= kLargestBelievable) return;
  fail_invalid(std::string(argument) + ".size",
               std::to_string(known) + " (the size of the structure; an init function sets it)", std::to_string(found));
}

}  // namespace

void check_input_size(const char* argument, const void* structure, size_t known) {
  const uint32_t found = size_field(structure);
  check_plausible(argument, found, known);
  const auto* bytes = static_cast<const unsigned char*>(structure);
  for (size_t i = known; i < found; ++i) {
    if (bytes[i] == 0) continue;
    fail_invalid(std::string(argument) + ".size",
                 std::to_string(known) + ", or zeros in the fields after it that this version of the library lacks",
                 std::to_string(found) + " with byte " + std::to_string(i) + " set");
  }
}

void check_output_size(const char* argument, const void* structure, size_t known) {
  check_plausible(argument, size_field(structure), known);
}

void write_output(void* structure, const void* value, size_t known) {
  const uint32_t size = size_field(structure);
  auto* bytes = static_cast<unsigned char*>(structure);
  std::memcpy(bytes + sizeof size, static_cast<const unsigned char*>(value) + sizeof size, known - sizeof size);
  std::memset(bytes + known, 0, size - known);
}

}  // namespace deltarelay
