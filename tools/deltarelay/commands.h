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
  kExitFailure = 1,  // a check failed, the library refused a case, or output could not be written to its end
  kExitUsage = 2     // an option, a case line or an input file is wrong, or a file cannot be opened
};

// Wrong input of the user: kExitUsage. Every other exception except cases::CaseError is kExitFailure.
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
// These read the other commands from `app`, so their output always matches the parser.
void add_help(Command app);
void add_man(Command app);
void add_completion(Command app);

// Positional arguments of all commands on cases, with the words that replace words of the cases.
struct CaseArguments {
  std::vector<std::string> words;
  std::string with;
  std::string only;         // regular expression over names, or over lines without a name; empty: all
  std::string device_file;  // device facts as `calibrate` writes them; empty: the library's

  void add_to(Command app, bool required = true);
  std::vector<cases::Case> read() const;  // throws cases::CaseError
};

// Throws UsageError if both were asked for: standard output has one format.
void require_one_format(bool json, bool markdown);
// Throws UsageError, naming the option, unless a file at `path` can be written: a regular one, or a device such as
// /dev/null. A pipe would wait for its reader, and `bench` writes its file again after every row. Does not change an
// existing file.
void require_writable(const char* option, const std::string& path);
// Writes a whole file. Throws UsageError if it cannot be opened, std::runtime_error if it cannot be written completely.
void write_file(const char* option, const std::string& path, const std::string& text);
// Throws std::runtime_error unless everything printed to standard output has been written.
void finish_standard_output();

}  // namespace deltarelay::command
