// Completion scripts for shells, generated from the subcommands and options of the parser.
#include <algorithm>
#include <cstdio>

#include "deltarelay/commands.h"

namespace deltarelay::command {
namespace {

std::vector<OptionText> options_of(const Command& command) {
  std::vector<OptionText> all = command.options();
  std::erase_if(all, [](const OptionText& option) { return option.positional; });
  return all;
}

bool takes_cases(const Command& command) {
  const std::vector<OptionText> all = command.options();
  return std::any_of(all.begin(), all.end(), [](const OptionText& option) { return option.shown == "case"; });
}

// "--quiet", "-q".
std::vector<std::string> names_of(const OptionText& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.long_names) names.push_back("--" + name);
  for (const std::string& name : option.short_names) names.push_back("-" + name);
  return names;
}

// Words that begin a word of a case: "kda", "hv=", "l2norm".
std::vector<std::string> case_words() {
  std::vector<std::string> words;
  for (const cases::GrammarWord& entry : cases::grammar()) {
    const size_t equals = entry.word.find('=');
    if (equals != std::string::npos) {
      words.push_back(entry.word.substr(0, equals + 1));
      continue;
    }
    for (size_t begin = 0; begin <= entry.word.size();) {  // "kda|gdn"
      const size_t end = std::min(entry.word.find('|', begin), entry.word.size());
      words.push_back(entry.word.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return words;
}

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// Quotes a text for a shell.
std::string quote(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// Escapes characters that have a meaning in zsh's _arguments.
std::string escape_zsh(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("[]:\\").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

// "--json[Write ...]:FILE:_files", "--quiet[Print ...]".
std::string zsh_option(const std::string& name, const OptionText& option) {
  std::string text = name + "[" + escape_zsh(option.description) + "]";
  if (!option.takes_value) return text;
  const bool file = option.value.rfind("FILE", 0) == 0;
  return text + ":" + escape_zsh(option.value) + (file ? ":_files" : ": ");
}

std::string bash_script(const Command& app) {
  std::vector<std::string> verbs;
  std::string options, with_cases;
  for (const Command& command : app.subcommands()) {
    verbs.push_back(command.name());
    std::vector<std::string> names;
    for (const OptionText& option : options_of(command))
      for (const std::string& name : names_of(option)) names.push_back(name);
    options += "    " + command.name() + ") options=" + quote(join(names)) + " ;;\n";
    if (takes_cases(command)) with_cases += (with_cases.empty() ? "" : "|") + command.name();
  }
  return "# bash completion of deltarelay\n"
         "_deltarelay() {\n"
         "  local current=\"${COMP_WORDS[COMP_CWORD]}\" options='' words=''\n"
         "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
         "    COMPREPLY=($(compgen -W " +
         quote(join(verbs) + " --help --version") +
         " -- \"$current\"))\n"
         "    return\n"
         "  fi\n"
         "  case \"${COMP_WORDS[1]}\" in\n" +
         options +
         "  esac\n"
         "  case \"${COMP_WORDS[1]}\" in\n"
         "    " +
         with_cases + ") words=" + quote(join(case_words())) + " ;;\n" +
         "    help) words=" + quote("cases " + join(verbs)) + " ;;\n" +
         "    completion) words='bash zsh fish' ;;\n"
         "  esac\n"
         "  if [[ \"$current\" == -* ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$options\" -- \"$current\"))\n"
         "    return\n"
         "  fi\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
         "  [[ \"${COMPREPLY[0]}\" == *= ]] && compopt -o nospace 2>/dev/null\n"
         "  if [ -z \"${COMPREPLY[0]}\" ]; then\n"
         "    compopt -o filenames 2>/dev/null\n"
         "    COMPREPLY=($(compgen -f -- \"$current\"))\n"
         "  fi\n"
         "  return 0\n"
         "}\n"
         "complete -F _deltarelay deltarelay\n";
}

std::string zsh_script(const Command& app) {
  std::string verbs, arguments;
  for (const Command& command : app.subcommands()) {
    verbs += "    " + quote(command.name() + ":" + command.description()) + "\n";
    arguments += "    " + command.name() + ")\n      _arguments";
    for (const OptionText& option : options_of(command))
      for (const std::string& name : names_of(option)) arguments += " \\\n        " + quote(zsh_option(name, option));
    if (takes_cases(command)) arguments += " \\\n        '*:case:_deltarelay_cases'";
    arguments += "\n      ;;\n";
  }
  std::string keys, words;
  for (const std::string& word : case_words()) (word.back() == '=' ? keys : words) += " " + word;
  return "#compdef deltarelay\n"
         "_deltarelay_cases() {\n"
         "  compadd -S '' --" +
         keys + "\n  compadd --" + words +
         "\n  _files\n"
         "}\n"
         "_deltarelay() {\n"
         "  local -a verbs\n"
         "  verbs=(\n" +
         verbs +
         "  )\n"
         "  if (( CURRENT == 2 )); then\n"
         "    _describe subcommand verbs\n"
         "    return\n"
         "  fi\n"
         "  shift words\n"
         "  (( CURRENT-- ))\n"
         "  case $words[1] in\n" +
         arguments +
         "  esac\n"
         "}\n"
         "_deltarelay \"$@\"\n";
}

std::string fish_script(const Command& app) {
  std::string text = "# fish completion of deltarelay\n", with_cases;
  for (const Command& command : app.subcommands()) {
    const std::string seen = " -n '__fish_seen_subcommand_from " + command.name() + "'";
    text += "complete -c deltarelay -f -n __fish_use_subcommand -a " + command.name() + " -d " +
            quote(command.description()) + "\n";
    for (const OptionText& option : options_of(command)) {
      text += "complete -c deltarelay" + seen;
      for (const std::string& name : option.long_names) text += " -l " + name;
      for (const std::string& name : option.short_names) text += " -s " + name;
      text += std::string(option.takes_value ? " -r" : "") + " -d " + quote(option.description) + "\n";
    }
    if (takes_cases(command)) with_cases += " " + command.name();
  }
  return text + "complete -c deltarelay -n '__fish_seen_subcommand_from" + with_cases + "' -a " +
         quote(join(case_words())) + "\n";
}

}  // namespace

void add_completion(Command app) {
  Command command = app.add_subcommand("completion", "Print a completion script for a shell");
  command.footer(
      "Examples:\n"
      "  source <(deltarelay completion bash)\n"
      "  deltarelay completion zsh > ~/.zfunc/_deltarelay\n"
      "  deltarelay completion fish > ~/.config/fish/completions/deltarelay.fish");
  auto shell = std::make_shared<std::string>();
  command.add_option("shell", *shell, "bash, zsh or fish").required().one_of({"bash", "zsh", "fish"});
  command.callback([shell, app] {
    const std::string script = *shell == "bash"  ? bash_script(app)
                               : *shell == "zsh" ? zsh_script(app)
                                                 : fish_script(app);
    std::fputs(script.c_str(), stdout);
  });
}

}  // namespace deltarelay::command
