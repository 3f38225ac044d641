// deltarelay-launches: prints what the library would launch for cases, on GPUs that are not there.
#include <cstdio>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "launches/call.h"

namespace deltarelay::launches {
namespace {

constexpr const char* kUsage =
    "usage: deltarelay-launches [--hash] [--random-cases N] FILE|CASE...\n"
    "\n"
    "Plans and executes every case on every fake GPU, with every backend and variant that takes it, with and without\n"
    "a report, with lengths at planning and at execution, and prints the launches: a block a case, then what was\n"
    "loaded. Cases that differ in values or in the named backend only are one. --hash prints a hash a case instead.\n"
    "--random-cases adds N cases for each backend, the same on every machine.\n"
    "scripts/compare_launches.py compares two such logs.\n";

uint64_t hash_of(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

void print_block(const std::string& block, bool hashed) {
  if (!hashed) {
    std::fwrite(block.data(), 1, block.size(), stdout);
    return;
  }
  const std::string first = block.substr(0, block.find('\n'));
  std::printf("%016llx %s\n", static_cast<unsigned long long>(hash_of(block)), first.c_str());
}

bool is_number(const std::string& text) {
  return !text.empty() && text.size() < 10 && text.find_first_not_of("0123456789") == std::string::npos;
}

int run(const std::vector<std::string>& arguments) {
  bool hashed = false;
  uint64_t random = 0;
  std::vector<std::string> given;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--hash") {
      hashed = true;
    } else if (argument == "--random-cases" && i + 1 < arguments.size() && is_number(arguments[i + 1])) {
      random = std::stoull(arguments[++i]);
    } else if (argument.starts_with("-")) {
      std::fputs(kUsage, argument == "--help" ? stdout : stderr);
      return argument == "--help" ? 0 : 2;
    } else {
      given.push_back(argument);
    }
  }
  if (given.empty() && random == 0) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  std::set<std::string> seen;
  std::vector<cases::Case> all;
  if (!given.empty()) all = cases::read_arguments(given);
  for (const cases::Case& c : random_cases(random)) all.push_back(c);
  for (const cases::Case& c : all)
    if (seen.insert(cases::print(without_setting(c))).second) print_block(log_of(c), hashed);
  print_block(log_of_loading(), hashed);
  return 0;
}

}  // namespace
}  // namespace deltarelay::launches

int main(int count, char** arguments) {
  try {
    return deltarelay::launches::run({arguments + 1, arguments + count});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "deltarelay-launches: %s\n", error.what());
    return 2;
  }
}
