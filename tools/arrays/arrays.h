// Files of named arrays as Python tools write them: NumPy's .npz and .safetensors. Every number in a file is checked
// before use: a truncated or changed file is an error and never causes a read outside the file.
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

// Thrown for a file that cannot be read. what() names the part, what was expected and what was found.
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// Replaces bytes that are not printable ASCII by \x1b and the like: names of a damaged file may go to a terminal.
std::string printable(const std::string& text);
// What stands at a path that is no regular file: "a directory", "a pipe", "a device", ...
std::string kind_of(const std::string& path);
[[noreturn]] void fail(const std::string& what, const std::string& expected, const std::string& found);

constexpr int32_t kOther = -1;   // a type that the library does not accept
constexpr int32_t kUint16 = -2;  // may hold the bits of bf16

struct Array {
  std::string name;        // printable
  int32_t dtype = kOther;  // DR_FP32, DR_BF16, DR_FP16, DR_INT32, DR_INT64 or one of the above
  std::string type;        // name in the file
  std::vector<int64_t> shape;
  std::span<const std::byte> data;  // in index order, the last index fastest; not aligned
};

enum class Format { kNpz, kSafetensors };

class File {
 public:
  Format format() const { return format_; }
  const std::vector<Array>& arrays() const { return arrays_; }

  // Takes a file's content, which the object keeps. Throws FileError.
  explicit File(std::vector<std::byte> content);
  // Reads a regular file: a pipe may never end. Throws FileError, also if the file does not exist.
  static File read(const std::string& path);

 private:
  std::vector<std::byte> content_;
  std::list<std::vector<std::byte>> unpacked_;
  Format format_;
  std::vector<Array> arrays_;
};

// Writes a whole file. NumPy has no bf16, so an .npz stores it as uint16. Throws std::runtime_error if writing fails.
void write(const std::string& path, Format format, const std::vector<Array>& arrays);

std::string shape_text(std::span<const int64_t> shape);  // "[1, 4096, 8, 128]"

// ---- parts of the implementation ----

// Number of elements of a shape; -1 if that is more than memory can hold.
int64_t count_of(std::span<const int64_t> shape);
uint32_t crc32(std::span<const std::byte> data);
// Decompresses a deflate stream (RFC 1951), which must give exactly `size` bytes.
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

// Reads a little-endian integer at a position that has been checked.
template <class T>
T number_at(std::span<const std::byte> data, size_t at) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value = static_cast<T>(value | static_cast<T>(data[at + i]) << (8 * i));
  return value;
}

// Writes pieces of a file one after the other.
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
