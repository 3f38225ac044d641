#include "problem/status.h"

namespace deltarelay {

void fail_invalid(const std::string& argument, const std::string& expected, const std::string& found) {
  throw Error(DR_INVALID, argument + ": expected " + expected + ", found " + found);
}

void fail_unsupported(const std::string& reason) { throw Error(DR_UNSUPPORTED, reason); }

}  // namespace deltarelay
