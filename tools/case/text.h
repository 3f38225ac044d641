// Words of a line, and errors about them.
#pragma once
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "case/case.h"

namespace deltarelay::cases {

[[noreturn]] inline void fail(std::string_view word, std::string_view expected, std::string_view found) {
  throw CaseError(std::string(word) + ": expected " + std::string(expected) + ", found " + in_quotes(found));
}

inline std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  size_t i = 0;
  while (i < line.size()) {
    if (std::string_view(" \t\r\n").find(line[i]) != std::string_view::npos) {
      ++i;
      continue;
    }
    const size_t end = std::min(line.find_first_of(" \t\r\n", i), line.size());
    words.push_back(line.substr(i, end - i));
    i = end;
  }
  return words;
}

}  // namespace deltarelay::cases
