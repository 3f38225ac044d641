#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "arrays/arrays.h"
#include "deltarelay/commands.h"

namespace deltarelay::command {
namespace {

[[noreturn]] void fail_to_open(const char* option, const std::string& path, const std::string& why) {
  throw UsageError(std::string(option) + ": expected a path that can be written, found '" + arrays::printable(path) +
                   "': " + why);
}

}  // namespace

void require_one_format(bool json, bool markdown) {
  if (json && markdown) throw UsageError("--markdown: expected one format on standard output, found JSON beside it");
}

void require_writable(const char* option, const std::string& path) {
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(path, ignored);
  const bool existed = std::filesystem::exists(status);
  if (existed && !std::filesystem::is_regular_file(status) && !std::filesystem::is_character_file(status))
    fail_to_open(option, path, "it is " + arrays::kind_of(path));
  errno = 0;
  if (!std::ofstream(path, std::ios::binary | std::ios::app)) fail_to_open(option, path, std::strerror(errno));
  if (!existed) std::filesystem::remove(path, ignored);
}

void write_file(const char* option, const std::string& path, const std::string& text) {
  require_writable(option, path);
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  if (!file) fail_to_open(option, path, std::strerror(errno));
  file << text;
  file.close();
  if (!file)
    throw std::runtime_error(std::string(option) + ": '" + arrays::printable(path) +
                             "' was not written to its end: " + std::strerror(errno));
}

void finish_standard_output() {
  errno = 0;
  std::cout.flush();
  const bool written = std::fflush(stdout) == 0;  // sets errno
  if (written && std::ferror(stdout) == 0 && std::cout) return;
  const std::string reason = errno != 0 ? std::string(": ") + std::strerror(errno) : "";
  throw std::runtime_error("standard output was not written to its end" + reason);
}

}  // namespace deltarelay::command
