#include <cstdio>

#include "deltarelay/commands.h"
#include "deltarelay/deltarelay.hpp"
#include "deltarelay/terminal.h"

namespace deltarelay::command {
namespace {

// Prints one line per backend, then the plan. Returns whether the library accepts the case.
bool explain(const cases::Case& c) {
  std::printf("%s\n\n", bold(cases::print(c)).c_str());
  const cases::Request request(c);
  // Every backend is asked in turn, so the backend of the case is cleared.
  dr_options options = request.options;
  options.backend = nullptr;
  std::printf("%s\n", bold("backends").c_str());
  for (int32_t i = 0; i < dr_backend_count(); ++i) {
    const dr_status status = dr_backend_check(i, &request.problem, &options);
    if (status == DR_INVALID) {
      std::printf("  %s %s\n", red("invalid:").c_str(), dr_last_error());
      return false;
    }
    const std::string name = dr_backend_name(i);
    std::string reason = dr_last_error();
    if (reason.starts_with(name + ": ")) reason.erase(0, name.size() + 2);  // the line already starts with the name
    std::printf("  %-12s %s\n", name.c_str(),
                status == DR_SUCCESS ? green("accepts").c_str() : ("declines: " + reason).c_str());
  }
  std::printf("\n%s\n", bold("plan").c_str());
  try {
    std::printf("%s\n", Plan(request.problem, request.options).describe().c_str());
  } catch (const Exception& error) {
    std::printf("%s\n", red(std::string(dr_status_string(error.status())) + ": " + error.what()).c_str());
    return false;
  }
  return true;
}

}  // namespace

void add_explain(Command app, int& exit_code) {
  Command command =
      app.add_subcommand("explain", "What would run a case and why: one line a backend, then the plan in words");
  command.footer("Example:\n  deltarelay explain kda bf16 hv=8 seqs=65536 gate=bounded:-5 device=h200");
  auto arguments = std::make_shared<CaseArguments>();
  arguments->add_to(command);
  command.callback([arguments, &exit_code] {
    exit_code = kExitSuccess;
    for (const cases::Case& c : arguments->read())
      if (!explain(c)) exit_code = kExitFailure;
  });
}

}  // namespace deltarelay::command
