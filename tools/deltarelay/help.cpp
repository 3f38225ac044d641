#include <algorithm>
#include <cstdio>

#include "deltarelay/commands.h"

namespace deltarelay::command {
namespace {

void print_grammar() {
  const std::vector<cases::GrammarWord> words = cases::grammar();
  size_t width = 0;
  for (const cases::GrammarWord& word : words) width = std::max(width, word.word.size());
  std::printf(
      "A case is one line: [name:] rule [operation] [data type] word word ...\n"
      "Words come in any order, each at most once. Whole numbers may end in k (1024).\n"
      "A file holds one case a line; blank lines are skipped and # starts a comment.\n\n");
  for (const cases::GrammarWord& word : words)
    std::printf("  %-*s  %s\n", static_cast<int>(width), word.word.c_str(), word.meaning.c_str());
}

void print_topic(const Command& app, const std::string& topic) {
  if (topic == "cases") {
    print_grammar();
    return;
  }
  if (topic.empty()) {
    std::fputs(app.help().c_str(), stdout);
    return;
  }
  for (const Command& command : app.subcommands()) {
    if (!command.is_called(topic)) continue;
    std::fputs(command.help().c_str(), stdout);
    return;
  }
  throw UsageError("topic: expected cases or a subcommand, found " + cases::in_quotes(topic));
}

}  // namespace

void add_help(Command app) {
  Command command = app.add_subcommand("help", "Help on the case grammar or on a subcommand");
  command.footer("Examples:\n  deltarelay help cases\n  deltarelay help verify");
  auto topic = std::make_shared<std::string>();
  command.add_option("topic", *topic, "cases, or a subcommand");
  command.callback([topic, app] { print_topic(app, *topic); });
}

}  // namespace deltarelay::command
