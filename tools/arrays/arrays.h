// Files of named arrays as Python's tools write them: NumPy's .npz and .safetensors. What a file says is checked before it is used: a file that was
// cut short or changed is an error, never a read outside of it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <list>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "deltarelay/deltarelay.h"

namespace deltarelay::arrays {

// A file that does not read. what() names the part of it, what was expected and what was found.
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// Bytes that are no printable ASCII as \x1b: names of a damaged file come to a terminal.
std::string printable(const std::string& text);
[[noreturn]] void fail(const std::string& what, const std::string& expected, const std::string& found);

constexpr int32_t kOther = -1;   // a type that the library does not take
constexpr int32_t kUint16 = -2;  // bits of bf16 may be in it

struct Array {
  std::string name;        // printable
  int32_t dtype = kOther;  // DR_FP32, DR_BF16, DR_FP16, DR_INT32, DR_INT64 or one of the above
  std::string type;        // as the file calls it
  std::vector<int64_t> shape;
  std::span<const std::byte> data;  // in order of the indices, the last one fastest; not aligned
};

enum class Format { kNpz, kSafetensors };

class File {
 public:
  Format format() const { return format_; }
  const std::vector<Array>& arrays() const { return arrays_; }

  // From memory, which is kept. Throws FileError.
  explicit File(std::vector<std::byte> content);
  // Throws FileError, also where there is no such file.
  static File read(const std::string& path);

 private:
  std::vector<std::byte> content_;
  std::list<std::vector<std::byte>> unpacked_;
  Format format_;
  std::vector<Array> arrays_;
};

// Writes a file whole. NumPy has no bf16: in an .npz it is uint16. Throws std::runtime_error when it cannot be written.
void write(const std::string& path, Format format, const std::vector<Array>& arrays);

std::string shape_text(std::span<const int64_t> shape);  // "[1, 4096, 8, 128]"

// ---- the parts ----

// Elements of a shape; -1: more than memory can hold.
int64_t count_of(std::span<const int64_t> shape);
uint32_t crc32(std::span<const std::byte> data);
// The bytes that a stream of deflate (RFC 1951) stands for, which must be `size`.
std::vector<std::byte> inflate(std::span<const std::byte> stream, uint64_t size);

struct ZipEntry {
  std::string name;
  std::span<const std::byte> data;
};
std::vector<ZipEntry> read_zip(std::span<const std::byte> file, std::list<std::vector<std::byte>>& unpacked);
Array read_npy(const std::string& name, std::span<const std::byte> file);
std::string npy_header(const Array& array);
std::vector<Array> read_safetensors(std::span<const std::byte> file);
std::string safetensors_header(const std::vector<Array>& arrays);

// Little-endian whole numbers at a place that has been checked.
template <class T>
T number_at(std::span<const std::byte> data, size_t at) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value = static_cast<T>(value | static_cast<T>(data[at + i]) << (8 * i));
  return value;
}

// Pieces of a file, one after the other.
class Writer {
 public:
  explicit Writer(const std::string& path);
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  void add(std::span<const std::byte> data);
  void add(const std::string& text);
  uint64_t written() const { return written_; }
  void finish();

 private:
  [[noreturn]] void give_up() const;
  std::string path_;
  std::FILE* file_;
  uint64_t written_ = 0;
};
void write_zip(Writer& writer, const std::vector<Array>& arrays);

}  // namespace deltarelay::arrays
