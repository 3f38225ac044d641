// Parameters of kernels by the names of their types, which the names of kernels contain: sizes, and fields as text.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "launches/fake_runtime.h"

namespace deltarelay::launches {

// The kernel with this demangled name. Names lose the namespaces that all kernels share, and blanks.
Kernel kernel_named(const std::string& demangled);

// Bytes of a parameter. A type that is not known ends the program: it belongs into fields.h.
size_t size_of_type(const std::string& type);

// Memory that a call was given.
struct Region {
  std::string name;
  uint64_t begin, bytes;
};

// "workspace+4096": an address by the region that contains it, or ends at it.
std::string address_text(const std::vector<Region>& regions, uint64_t address);

// What the parameters of a launch hold, in their order. Padding is not read. Names are like "WalkArgs.initial.data".
struct Contents {
  struct Field {  // that is not 0
    std::string name, text;
  };
  struct Address {
    std::string name;
    uint64_t value;
  };
  struct Map {
    std::string name;
    MapContents value;
  };
  std::vector<Field> fields;
  std::vector<Address> addresses;  // of maps too
  std::vector<Map> maps;
};
Contents contents_of(const Launch& launch, const std::vector<Region>& regions);

// Types with a gap between fields that is wider than padding can be: fields.h does not name all members.
std::vector<std::string> types_with_gaps();

}  // namespace deltarelay::launches
