// Rules for every answer of the library.
#pragma once
#include <string>

#include "deltarelay/deltarelay.h"
#include "input.h"

namespace fuzz {

// Returns whether the call succeeded. A call that failed must give its reason: argument, expected and found, or words.
inline bool answered(const char* function, dr_status status) {
  const std::string message = dr_last_error();
  const std::string found = std::string(function) + " said " + dr_status_string(status) + " \"" + message + "\"";
  const auto has = [&](const char* word) { return message.find(word) != std::string::npos; };
  switch (status) {
    case DR_SUCCESS:
      expect(message.empty(), "expected no message after a success", found);
      return true;
    case DR_INVALID:
      expect(has(": expected ") && has(", found "), "expected a message with argument, expected and found", found);
      return false;
    case DR_UNSUPPORTED:
      expect(has(": "), "expected a message with who declines and why", found);
      return false;
    default:
      fail("expected success or a refusal, found: " + found);
  }
}

}  // namespace fuzz
