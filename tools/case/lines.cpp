// Case lines in files and in arguments of the command.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "case/case.h"
#include "case/text.h"
#include "case/words.h"

namespace deltarelay::cases {
namespace {

constexpr const char* kReadable = "a regular file of cases that can be read";

}  // namespace

std::vector<Case> read_file(const std::filesystem::path& path) {
  std::error_code ignored;
  std::ifstream file;
  if (std::filesystem::is_regular_file(path, ignored)) file.open(path);  // a pipe may never end
  if (!file.is_open()) fail("file", kReadable, path.string());
  std::vector<Case> all;
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    line.erase(std::min(line.find('#'), line.size()));
    if (words_of(line).empty()) continue;
    try {
      all.push_back(parse(line));
    } catch (const CaseError& error) {
      throw CaseError(path.string() + ":" + std::to_string(number) + ": " + error.what());
    }
  }
  if (file.bad()) fail("file", kReadable, path.string());
  return all;
}

std::vector<Case> read_arguments(const std::vector<std::string>& arguments) {
  std::vector<Case> all;
  std::string line;  // bare words collected so far
  const auto finish = [&] {
    if (!line.empty()) all.push_back(parse(line));
    line.clear();
  };
  bool after_name = false;
  for (const std::string& argument : arguments) {
    std::error_code ignored;
    if (std::filesystem::is_regular_file(argument, ignored)) {
      finish();
      const std::vector<Case> more = read_file(argument);
      all.insert(all.end(), more.begin(), more.end());
      continue;
    }
    const bool quoted = argument.find(' ') != std::string::npos;
    const bool is_rule = find_word(kRules, argument) != nullptr;
    // Without this message, a mistyped path or a folder would be reported as an unknown rule.
    const bool path = argument.find_first_of("/.") != std::string::npos || std::filesystem::exists(argument, ignored);
    if (!quoted && line.empty() && path && !is_rule && argument.back() != ':') fail("file", kReadable, argument);
    const bool starts = quoted || argument.empty() || argument.back() == ':' || is_rule;
    if (starts && !after_name) finish();
    line += (line.empty() ? "" : " ") + argument;
    after_name = !argument.empty() && argument.back() == ':';
    if (quoted) finish();
    if (argument.empty()) parse(argument);  // an empty case: the parser reports what it expected
  }
  finish();
  return all;
}

}  // namespace deltarelay::cases
