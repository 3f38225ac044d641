#include <regex.h>

#include <cstdio>
#include <exception>
#include <new>
#include <stdexcept>

#include "arrays/arrays.h"
#include "deltarelay/commands.h"
#include "deltarelay/deltarelay.hpp"
#include "deltarelay/device_facts.h"

namespace deltarelay::command {
namespace {

// A POSIX extended regular expression that may match anywhere in a text.
class Pattern {
 public:
  explicit Pattern(const std::string& text) {
    if (regcomp(&compiled_, text.c_str(), REG_EXTENDED | REG_NOSUB) != 0)
      throw cases::CaseError("--only: expected a regular expression, found " + cases::in_quotes(text));
  }
  ~Pattern() { regfree(&compiled_); }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;
  bool matches(const std::string& text) const { return regexec(&compiled_, text.c_str(), 0, nullptr, 0) == 0; }

 private:
  regex_t compiled_;
};

}  // namespace

void CaseArguments::add_to(Command app, bool required) {
  Option option = app.add_option(
      "case", words, "Case lines (quoted, or as bare words) and files of cases; see `deltarelay help cases`");
  if (required) option.required();
  app.add_option("--with", with,
                 "Words that replace or add to those of every case, e.g. \"segments=2 threads=1\", a rule first if it "
                 "changes too");
  app.add_option("--only", only, "Only cases whose name (or line, without one) matches a regular expression")
      .value("REGEX");
  app.add_option("--device-file", device_file, "Plan with the device facts and costs of a file, see `calibrate`")
      .value("FILE")
      .not_empty();
}

std::vector<cases::Case> CaseArguments::read() const {
  std::vector<cases::Case> all = cases::read_arguments(words);
  if (all.empty() && !words.empty())
    throw cases::CaseError("case: expected a case, found files without any: " + cases::in_quotes(words.front()));
  if (!only.empty()) {
    const Pattern wanted(only);
    std::erase_if(all, [&](const cases::Case& c) { return !wanted.matches(c.name.empty() ? print(c) : c.name); });
    if (all.empty())
      throw cases::CaseError("--only: expected a case that matches, found none for " + cases::in_quotes(only));
  }
  if (!with.empty())
    for (cases::Case& c : all) c = cases::with_words(c, with);
  if (!device_file.empty()) {
    const auto facts = std::make_shared<const cases::DeviceFacts>(read_device_file(device_file));
    for (cases::Case& c : all) c.facts = facts;
  }
  return all;
}

namespace {

constexpr const char* kFooter = R"(Examples:
  deltarelay info
  deltarelay explain kda bf16 hv=8 seqs=65536 device=h200
  deltarelay plan "kda bf16 hv=8 seqs=131072,1024x10" --device h200 --svg timeline.svg
  deltarelay verify tests/cases/smoke.txt
  deltarelay verify "gdn fp32 hqk=2 hv=8 seqs=2048,1,0,65 init final" --with "backend=cpu segments=3"
  deltarelay bench tests/cases/cpu-bench.txt --json results.json
  deltarelay run kda mine.npz --out results.npz l2norm beta=logit
  deltarelay calibrate --output cpu.json

A case is one line: rule, data type, then words in any order, such as
  kda bf16 hqk=16 hv=64 dk=128 dv=128 seqs=8192,1300x3 init final gate=bounded:-5 segments=auto seed=7
`deltarelay help cases` lists the words.

Paths such as tests/cases/smoke.txt are relative to the sources, or to <prefix>/share/doc/deltarelay of an installation.

Exit codes: 0 success; 1 a check failed, the library refused a case, or output was not written to its end; 2 bad usage,
such as a wrong option, case line or input file, or a path that cannot be opened.)";

int run(int argc, char** argv) {
  CommandLine line(
      "deltarelay",
      "DeltaRelay: delta-rule linear attention (KDA and GDN) that keeps the whole machine busy on one long sequence",
      dr_build_info());
  Command app = line.command();
  app.footer(kFooter);
  int exit_code = kExitSuccess;
  add_info(app, exit_code);
  add_support(app, exit_code);
  add_tensors(app, exit_code);
  add_tiling(app, exit_code);
  add_explain(app, exit_code);
  add_plan(app, exit_code);
  add_verify(app, exit_code);
  add_bench(app, exit_code);
  add_run(app, exit_code);
  add_calibrate(app, exit_code);
  add_help(app);
  add_man(app);
  add_completion(app);
  try {
    if (const std::optional<int> ended = line.parse(argc, argv)) return *ended;
  } catch (const cases::CaseError& error) {
    std::fprintf(stderr, "deltarelay: %s\n", error.what());
    return kExitUsage;
  } catch (const arrays::FileError& error) {
    std::fprintf(stderr, "deltarelay: %s\n", error.what());
    return kExitUsage;
  } catch (const UsageError& error) {
    std::fprintf(stderr, "deltarelay: %s\n", error.what());
    return kExitUsage;
  } catch (const Exception& error) {
    std::fprintf(stderr, "deltarelay: %s: %s\n", dr_status_string(error.status()), error.what());
    return kExitFailure;
  }
  return exit_code;
}

}  // namespace
}  // namespace deltarelay::command

namespace {

int end_without_memory() {
  std::fputs("deltarelay: memory: expected as much as the tensors and texts of this command take, found less\n",
             stderr);
  return deltarelay::command::kExitFailure;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int exit_code = deltarelay::command::run(argc, argv);
    deltarelay::command::finish_standard_output();
    return exit_code;
  } catch (const std::bad_alloc&) {
    return end_without_memory();
  } catch (const std::length_error&) {  // of a container
    return end_without_memory();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "deltarelay: %s\n", error.what());
    return deltarelay::command::kExitFailure;
  }
}
