// .safetensors: the length of a JSON header, the header, the elements of all tensors.
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "arrays/arrays.h"

namespace deltarelay::arrays {
namespace {

using nlohmann::json;

struct SafetensorsType {
  std::string_view text;
  int32_t dtype;
  int64_t bytes;
};
constexpr std::array<SafetensorsType, 6> kSafetensorsTypes = {{{"F32", DR_FP32, 4},
                                                               {"BF16", DR_BF16, 2},
                                                               {"F16", DR_FP16, 2},
                                                               {"I32", DR_INT32, 4},
                                                               {"I64", DR_INT64, 8},
                                                               {"U16", kUint16, 2}}};
constexpr uint64_t kMostHeader = 100'000'000;  // limit of the format

const json& member(const std::string& name, const json& entry, const char* key, bool good) {
  if (!good) fail(name, std::string("an entry with '") + key + "'", "another");
  return entry[key];
}

bool whole_numbers(const json& entry, const char* key) {
  if (!entry.is_object() || !entry.contains(key) || !entry[key].is_array()) return false;
  for (const json& item : entry[key])
    if (!item.is_number_unsigned() || item.get<uint64_t>() > uint64_t{1} << 62) return false;
  return true;
}

Array read_entry(const std::string& name, const json& entry, std::span<const std::byte> elements) {
  Array array;
  array.name = name;
  array.shape = member(name, entry, "shape", whole_numbers(entry, "shape")).get<std::vector<int64_t>>();
  array.type = member(name, entry, "dtype", entry.contains("dtype") && entry["dtype"].is_string()).get<std::string>();
  const bool good = whole_numbers(entry, "data_offsets") && entry["data_offsets"].size() == 2;
  const auto offsets = member(name, entry, "data_offsets", good).get<std::array<uint64_t, 2>>();
  if (offsets[0] > offsets[1] || offsets[1] > elements.size())
    fail(name, "elements inside the file",
         "bytes " + std::to_string(offsets[0]) + " to " + std::to_string(offsets[1]) + " of " +
             std::to_string(elements.size()) + ": was it cut short?");
  array.data = elements.subspan(offsets[0], offsets[1] - offsets[0]);
  for (const SafetensorsType& known : kSafetensorsTypes) {
    if (array.type != known.text) continue;
    array.dtype = known.dtype;
    const int64_t count = count_of(array.shape);
    if (count < 0 || static_cast<uint64_t>(count) * static_cast<uint64_t>(known.bytes) != array.data.size())
      fail(name, "the elements of " + shape_text(array.shape), std::to_string(array.data.size()) + " bytes");
  }
  return array;
}

}  // namespace

std::vector<Array> read_safetensors(std::span<const std::byte> file) {
  const char* const kind = "an .npz or .safetensors file";
  if (file.size() < 10 || file[8] != std::byte{'{'}) fail("file", kind, "something else");
  const auto length = number_at<uint64_t>(file, 0);
  if (length > kMostHeader || length > file.size() - 8) fail("file", kind, "a header that ends behind it");
  const auto* text = reinterpret_cast<const char*>(file.data() + 8);  // NOLINT: bytes as characters
  const json header = json::parse(text, text + length, nullptr, false);
  if (!header.is_object()) fail("header", "an object of JSON", "something else");
  std::vector<Array> all;
  for (const auto& [name, entry] : header.items())
    if (name != "__metadata__") all.push_back(read_entry(name, entry, file.subspan(8 + length)));
  return all;
}

std::string safetensors_header(const std::vector<Array>& arrays) {
  json header = json::object();
  uint64_t at = 0;
  for (const Array& array : arrays) {
    std::string_view type = "U16";
    for (const SafetensorsType& known : kSafetensorsTypes)
      if (known.dtype == array.dtype) type = known.text;
    header[array.name] = {{"dtype", type}, {"shape", array.shape}, {"data_offsets", {at, at + array.data.size()}}};
    at += array.data.size();
  }
  std::string text = header.dump();
  while (text.size() % 8 != 0) text += ' ';
  std::string length;
  for (int i = 0; i < 8; ++i) length += static_cast<char>(text.size() >> (8 * i) & 0xff);
  return length + text;
}

}  // namespace deltarelay::arrays
