#include "deltarelay/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstring>
#include <sstream>

#include "deltarelay/commands.h"

namespace deltarelay::command {
namespace {

std::string unless(bool good, const std::string& expected, const std::string& found) {
  return good ? std::string() : "expected " + expected + ", found " + cases::in_quotes(found);
}

CLI::Validator not_empty_text() {
  return {[](std::string& text) { return unless(!text.empty(), "a text", text); }, "", "not empty"};
}

template <typename Number>
std::optional<Number> read_number(const std::string& text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool good = !text.empty() && error == std::errc() && end == text.data() + text.size();
  return good ? std::optional<Number>(value) : std::nullopt;
}

// "0.5", "1e+09".
std::string shown(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

CLI::Validator positive_number(double most) {
  return {[=](std::string& text) {
            const std::optional<double> value = read_number<double>(text);
            const bool limited = most < kMostSeconds || (value.has_value() && *value > most);
            return unless(value.has_value() && *value > 0 && *value <= most,
                          "a finite number above 0" + (limited ? " and at most " + shown(most) : ""), text);
          },
          "", "positive number"};
}

// CLI11 would read "010" as 8 and wrap "-1", so it only gets numbers that are written as it writes them.
CLI::Validator whole_number(int64_t low, int64_t high) {
  const std::string expected = "a whole number from " + std::to_string(low) + " to " + std::to_string(high);
  return {[=](std::string& text) {
            const std::optional<int64_t> value = read_number<int64_t>(text);
            const bool good = value.has_value() && *value >= low && *value <= high;
            std::string wrong = unless(good, expected, text);
            if (good) text = std::to_string(*value);
            return wrong;
          },
          "", "whole number"};
}

CLI::Validator word_of(const std::vector<std::string>& words) {
  std::string list;
  for (size_t i = 0; i < words.size(); ++i) list += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  return {
      [=](std::string& text) { return unless(std::find(words.begin(), words.end(), text) != words.end(), list, text); },
      "", "word"};
}

OptionText text_of(const CLI::Option& option) {
  return {.shown = option.get_positional() ? option.get_name(true) : option.get_name(false, true),
          .long_names = option.get_lnames(),
          .short_names = option.get_snames(),
          .description = option.get_description(),
          .value = option.get_type_name(),
          .positional = option.get_positional(),
          .takes_value = option.get_items_expected_max() > 0};
}

bool is_option_of(const Command& app, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  for (const OptionText& option : app.options()) {
    for (const std::string& known : option.long_names)
      if (name == "--" + known) return true;
    for (const std::string& known : option.short_names)
      if (name == "-" + known) return true;
  }
  return false;
}

// Checked before CLI11 reads the options: CLI11 would report a missing subcommand, not the unknown word.
void require_known_subcommand(const Command& app, int argc, char** argv) {
  std::string known;
  for (const Command& command : app.subcommands()) {
    if (argc > 1 && command.is_called(argv[1])) return;
    known += (known.empty() ? "" : ", ") + command.name();
  }
  if (argc > 1 && argv[1][0] == '-' && is_option_of(app, argv[1])) return;
  throw UsageError("subcommand: expected one of " + known + ", found " +
                   (argc > 1 ? cases::in_quotes(argv[1]) : "none; see `deltarelay help`"));
}

std::string behind(const std::string& text, const std::string& mark) {
  const size_t at = text.find(mark);
  return at == std::string::npos ? text : text.substr(at + mark.size());
}

// CLI11's texts take two lines, and not all begin with the argument. Checks of ours come here in our words.
std::string in_our_words(const CLI::ParseError& error, const std::string& subcommand) {
  std::string text = error.what();
  const auto is = [&error](CLI::ExitCodes code) { return error.get_exit_code() == static_cast<int>(code); };
  const std::string see = subcommand.empty() ? "deltarelay help" : "deltarelay help " + subcommand;
  if (is(CLI::ExitCodes::ExtrasError))
    return "argument: expected those of `" + see + "`, found " + cases::in_quotes(behind(text, ": "));
  if (is(CLI::ExitCodes::RequiredError))
    return text.substr(0, text.find(" is required")) + ": expected a value, found none; see `" + see + "`";
  if (is(CLI::ExitCodes::ConversionError)) {  // a flag with a value: numbers and words have been checked before
    const std::string found = behind(text, ": ");
    return found.substr(0, found.find(" = ")) + ": expected no value, found " + cases::in_quotes(behind(found, " = "));
  }
  if (is(CLI::ExitCodes::ArgumentMismatch)) {
    const std::string name = text.substr(0, text.find(':'));
    const size_t received = text.find("received ");
    return received == std::string::npos
               ? name + ": expected a value, found none"
               : name + ": expected at most one value, found " + text.substr(received + std::strlen("received "));
  }
  return text;
}

}  // namespace

Option& Option::value(const char* name) {
  option_->type_name(name);
  return *this;
}

Option& Option::required() {
  option_->required();
  return *this;
}

Option& Option::not_empty() {
  option_->check(not_empty_text());
  return *this;
}

Option& Option::positive(double most) {
  option_->check(positive_number(most));
  return *this;
}

Option& Option::whole(int64_t low, int64_t high) {
  option_->transform(whole_number(low, high));
  return *this;
}

Option& Option::one_of(const std::vector<std::string>& words) {
  option_->check(word_of(words));
  return *this;
}

Option& Option::comma_separated() {
  option_->delimiter(',');
  return *this;
}

Option& Option::show_default() {
  option_->capture_default_str();
  return *this;
}

Command Command::add_subcommand(const char* name, const char* description) {
  return Command(app_->add_subcommand(name, description));
}

void Command::footer(const char* text) { app_->footer(text); }

Option Command::add_option(const char* names, std::string& to, const char* description) {
  return Option(app_->add_option(names, to, description));
}

Option Command::add_option(const char* names, std::vector<std::string>& to, const char* description) {
  return Option(app_->add_option(names, to, description));
}

Option Command::add_option(const char* names, double& to, const char* description) {
  return Option(app_->add_option(names, to, description));
}

Option Command::add_option(const char* names, int32_t& to, const char* description) {
  return Option(app_->add_option(names, to, description));
}

Option Command::add_option(const char* names, int64_t& to, const char* description) {
  return Option(app_->add_option(names, to, description));
}

Option Command::add_option(const char* names, uint64_t& to, const char* description) {
  return Option(app_->add_option(names, to, description));
}

void Command::add_flag(const char* names, bool& to, const char* description) { app_->add_flag(names, to, description); }

void Command::callback(std::function<void()> run) { app_->callback(std::move(run)); }

std::string Command::name() const { return app_->get_name(); }

std::string Command::description() const { return app_->get_description(); }

std::string Command::footer() const { return app_->get_footer(); }

std::vector<Command> Command::subcommands() const {
  std::vector<Command> all;
  for (CLI::App* app : app_->get_subcommands([](CLI::App*) { return true; })) all.emplace_back(app);
  return all;
}

std::vector<OptionText> Command::options() const {
  std::vector<OptionText> all;
  for (const CLI::Option* option : app_->get_options([](const CLI::Option*) { return true; }))
    all.push_back(text_of(*option));
  return all;
}

bool Command::is_called(const std::string& name) const { return app_->check_name(name); }

// CLI::App::help() of the command would print the help of the subcommand that was parsed.
std::string Command::help() const {
  const CLI::App* parent = app_->get_parent();
  if (parent != nullptr) return app_->help(parent->get_name());
  return app_->get_formatter()->make_help(app_, app_->get_name(), CLI::AppFormatMode::Normal);
}

CommandLine::CommandLine(const char* name, const char* description, const std::string& version)
    : app_(std::make_unique<CLI::App>(description, name)) {
  app_->require_subcommand(1);
  app_->set_version_flag("-V,--version", version);
}

CommandLine::~CommandLine() = default;

std::optional<int> CommandLine::parse(int argc, char** argv) {
  require_known_subcommand(command(), argc, argv);
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app_->exit(error);  // help or the version
    const std::vector<CLI::App*> called = app_->get_subcommands();
    throw UsageError(in_our_words(error, called.empty() ? "" : called.front()->get_name()));
  }
  return std::nullopt;
}

}  // namespace deltarelay::command
