// NumPy's .npy: a magic word, a Python dictionary as text, then the elements.
#include <array>
#include <charconv>
#include <string_view>

#include "arrays/arrays.h"

namespace deltarelay::arrays {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kMostAxes = 32;  // limit of NumPy 1

struct NpyType {
  std::string_view text;
  int32_t dtype;
};
// V2 is bf16 of ml_dtypes; the file does not keep the name of the type.
constexpr std::array<NpyType, 7> kNpyTypes = {{{"<f4", DR_FP32},
                                               {"<f2", DR_FP16},
                                               {"<i4", DR_INT32},
                                               {"<i8", DR_INT64},
                                               {"<u2", kUint16},
                                               {"|V2", kUint16},
                                               {"<V2", kUint16}}};

// Returns the text after "'key':" in the dictionary, without blanks.
std::string_view value_of(const std::string& name, std::string_view header, const std::string& key) {
  const size_t at = header.find("'" + key + "'");
  const size_t colon = at == std::string_view::npos ? at : header.find(':', at);
  const size_t begin = colon == std::string_view::npos ? colon : header.find_first_not_of(' ', colon + 1);
  if (begin == std::string_view::npos) fail(name, "a header with '" + key + "'", "none");
  return header.substr(begin);
}

std::vector<int64_t> read_shape(const std::string& name, std::string_view text) {
  const size_t end = text.find(')');
  if (text.front() != '(' || end == std::string_view::npos) fail(name, "a shape in parentheses", "none");
  text = text.substr(1, end - 1);
  std::vector<int64_t> shape;
  while (text.find_first_not_of(' ') != std::string_view::npos) {
    text.remove_prefix(text.find_first_not_of(' '));
    int64_t size = -1;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), size);
    if (error != std::errc() || size < 0 || shape.size() == kMostAxes)
      fail(name, "a shape of whole numbers", "another");
    shape.push_back(size);
    text.remove_prefix(static_cast<size_t>(rest - text.data()));
    if (!text.empty() && text.front() != ',') fail(name, "a shape of whole numbers", "another");
    if (!text.empty()) text.remove_prefix(1);
  }
  return shape;
}

}  // namespace

Array read_npy(const std::string& name, std::span<const std::byte> file) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());  // NOLINT: bytes as characters
  if (text.size() < 12 || text.substr(0, kMagic.size()) != kMagic) fail(name, "an array of NumPy", "something else");
  const auto version = static_cast<int>(file[6]);
  if (version < 1 || version > 3) fail(name, "version 1, 2 or 3 of the format", std::to_string(version));
  const size_t begin = version == 1 ? 10 : 12;
  const size_t length = version == 1 ? number_at<uint16_t>(file, 8) : number_at<uint32_t>(file, 8);
  if (length > file.size() - begin) fail(name, "a whole header", "the end of the file");
  const std::string_view header = text.substr(begin, length);

  Array array;
  array.name = name;
  const std::string_view type = value_of(name, header, "descr");
  const size_t end = type.find(type.front(), 1);
  if ((type.front() != '\'' && type.front() != '"') || end == std::string_view::npos)
    fail(name, "one type for all elements", "a record or an object");
  array.type = std::string(type.substr(1, end - 1));
  for (const NpyType& known : kNpyTypes)
    if (array.type == known.text) array.dtype = known.dtype;
  array.shape = read_shape(name, value_of(name, header, "shape"));
  array.data = file.subspan(begin + length);

  // An array of an unknown type is accepted here and refused only if a caller needs it.
  if (array.dtype == kOther) return array;
  if (value_of(name, header, "fortran_order").substr(0, 5) != "False")
    fail(name, "the last index to run fastest (np.ascontiguousarray)", "the order of Fortran");
  const int64_t element = array.type.back() - '0';
  const int64_t count = count_of(array.shape);
  if (count < 0 || static_cast<uint64_t>(count) * static_cast<uint64_t>(element) != array.data.size())
    fail(name, "the elements of " + shape_text(array.shape), std::to_string(array.data.size()) + " bytes");
  return array;
}

std::string npy_header(const Array& array) {
  std::string_view type = "<u2";  // bf16, which NumPy does not have
  for (const NpyType& known : kNpyTypes)
    if (known.dtype == array.dtype && known.dtype != kUint16) type = known.text;
  std::string shape;
  for (const int64_t size : array.shape) shape += std::to_string(size) + ", ";
  if (array.shape.size() > 1) shape.resize(shape.size() - 2);
  std::string text = "{'descr': '" + std::string(type) + "', 'fortran_order': False, 'shape': (" + shape + "), }";
  while ((10 + text.size() + 1) % 64 != 0) text += ' ';
  text += '\n';
  std::string header(kMagic);
  header += std::string("\x01\x00", 2);
  header += static_cast<char>(text.size() & 0xff);
  header += static_cast<char>(text.size() >> 8);
  return header + text;
}

}  // namespace deltarelay::arrays
