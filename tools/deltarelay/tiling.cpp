#include <algorithm>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "deltarelay/commands.h"
#include "deltarelay/deltarelay.hpp"
#include "deltarelay/device_facts.h"
#include "deltarelay/terminal.h"

namespace deltarelay::command {
namespace {

using nlohmann::json;

constexpr const char* kBackend = "cuda-sm80";
constexpr const char* kRules[] = {"kda", "gdn"};
constexpr const char* kTiledTypes[] = {"bf16", "fp16", "fp32"};
constexpr int kWidths[] = {64, 96, 128, 192, 256};
// If there are more value columns than a narrow tile has, the wide tile is used if it exists.
constexpr int kColumns[] = {128, 64};

// The CTAs for a rule, data type and width on a device, from plans: one kind, or one with wide and one with narrow
// tiles.
std::vector<json> ctas_of(const dr_device& device, const std::string& rule, const std::string& type, int width) {
  std::vector<json> all;
  for (const int columns : kColumns) {
    const cases::Case c = cases::parse(rule + " " + type + " dk=" + std::to_string(width) +
                                       " dv=" + std::to_string(columns) + " seqs=64 backend=" + kBackend);
    const cases::Request request(c);
    dr_options options = request.options;
    options.device = &device;
    const json plan = json::parse(Plan(request.problem, options).describe(DR_DESCRIBE_JSON));
    json row = {{"rule", rule}, {"dtype", type}, {"width", width}, {"chunk", plan["chunk"]}};
    row.update(plan["cta"]);
    if (all.empty() || all[0]["value_columns"] != row["value_columns"]) all.push_back(std::move(row));
  }
  return all;
}

json tilings_of(const dr_device& device) {
  json rows = json::array();
  for (const char* rule : kRules)
    for (const char* type : kTiledTypes)
      for (const int width : kWidths)
        for (json& row : ctas_of(device, rule, type, width)) rows.push_back(std::move(row));
  return rows;
}

// GPUs of the table, or the named ones. GPUs of this machine must be named, so the table is the same everywhere.
std::vector<dr_device> devices_named(const std::vector<std::string>& names) {
  std::vector<dr_device> devices;
  for (const std::string& name : names) {
    dr_device device;
    dr_device_init(&device);
    if (dr_device_find(name.c_str(), &device) != DR_SUCCESS)
      throw cases::CaseError(std::string("--device: ") + dr_last_error());
    if (device.kind != DR_DEVICE_CUDA) throw cases::CaseError("--device: expected a GPU, found '" + name + "'");
    devices.push_back(device);
  }
  for (int32_t i = 0; i < dr_device_count() && names.empty(); ++i) {
    const dr_device device = device_at(i);
    if (device.kind == DR_DEVICE_CUDA && std::strchr(device.name, ':') == nullptr) devices.push_back(device);
  }
  return devices;
}

std::string text_of(const json& number) { return std::to_string(number.get<int64_t>()); }

// One row for all devices: they differ only in shared memory, which changes only the number of CTAs.
Table tiling_table(const std::vector<dr_device>& devices) {
  std::set<int64_t> sizes;
  for (const dr_device& device : devices) sizes.insert(device.l1_bytes);
  std::vector<std::string> header = {"rule",    "data",   "DK up to",      "value columns",      "chunk",
                                     "threads", "stages", "shared memory", "registers a thread", "CTAs by registers"};
  std::vector<json> tables;
  for (const int64_t size : sizes) {
    header.push_back("CTAs in " + bytes(size));
    const auto device =
        std::find_if(devices.begin(), devices.end(), [&](const dr_device& d) { return d.l1_bytes == size; });
    tables.push_back(tilings_of(*device));
  }
  Table table(std::move(header), 2);
  for (size_t i = 0; i < tables[0].size(); ++i) {
    const json& row = tables[0][i];
    if (row["dtype"] == "fp16") continue;  // the same as bf16
    std::vector<std::string> cells = {row["rule"], row["dtype"] == "bf16" ? "16 bit" : "fp32"};
    for (const char* field : {"width", "value_columns", "chunk", "threads", "stages"})
      cells.push_back(text_of(row[field]));
    cells.push_back(bytes(row["shared_bytes"]));
    for (const char* field : {"registers", "by_registers"}) cells.push_back(text_of(row[field]));
    for (const json& each : tables) cells.push_back(text_of(each[i]["together"]));
    table.add(std::move(cells));
  }
  return table;
}

Table cost_table(const std::vector<dr_device>& devices) {
  Table table({"device", "costs", "rule", "capability", "units", "shared memory", "GB/s", "chunk", "prepare", "emit",
               "summarize", "carry", "item", "barriers"},
              3);
  for (const dr_device& d : devices)
    for (const char* rule : kRules) {
      const dr_costs c = costs_of(d, kBackend, "", std::strcmp(rule, "kda") == 0 ? DR_KDA : DR_GDN);
      table.add({d.name, c.measured != 0 ? "measured" : "estimated", rule, capability_text(d), std::to_string(d.units),
                 bytes(d.l1_bytes), std::to_string(d.bytes_per_ns), std::to_string(c.chunk), duration(c.prepare_ns),
                 duration(c.emit_ns), duration(c.summarize_ns), duration(c.carry_ns), duration(c.item_ns),
                 duration(c.split_ns)});
    }
  return table;
}

void print_tilings_json(const std::vector<dr_device>& devices) {
  json out = json::array();
  for (const dr_device& device : devices) {
    json facts = device_json(device);
    facts["tilings"] = tilings_of(device);
    out.push_back(std::move(facts));
  }
  std::printf("%s\n", out.dump(2).c_str());
}

void print_tables(const std::vector<dr_device>& devices, bool markdown) {
  const Table tiling = tiling_table(devices), costs = cost_table(devices);
  if (markdown) {
    std::printf("%s\n%s", tiling.markdown().c_str(), costs.markdown().c_str());
    return;
  }
  std::printf("%s\n%s\n", bold("CTAs of the portable kernels, and how many a multiprocessor runs at once").c_str(),
              tiling.text().c_str());
  std::printf("%s\n%s", bold("what the planner assumes: a chunk of one head at DK = DV = 128, 16 bit").c_str(),
              costs.text().c_str());
}

}  // namespace

void add_tiling(Command app, int& exit_code) {
  struct Settings {
    std::vector<std::string> devices;
    bool json = false;
    bool markdown = false;
  };
  Command command = app.add_subcommand(
      "tiling", "How the portable GPU kernels are tiled for each device, and the costs that the planner assumes");
  command.footer(
      "Columns: 'CTAs by registers' is the number of CTAs that the registers of a multiprocessor allow; 'CTAs in' a "
      "size is "
      "the number that runs at once with this much shared memory.\n"
      "Example:\n  deltarelay tiling --device rtx4090");
  auto settings = std::make_shared<Settings>();
  command.add_option("--device", settings->devices, "Known devices, see `deltarelay info`; all GPU models without")
      .value("NAME,...")
      .comma_separated();
  command.add_flag("--json", settings->json, "Print JSON, one entry a device");
  command.add_flag("--markdown", settings->markdown, "Print Markdown tables");
  command.callback([settings, &exit_code] {
    require_one_format(settings->json, settings->markdown);
    const std::vector<dr_device> devices = devices_named(settings->devices);
    if (settings->json) {
      print_tilings_json(devices);
    } else {
      print_tables(devices, settings->markdown);
    }
    exit_code = kExitSuccess;
  });
}

}  // namespace deltarelay::command
