#include <cstdio>
#include <nlohmann/json.hpp>

#include "deltarelay/commands.h"
#include "deltarelay/deltarelay.hpp"
#include "deltarelay/terminal.h"
#include "deltarelay/timeline.h"

namespace deltarelay::command {
namespace {

using nlohmann::json;

struct PlanSettings {
  CaseArguments arguments;
  bool as_json = false;
  std::string svg;
  std::string policy;
  std::string device;
};

void show(const cases::Case& c, const PlanSettings& settings, json& collected) {
  const cases::Request request(c);
  const Plan plan(request.problem, request.options);
  if (settings.as_json || !settings.svg.empty()) {
    json out = json::parse(plan.describe(DR_DESCRIBE_JSON));
    if (!settings.svg.empty()) write_file("--svg", settings.svg, draw_timeline(out, cases::print(c)));
    out["case"] = cases::print(c);
    collected.push_back(std::move(out));
  }
  if (!settings.as_json) std::printf("%s\n%s\n", bold(cases::print(c)).c_str(), plan.describe().c_str());
}

int run_plan(const PlanSettings& settings) {
  std::string words;
  if (!settings.policy.empty()) words += " policy=" + settings.policy;
  if (!settings.device.empty()) words += " device=" + settings.device;
  std::vector<cases::Case> all = settings.arguments.read();
  if (!settings.svg.empty() && all.size() != 1)
    throw cases::CaseError("--svg: expected one case, found '" + std::to_string(all.size()) + "'");
  json collected = json::array();
  int exit_code = kExitSuccess;
  for (const cases::Case& each : all) {
    const cases::Case c = words.empty() ? each : cases::with_words(each, words);
    try {
      show(c, settings, collected);
    } catch (const NothingToDraw& error) {
      std::fprintf(stderr, "deltarelay: %s\n  in: %s\n", error.what(), cases::print(c).c_str());
      exit_code = kExitFailure;
    } catch (const Exception& error) {
      std::fprintf(stderr, "deltarelay: %s: %s\n  in: %s\n", dr_status_string(error.status()), error.what(),
                   cases::print(c).c_str());
      exit_code = kExitFailure;
    }
  }
  if (settings.as_json && !collected.empty())
    std::printf("%s\n", (all.size() == 1 ? collected[0] : collected).dump(2).c_str());
  return exit_code;
}

}  // namespace

void add_plan(Command app, int& exit_code) {
  Command command =
      app.add_subcommand("plan", "How a case would be done, here or on another device, without running it");
  command.footer(
      "Examples:\n"
      "  deltarelay plan kda bf16 hv=8 seqs=131072,1024x10 device=h200\n"
      "  deltarelay plan \"kda bf16 hv=4 seqs=65536\" --device h200 --svg timeline.svg\n"
      "  deltarelay plan \"kda bf16 hv=4 seqs=65536\" --device gb200 --policy cula-sm100 --json");
  auto settings = std::make_shared<PlanSettings>();
  settings->arguments.add_to(command);
  command.add_flag("--json", settings->as_json,
                   "Print everything the planner decided as JSON, with the modelled schedule");
  command
      .add_option("--svg", settings->svg,
                  "Write a timeline: units against time, the unsplit schedule below the split one; of a plan with too "
                  "many items, stages against time")
      .value("FILE")
      .not_empty();
  command.add_option("--policy", settings->policy, "Cut as another system would: fla, cula-sm100, ...")
      .value("NAME")
      .not_empty();
  command.add_option("--device", settings->device, "Plan for a known device, see `deltarelay info`")
      .value("NAME")
      .not_empty();
  command.callback([settings, &exit_code] { exit_code = run_plan(*settings); });
}

}  // namespace deltarelay::command
