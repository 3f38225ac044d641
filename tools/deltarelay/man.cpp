// The manual page deltarelay.1, generated as troff from the options.
#include <algorithm>
#include <cstdio>

#include "deltarelay/commands.h"
#include "deltarelay/deltarelay.h"

namespace deltarelay::command {
namespace {

std::string escape_roff(const std::string& text) {
  std::string out;
  bool line_begins = true;
  for (const char c : text) {
    if (line_begins && (c == '.' || c == '\'')) out += "\\&";  // otherwise troff reads a request
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
  if (!text.empty()) std::printf(".PP\n.nf\n%s\n.fi\n", escape_roff(text).c_str());
}

void print_option(const OptionText& option) {
  const std::string values = option.takes_value ? " " + option.value : "";
  std::printf(".TP\n.B %s\n%s\n", (escape_roff(option.shown) + escape_roff(values)).c_str(),
              escape_roff(option.description).c_str());
}

bool is_help(const OptionText& option) {
  return std::find(option.long_names.begin(), option.long_names.end(), "help") != option.long_names.end();
}

void print_command(const Command& command) {
  std::printf(".SS deltarelay %s\n%s.\n", escape_roff(command.name()).c_str(),
              escape_roff(command.description()).c_str());
  for (const OptionText& option : command.options())
    if (!is_help(option)) print_option(option);
  print_preformatted(command.footer());
}

void print_page(const Command& app) {
  std::printf(".TH DELTARELAY 1 \"\" \"DeltaRelay %d.%d.%d\" \"User Commands\"\n", DR_VERSION_MAJOR, DR_VERSION_MINOR,
              DR_VERSION_PATCH);
  std::printf(".SH NAME\ndeltarelay \\- plan, check and time delta\\-rule linear attention\n");
  std::printf(".SH SYNOPSIS\n.B deltarelay\n.I subcommand\n[options] [case ...]\n");
  std::printf(".SH DESCRIPTION\n%s.\n", escape_roff(app.description()).c_str());
  print_preformatted(app.footer());
  std::printf(".SH SUBCOMMANDS\n");
  for (const Command& command : app.subcommands()) print_command(command);
  std::printf(".SH CASES\nWords of a case line:\n");
  for (const cases::GrammarWord& word : cases::grammar())
    std::printf(".TP\n.B %s\n%s\n", escape_roff(word.word).c_str(), escape_roff(word.meaning).c_str());
}

}  // namespace

void add_man(Command app) {
  Command command = app.add_subcommand("man", "Print the manual page");
  command.footer("Example:\n  deltarelay man | man -l -");
  command.callback([app] { print_page(app); });
}

}  // namespace deltarelay::command
