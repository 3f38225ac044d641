// The two kinds of "no", as exceptions inside the library; only src/api turns them into a dr_status.
#pragma once
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>

#include "deltarelay/deltarelay.h"

namespace deltarelay {

class Error : public std::runtime_error {
 public:
  Error(dr_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  dr_status status() const { return status_; }

 private:
  dr_status status_;
};

// "argument: expected ..., found ..."
[[noreturn]] void fail_invalid(const std::string& argument, const std::string& expected, const std::string& found);
[[noreturn]] void fail_unsupported(const std::string& reason);

// A text in a field of fixed size has its end there.
template <size_t kBytes>
void check_text(const std::string& argument, const char (&text)[kBytes]) {
  if (std::memchr(text, '\0', kBytes) == nullptr) {
    fail_invalid(argument, "a text that ends within " + std::to_string(kBytes) + " bytes", "no end");
  }
}

}  // namespace deltarelay
