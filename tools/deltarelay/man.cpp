// The manual page, deltarelay.1: what the options say of themselves, as troff.
#include <cstdio>

#include "deltarelay/commands.h"
#include "deltarelay/deltarelay.h"

namespace deltarelay::command {
namespace {

std::string escape(const std::string& text) {
  std::string out;
  bool line_begins = true;
  for (const char c : text) {
    if (line_begins && (c == '.' || c == '\'')) out += "\\&";  // would be a request
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
    line_begins = c == '\n';
  }
  return out;
}

void print_preformatted(const std::string& text) {
  if (!text.empty()) std::printf(".PP\n.nf\n%s\n.fi\n", escape(text).c_str());
}

void print_option(const CLI::Option& option) {
  const std::string values = option.get_items_expected_max() == 0 ? "" : " " + option.get_type_name();
  const std::string name = option.get_positional() ? option.get_name(true) : option.get_name(false, true);
  std::printf(".TP\n.B %s\n%s\n", (escape(name) + escape(values)).c_str(), escape(option.get_description()).c_str());
}

void print_command(const CLI::App& command) {
  std::printf(".SS deltarelay %s\n%s.\n", escape(command.get_name()).c_str(),
              escape(command.get_description()).c_str());
  for (const CLI::Option* option : command.get_options([](const CLI::Option*) { return true; }))
    if (!option->check_lname("help")) print_option(*option);
  print_preformatted(command.get_footer());
}

void print_page(const CLI::App& app) {
  std::printf(".TH DELTARELAY 1 \"\" \"DeltaRelay %d.%d.%d\" \"User Commands\"\n", DR_VERSION_MAJOR, DR_VERSION_MINOR,
              DR_VERSION_PATCH);
  std::printf(".SH NAME\ndeltarelay \\- plan, check and time delta\\-rule linear attention\n");
  std::printf(".SH SYNOPSIS\n.B deltarelay\n.I subcommand\n[options] [case ...]\n");
  std::printf(".SH DESCRIPTION\n%s.\n", escape(app.get_description()).c_str());
  print_preformatted(app.get_footer());
  std::printf(".SH SUBCOMMANDS\n");
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) print_command(*command);
  std::printf(".SH CASES\nWords of a case line:\n");
  for (const cases::GrammarWord& word : cases::grammar())
    std::printf(".TP\n.B %s\n%s\n", escape(word.word).c_str(), escape(word.meaning).c_str());
}

}  // namespace

void add_man(CLI::App& app) {
  CLI::App* command = app.add_subcommand("man", "Print the manual page");
  command->footer("Example:\n  deltarelay man | man -l -");
  command->callback([&app] { print_page(app); });
}

}  // namespace deltarelay::command
