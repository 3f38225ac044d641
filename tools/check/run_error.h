#pragma once
#include <stdexcept>
#include <string>

#include "deltarelay/deltarelay.h"

namespace deltarelay::check {

// The library refused a call, or something around it failed.
class RunError : public std::runtime_error {
 public:
  RunError(dr_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  dr_status status() const { return status_; }

 private:
  dr_status status_;
};

}  // namespace deltarelay::check
