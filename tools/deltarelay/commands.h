// The subcommands of `deltarelay`, one source file each. Each adds itself to the command line and sets the exit code.
#pragma once
#include <stdexcept>
#include <string>
#include <vector>

#include "case/case.h"
#include "deltarelay/command_line.h"

namespace deltarelay::command {

enum ExitCode {
  kExitSuccess = 0,
  kExitFailure = 1,  // a check failed, the library refused a case, or the output could not be written
  kExitUsage = 2     // an option or a case line does not read, or a file cannot be opened
};

// What the caller wrote cannot be used: kExitUsage. Every other exception but cases::CaseError is kExitFailure.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

void add_info(Command app, int& exit_code);
void add_support(Command app, int& exit_code);
void add_tensors(Command app, int& exit_code);
void add_tiling(Command app, int& exit_code);
void add_explain(Command app, int& exit_code);
void add_plan(Command app, int& exit_code);
void add_verify(Command app, int& exit_code);
void add_bench(Command app, int& exit_code);
void add_run(Command app, int& exit_code);
void add_calibrate(Command app, int& exit_code);
// These read the other commands from `app`, so that what they print cannot differ from what the parser takes.
void add_help(Command app);
void add_man(Command app);
void add_completion(Command app);

// The positional arguments that every command on cases takes, with the words that are to replace theirs.
struct CaseArguments {
  std::vector<std::string> words;
  std::string with;
  std::string only;         // a regular expression over names, or over lines without one; empty: all
  std::string device_file;  // facts to plan with, as `calibrate` writes them; empty: the library's

  void add_to(Command app, bool required = true);
  std::vector<cases::Case> read() const;  // throws cases::CaseError
};

// Throws UsageError unless a file at `path` can be written. Leaves what is there as it is.
void require_writable(const std::string& path);
// Writes a file whole. Throws UsageError when it cannot be opened, std::runtime_error when it cannot be written to its end.
void write_file(const std::string& path, const std::string& text);
// Throws std::runtime_error unless all that was printed to standard output has been written.
void finish_standard_output();

}  // namespace deltarelay::command
