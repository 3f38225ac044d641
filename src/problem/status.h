// The two kinds of "no", as exceptions inside the library; only src/api turns them into a dr_status.
#pragma once
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

}  // namespace deltarelay
