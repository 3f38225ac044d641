#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "deltarelay/commands.h"

namespace deltarelay::command {
namespace {

[[noreturn]] void fail_to_open(const std::string& path) {
  throw UsageError("file: expected a path that can be written, found '" + path + "': " + std::strerror(errno));
}

}  // namespace

void require_writable(const std::string& path) {
  std::error_code ignored;
  const bool existed = std::filesystem::exists(path, ignored);
  errno = 0;
  if (!std::ofstream(path, std::ios::binary | std::ios::app)) fail_to_open(path);
  if (!existed) std::filesystem::remove(path, ignored);
}

void write_file(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  if (!file) fail_to_open(path);
  file << text;
  file.close();
  if (!file) throw std::runtime_error("file: '" + path + "' was not written to its end: " + std::strerror(errno));
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
