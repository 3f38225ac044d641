#include "launches/parameters.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <type_traits>
#include <utility>

#include "launches/fields.h"

namespace deltarelay::launches {
namespace {

void remove_all(std::string& text, const std::string& what) {
  for (size_t at; (at = text.find(what)) != std::string::npos;) text.erase(at, what.size());
}

// FNV-1a.
std::string hash_text(const uint8_t* bytes, size_t count) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < count; ++i) hash = (hash ^ bytes[i]) * 0x100000001b3u;
  char text[32];
  std::snprintf(text, sizeof text, "#%016llx", static_cast<unsigned long long>(hash));
  return text;
}

// Fills Contents.
class Collector {
 public:
  Collector(std::string prefix, const std::vector<Region>& regions, Contents& contents)
      : prefix_(std::move(prefix)), regions_(regions), contents_(contents) {}

  template <class T>
  void operator()(const char* name, const T& value) {
    const std::string full = prefix_ + "." + name;
    if constexpr (std::is_pointer_v<T>) {
      address(full, reinterpret_cast<uintptr_t>(value));
    } else if constexpr (std::is_enum_v<T>) {
      number(full, static_cast<int64_t>(value));
    } else if constexpr (std::is_floating_point_v<T>) {
      char text[32];
      std::snprintf(text, sizeof text, "%.9g", static_cast<double>(value));
      if (value != 0) add(full, text);
    } else if constexpr (std::is_integral_v<T>) {
      number(full, static_cast<int64_t>(value));
    } else if constexpr (std::is_same_v<T, CUtensorMap>) {
      map(full, value);
    } else if constexpr (std::is_array_v<T>) {
      bytes(full, value, sizeof value);
    } else {
      const std::string outer = std::exchange(prefix_, full);
      visit_fields(*this, value);
      prefix_ = outer;
    }
  }

  void address(const std::string& name, uint64_t value) {
    if (value == 0) return;
    contents_.addresses.push_back({name, value});
    add(name, address_text(regions_, value));
  }
  void number(const std::string& name, int64_t value) {
    if (value != 0) add(name, std::to_string(value));
  }
  void bytes(const std::string& name, const uint8_t* data, size_t count) {
    if (std::any_of(data, data + count, [](uint8_t byte) { return byte != 0; })) add(name, hash_text(data, count));
  }

 private:
  void add(const std::string& name, std::string text) { contents_.fields.push_back({name, std::move(text)}); }

  void map(const std::string& name, const CUtensorMap& value) {
    MapContents m;
    std::memcpy(&m, &value, sizeof m);
    if (m.rank == 0) return;
    contents_.maps.push_back({name, m});
    address(name + ".address", m.address);
    auto list = [](const auto& numbers) {
      std::string text;
      for (const auto number : numbers) text += (text.empty() ? "" : "x") + std::to_string(number);
      return text;
    };
    add(name + ".sizes", list(m.sizes));
    add(name + ".strides", list(m.strides));
    add(name + ".box", list(m.box));
    add(name + ".kind", list(std::array<int, 5>{m.type, m.interleave, m.swizzle, m.promotion, m.fill}));
  }

  std::string prefix_;
  const std::vector<Region>& regions_;
  Contents& contents_;
};

// Notes which bytes of a structure its fields take.
class Cover {
 public:
  explicit Cover(const void* begin) : begin_(static_cast<const char*>(begin)) {}

  template <class T>
  void operator()(const char* name, const T& value) {
    const auto at = static_cast<size_t>(reinterpret_cast<const char*>(&value) - begin_);
    size_t align = alignof(T);
    if constexpr (std::is_array_v<T>) align = 16;  // bytes that are copied as pieces of 16
    gap(at, align, name);
    if constexpr (std::is_class_v<T> && !std::is_same_v<T, CUtensorMap>) {
      end_ = at;
      visit_fields(*this, value);
      gap(at + sizeof value, alignof(T), "the end of the structure");
    }
    end_ = at + sizeof value;
  }
  // Between `end_` and `at` there may be less than the alignment of what begins there.
  void gap(size_t at, size_t align, const char* name) {
    if (at < end_ || at - end_ >= align)
      problem_ += std::to_string(end_) + " to " + std::to_string(at) + " before " + name + "; ";
  }
  const std::string& problem() const { return problem_; }

 private:
  const char* begin_;
  size_t end_ = 0;
  std::string problem_;
};

struct Structure {
  size_t bytes;
  void (*visit)(Collector&, const uint8_t*);
};
template <class T>
void visit_bytes(Collector& collector, const uint8_t* bytes) {
  T value;
  std::memcpy(static_cast<void*>(&value), bytes, sizeof value);
  visit_fields(collector, value);
}

const std::map<std::string, Structure>& structures() {
  static const auto all = [] {
    std::map<std::string, Structure> found;
    for_each_structure([&]<class T>(const char* name, const T&) { found[name] = {sizeof(T), visit_bytes<T>}; });
    return found;
  }();
  return all;
}

// 16-byte pieces of a Parcel<N> (run/cuda_table.cu); 0: another type.
size_t pieces_of(const std::string& type) {
  return type.starts_with("Parcel<") ? static_cast<size_t>(std::atoi(type.c_str() + 7)) : 0;
}
constexpr size_t kPieceBytes = 16;

template <class T>
T number_in(const Parameter& parameter) {
  T value;
  std::memcpy(&value, parameter.bytes.data(), sizeof value);
  return value;
}

void visit_parameter(Collector& collector, const std::string& name, const Launch& launch, size_t i) {
  const Parameter& parameter = launch.parameters[i];
  const auto structure = structures().find(parameter.type);
  if (structure != structures().end()) {
    structure->second.visit(collector, parameter.bytes.data());
  } else if (parameter.type.ends_with("*")) {
    collector.address(name, number_in<uint64_t>(parameter));
  } else if (pieces_of(parameter.type) != 0) {
    // The next parameter says how many pieces are used; the others are what the stack held.
    const auto used = static_cast<size_t>(number_in<int32_t>(launch.parameters.at(i + 1)));
    collector.bytes(name, parameter.bytes.data(), std::min(used * kPieceBytes, parameter.bytes.size()));
  } else {
    collector.number(name, number_in<int32_t>(parameter));
  }
}

}  // namespace

Kernel kernel_named(const std::string& demangled) {
  std::string text = demangled;
  for (const char* word : {"(anonymous namespace)::", "deltarelay::", "cuda::"}) remove_all(text, word);
  // void name<...>(type, type): the list of parameters ends the text.
  size_t open = text.size();
  for (int depth = 0; open > 0;) {
    const char c = text[--open];
    if (c == ')') ++depth;
    if (c == '(' && --depth == 0) break;
  }
  Kernel kernel;
  kernel.name = text.substr(0, open);
  if (kernel.name.starts_with("void ")) kernel.name.erase(0, 5);
  std::erase(kernel.name, ' ');
  std::string type;
  int depth = 0;
  for (size_t i = open + 1; i < text.size(); ++i) {
    const char c = text[i];
    depth += c == '<' ? 1 : c == '>' ? -1 : 0;
    if (depth == 0 && (c == ',' || i + 1 == text.size())) {
      if (!type.empty()) kernel.parameters.push_back(type);
      type.clear();
    } else if (!(c == ' ' && type.empty())) {
      type += c;
    }
  }
  return kernel;
}

size_t size_of_type(const std::string& type) {
  const auto structure = structures().find(type);
  if (structure != structures().end()) return structure->second.bytes;
  if (type.ends_with("*")) return sizeof(void*);
  if (type == "int" || type == "unsigned int") return sizeof(int);
  if (const size_t pieces = pieces_of(type); pieces != 0) return pieces * kPieceBytes;
  std::fprintf(stderr, "launches: a kernel has a parameter of type %s, which tests/launches/fields.h does not know\n",
               type.c_str());
  std::exit(2);
}

std::string address_text(const std::vector<Region>& regions, uint64_t address) {
  // A region that begins here comes before one that ends here.
  for (const bool end : {false, true}) {
    for (const Region& region : regions) {
      if (address < region.begin || address > region.begin + region.bytes) continue;
      if ((address == region.begin + region.bytes) != end && region.bytes != 0) continue;
      const uint64_t offset = address - region.begin;
      return offset == 0 ? region.name : region.name + "+" + std::to_string(offset);
    }
  }
  char text[32];
  std::snprintf(text, sizeof text, "?0x%llx", static_cast<unsigned long long>(address));
  return text;
}

Contents contents_of(const Launch& launch, const std::vector<Region>& regions) {
  Contents contents;
  for (size_t i = 0; i < launch.parameters.size(); ++i) {
    const bool named = structures().count(launch.parameters[i].type) > 0;
    const std::string name = named ? launch.parameters[i].type : std::to_string(i);
    Collector collector(name, regions, contents);
    visit_parameter(collector, name, launch, i);
  }
  return contents;
}

std::vector<std::string> types_with_gaps() {
  std::vector<std::string> found;
  for_each_structure([&]<class T>(const char* name, const T& value) {
    Cover cover(&value);
    visit_fields(cover, value);
    cover.gap(sizeof value, alignof(T), "the end");
    if (!cover.problem().empty()) found.push_back(std::string(name) + ": bytes " + cover.problem());
  });
  return found;
}

}  // namespace deltarelay::launches
