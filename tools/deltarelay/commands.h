// The subcommands of `deltarelay`, one source file each. Each adds itself to the command line and sets the exit code.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "case/case.h"

namespace deltarelay::command {

enum ExitCode {
  kExitSuccess = 0,
  kExitFailure = 1,  // a check failed, or the library refused a case
  kExitUsage = 2     // an option, a case line or a file could not be read
};

void add_info(CLI::App& app, int& exit_code);
void add_support(CLI::App& app, int& exit_code);
void add_tiling(CLI::App& app, int& exit_code);
void add_explain(CLI::App& app, int& exit_code);
void add_plan(CLI::App& app, int& exit_code);
void add_verify(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_calibrate(CLI::App& app, int& exit_code);

// The positional arguments that every command on cases takes, with the words that are to replace theirs.
struct CaseArguments {
  std::vector<std::string> words;
  std::string with;
  std::string only;         // a regular expression over names, or over lines without one; empty: all
  std::string device_file;  // facts to plan with, as `calibrate` writes them; empty: the library's

  void add_to(CLI::App& app, bool required = true);
  std::vector<cases::Case> read() const;  // throws cases::CaseError
};

// Writes a file whole, or throws std::runtime_error that names it.
void write_file(const std::string& path, const std::string& text);

}  // namespace deltarelay::command
