#include "arrays/arrays.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

namespace deltarelay::arrays {
namespace {

constexpr size_t kPiece = size_t{1} << 24;  // bytes per read or write

struct Closer {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

}  // namespace

std::string printable(const std::string& text) {
  std::string all;
  for (const char c : text) {
    constexpr const char* kDigits = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      all += c;
    } else {
      all += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 0xf]};
    }
  }
  return all;
}

std::string kind_of(const std::string& path) {
  std::error_code ignored;
  switch (std::filesystem::status(path, ignored).type()) {
    case std::filesystem::file_type::not_found:
      return "nothing";
    case std::filesystem::file_type::regular:
      return "a file";
    case std::filesystem::file_type::directory:
      return "a directory";
    case std::filesystem::file_type::fifo:
      return "a pipe";
    case std::filesystem::file_type::socket:
      return "a socket";
    case std::filesystem::file_type::block:
    case std::filesystem::file_type::character:
      return "a device";
    default:
      return "no regular file";
  }
}

void fail(const std::string& what, const std::string& expected, const std::string& found) {
  throw FileError(printable(what) + ": expected " + expected + ", found " + printable(found));
}

int64_t count_of(std::span<const int64_t> shape) {
  int64_t count = 1;
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0) return -1;
    if (size == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(count, size, &count) || count > int64_t{1} << 56) {
      return -1;
    }
  }
  return empty ? 0 : count;
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

File::File(std::vector<std::byte> content) : content_(std::move(content)) {
  const std::span<const std::byte> file = content_;
  const bool zip = file.size() >= 4 && file[0] == std::byte{'P'} && file[1] == std::byte{'K'};
  format_ = zip ? Format::kNpz : Format::kSafetensors;
  if (zip) {
    for (const ZipEntry& entry : read_zip(file, unpacked_)) {
      const bool npy = entry.name.size() > 4 && entry.name.compare(entry.name.size() - 4, 4, ".npy") == 0;
      if (npy) arrays_.push_back(read_npy(entry.name.substr(0, entry.name.size() - 4), entry.data));
    }
  } else {
    arrays_ = read_safetensors(file);
  }
  for (Array& array : arrays_) {
    array.name = printable(array.name);
    array.type = printable(array.type);
  }
}

File File::read(const std::string& path) {
  const auto refuse = [&path](const std::string& why) {
    throw FileError("file: expected a file that can be read, found '" + printable(path) + "': " + why);
  };
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored))
    refuse("it is " + kind_of(path));
  const std::unique_ptr<std::FILE, Closer> file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr) refuse(std::strerror(errno));
  std::vector<std::byte> content;
  for (;;) {
    const size_t begin = content.size();
    content.resize(begin + kPiece);
    const size_t got = std::fread(content.data() + begin, 1, kPiece, file.get());
    content.resize(begin + got);
    if (got == 0) break;
  }
  if (std::ferror(file.get()) != 0) refuse(std::strerror(errno));
  try {
    return File(std::move(content));
  } catch (const FileError& error) {
    throw FileError(printable(path) + ": " + error.what());
  }
}

Writer::Writer(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "wb")) {
  if (file_ == nullptr) give_up();
}

Writer::~Writer() {
  if (file_ != nullptr) std::fclose(file_);
}

void Writer::give_up() const {
  throw std::runtime_error("file: '" + printable(path_) + "' was not written to its end: " + std::strerror(errno));
}

void Writer::add(std::span<const std::byte> data) {
  if (!data.empty() && std::fwrite(data.data(), 1, data.size(), file_) != data.size()) give_up();
  written_ += data.size();
}

void Writer::add(const std::string& text) { add(std::as_bytes(std::span(text))); }

void Writer::finish() {
  std::FILE* file = file_;
  file_ = nullptr;
  if (std::fclose(file) != 0) give_up();
}

void write(const std::string& path, Format format, const std::vector<Array>& arrays) {
  Writer writer(path);
  if (format == Format::kNpz) {
    write_zip(writer, arrays);
  } else {
    writer.add(safetensors_header(arrays));
    for (const Array& array : arrays) writer.add(array.data);
  }
  writer.finish();
}

}  // namespace deltarelay::arrays
