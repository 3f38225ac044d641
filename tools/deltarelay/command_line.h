// The command line behind a small header. CLI11 takes a compiler ten seconds a file, and twice that under AddressSanitizer, so
// command_line.cpp alone sees it.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): its own name
class App;
class Option;
}  // namespace CLI

namespace deltarelay::command {

// An option as it is being added.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  Option& value(const char* name);  // what help calls it: "FILE"
  Option& required();
  Option& not_empty();
  Option& positive();  // finite too
  Option& within(double low, double high);
  Option& within(int32_t low, int32_t high);
  Option& one_of(const std::vector<std::string>& words);
  Option& comma_separated();
  Option& show_default();

 private:
  CLI::Option* option_;
};

// An option as help, manual page and completion show it.
struct OptionText {
  std::string shown;  // "-q,--quiet", or the name of a positional one
  std::vector<std::string> long_names, short_names;
  std::string description;
  std::string value;  // "FILE"
  bool positional;
  bool takes_value;
};

// The command or one of its subcommands; a copy is the same one.
class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}

  Command add_subcommand(const char* name, const char* description);
  void footer(const char* text);
  Option add_option(const char* names, std::string& to, const char* description);
  Option add_option(const char* names, std::vector<std::string>& to, const char* description);
  Option add_option(const char* names, double& to, const char* description);
  Option add_option(const char* names, int32_t& to, const char* description);
  Option add_option(const char* names, int64_t& to, const char* description);
  Option add_option(const char* names, uint64_t& to, const char* description);
  void add_flag(const char* names, bool& to, const char* description);
  void callback(std::function<void()> run);

  std::string name() const;
  std::string description() const;
  std::string footer() const;
  std::vector<Command> subcommands() const;
  std::vector<OptionText> options() const;
  bool is_called(const std::string& name) const;
  std::string help() const;  // its own, whichever subcommand was parsed

 private:
  CLI::App* app_;
};

class CommandLine {
 public:
  CommandLine(const char* name, const char* description, const std::string& version);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  Command command() const { return Command(app_.get()); }
  // Runs the callback of the subcommand that the words name. An exit code where that is not to be: help was asked for, or the words do not
  // read; all that there is to say is printed then.
  std::optional<int> parse(int argc, char** argv);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace deltarelay::command
