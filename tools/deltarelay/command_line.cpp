#include "deltarelay/command_line.h"

#include <CLI/CLI.hpp>
#include <cmath>

#include "deltarelay/commands.h"

namespace deltarelay::command {
namespace {

CLI::Validator not_empty_text() {
  return {[](std::string& text) { return text.empty() ? std::string("expected a text, found ''") : std::string(); }, "",
          "not empty"};
}

CLI::Validator positive_number() {
  return {[](std::string& text) {
            double value = 0;
            const bool good = CLI::detail::lexical_cast(text, value) && std::isfinite(value) && value > 0;
            return good ? std::string() : "expected a finite number above 0, found " + cases::in_quotes(text);
          },
          "", "positive number"};
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

// Checked before CLI11 reads the options: CLI11 would report a missing subcommand, not the unknown word.
void require_known_subcommand(const Command& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  std::string known;
  for (const Command& command : app.subcommands()) {
    if (command.is_called(argv[1])) return;
    known += (known.empty() ? "" : ", ") + command.name();
  }
  throw UsageError("subcommand: expected one of " + known + ", found " + cases::in_quotes(argv[1]));
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

Option& Option::positive() {
  option_->check(positive_number());
  return *this;
}

Option& Option::within(double low, double high) {
  option_->check(CLI::Range(low, high));
  return *this;
}

Option& Option::within(int32_t low, int32_t high) {
  option_->check(CLI::Range(low, high));
  return *this;
}

Option& Option::one_of(const std::vector<std::string>& words) {
  option_->check(CLI::IsMember(words));
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
    return app_->exit(error) == 0 ? kExitSuccess : kExitUsage;
  }
  return std::nullopt;
}

}  // namespace deltarelay::command
