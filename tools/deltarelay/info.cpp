#include <cstdio>
#include <nlohmann/json.hpp>

#include "deltarelay/commands.h"
#include "deltarelay/deltarelay.hpp"
#include "deltarelay/device_facts.h"
#include "deltarelay/fma_peak.h"
#include "deltarelay/terminal.h"

namespace deltarelay::command {
namespace {

using nlohmann::json;

std::vector<std::string> names(int32_t count, const char* (*name)(int32_t)) {
  std::vector<std::string> all;
  all.reserve(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) all.emplace_back(name(i));
  return all;
}

std::string comma_list(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

void print_info_json() {
  json out = {{"build", dr_build_info()},
              {"version", dr_version()},
              {"cpu", cpu_model()},
              {"threads", device_at(0).units},
              {"instruction_sets", names(dr_isa_count(), dr_isa_name)},
              {"backends", names(dr_backend_count(), dr_backend_name)},
              {"devices", json::array()}};
  for (int32_t i = 0; i < dr_device_count(); ++i) out["devices"].push_back(device_json(device_at(i)));
  std::printf("%s\n", out.dump(2).c_str());
}

void print_words() {
  const auto line = [](const char* name, const std::string& value) {
    std::printf("%s %s\n", bold(std::string(name) + std::string(18 - std::string(name).size(), ' ')).c_str(),
                value.c_str());
  };
  const dr_device here = device_at(0);
  line("build", dr_build_info());
  line("processor", cpu_model());
  line("threads", std::to_string(here.units));
  line("caches", "L1 " + bytes(here.l1_bytes) + ", L2 " + bytes(here.l2_bytes) + " a core");
  line("instruction sets", comma_list(names(dr_isa_count(), dr_isa_name)) + " (best first)");
  line("backends", comma_list(names(dr_backend_count(), dr_backend_name)) + " (in order of preference)");
  std::printf("\n%s\n", bold("known devices (plans can be made for each of them, here or not)").c_str());
  Table table(
      {"device", "kind", "costs", "units", "L1 / shared", "L2", "GB/s", "KDA chunk", "emit", "GDN chunk", "emit"}, 3);
  for (int32_t i = 0; i < dr_device_count(); ++i) {
    const dr_device d = device_at(i);
    const std::string kind = d.kind == DR_DEVICE_CPU ? "cpu" : "cuda " + capability_text(d);
    const bool cpu = d.kind == DR_DEVICE_CPU;
    const dr_costs kda = costs_of(d, cpu ? "cpu" : "cuda-sm90", cpu ? "" : "prepared", DR_KDA);
    const dr_costs gdn = costs_of(d, cpu ? "cpu" : "cuda-sm90", cpu ? "" : "prepared", DR_GDN);
    table.add({d.name, kind, kda.measured != 0 ? "measured" : "estimated", std::to_string(d.units), bytes(d.l1_bytes),
               bytes(d.l2_bytes), d.bytes_per_ns > 0 ? std::to_string(d.bytes_per_ns) : "-", std::to_string(kda.chunk),
               duration(kda.emit_ns), std::to_string(gdn.chunk), duration(gdn.emit_ns)});
  }
  std::fputs(table.text().c_str(), stdout);
}

}  // namespace

void add_info(Command app, int& exit_code) {
  Command command =
      app.add_subcommand("info", "What was built, what this machine is, which backends and devices are known");
  auto as_json = std::make_shared<bool>(false);
  command.add_flag("--json", *as_json, "Print JSON");
  command.callback([as_json, &exit_code] {
    if (*as_json) {
      print_info_json();
    } else {
      print_words();
    }
    exit_code = kExitSuccess;
  });
}

}  // namespace deltarelay::command
