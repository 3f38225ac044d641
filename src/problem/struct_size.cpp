#include "problem/struct_size.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "problem/status.h"

namespace deltarelay {
namespace {

// Every structure of the header is much smaller. A larger size comes from uninitialised memory, and the library must
// not read that many bytes.
constexpr uint32_t kLargestBelievable = 4096;

uint32_t size_field(const void* structure) {
  uint32_t size = 0;
  std::memcpy(&size, structure, sizeof size);
  return size;
}

// Builds the message only when a structure is refused, because every call comes through here.
[[noreturn]] void fail_size(const char* argument, const Sizing& sizing, const std::string& found) {
  fail_invalid(
      std::string(argument) + ".size",
      "at least " + std::to_string(sizing.in_0_2) + " (version 0.2 or later of the header; an init function sets it)",
      found);
}

void check_plausible(const char* argument, uint32_t found, const Sizing& sizing) {
  if (sizing.in_0_1 != 0 && found == sizing.in_0_1) {
    fail_size(argument, sizing,
              std::to_string(found) + ", the size in version 0.1: compile against the header of this library");
  }
  if (found < sizing.in_0_2 || found > kLargestBelievable) fail_size(argument, sizing, std::to_string(found));
}

}  // namespace

void copy_input(const char* argument, const void* given, void* copy, const Sizing& sizing) {
  const uint32_t found = size_field(given);
  check_plausible(argument, found, sizing);
  const auto* bytes = static_cast<const unsigned char*>(given);
  for (size_t i = sizing.known; i < found; ++i) {
    if (bytes[i] == 0) continue;
    fail_invalid(
        std::string(argument) + ".size",
        std::to_string(sizing.known) + ", or zeros in the fields after it that this version of the library lacks",
        std::to_string(found) + " with byte " + std::to_string(i) + " set");
  }
  std::memset(copy, 0, sizing.known);
  std::memcpy(copy, given, std::min<size_t>(found, sizing.known));
}

void check_output_size(const char* argument, const void* structure, const Sizing& sizing) {
  check_plausible(argument, size_field(structure), sizing);
}

void write_output(void* structure, const void* value, size_t known) {
  const uint32_t size = size_field(structure);
  const size_t shared = std::min<size_t>(size, known);
  auto* bytes = static_cast<unsigned char*>(structure);
  std::memcpy(bytes + sizeof size, static_cast<const unsigned char*>(value) + sizeof size, shared - sizeof size);
  std::memset(bytes + shared, 0, size - shared);
}

}  // namespace deltarelay
