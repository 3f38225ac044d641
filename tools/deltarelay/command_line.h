// The command line behind a small header. CLI11 costs ten seconds of compile time per file, twice that under
// AddressSanitizer, so only command_line.cpp includes it.
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

constexpr double kMostSeconds = 1e9;  // of an option that takes seconds: no limit in practice, and no overflow

// An option that is being added. Values that the checks refuse end with a message that names the option.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  Option& value(const char* name);  // name in help: "FILE"
  Option& required();
  Option& not_empty();
  Option& positive(double most = kMostSeconds);  // a number above 0
  Option& whole(int64_t low, int64_t high);      // a whole number, in decimal digits
  Option& one_of(const std::vector<std::string>& words);
  Option& comma_separated();
  Option& show_default();

 private:
  CLI::Option* option_;
};

// An option as shown in help, the manual page and completion.
struct OptionText {
  std::string shown;  // "-q,--quiet", or the name of a positional one
  std::vector<std::string> long_names, short_names;
  std::string description;
  std::string value;  // "FILE"
  bool positional;
  bool takes_value;
};

// The command or one of its subcommands. Copies refer to the same object.
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
  std::string help() const;  // of this command, whichever subcommand was parsed

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
  // Parses the arguments and runs the callback of the named subcommand. Returns an exit code instead if help was asked
  // for or the arguments are wrong; then everything has been printed.
  std::optional<int> parse(int argc, char** argv);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace deltarelay::command
