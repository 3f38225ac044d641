#include "deltarelay/device_facts.h"

#include <array>
#include <cerrno>
#include <concepts>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "arrays/arrays.h"
#include "deltarelay/commands.h"
#include "deltarelay/deltarelay.hpp"

namespace deltarelay::command {

using nlohmann::json;

namespace {

// An object of a JSON file with its path in the file, for messages about missing or wrong fields.
class Fields {
 public:
  Fields(std::string path, std::string place, const json& object)
      : path_(std::move(path)), place_(std::move(place)), object_(object) {
    if (!object_.is_object()) fail("", "an object", object_);
  }

  template <std::integral Number>
  void read(const char* name, Number& number) const {
    const json& value = at(name);
    if (!value.is_number_integer() || value < std::numeric_limits<Number>::min() ||
        value > std::numeric_limits<Number>::max())
      fail(name, "a whole number of " + std::to_string(8 * sizeof number) + " bits", value);
    number = value.get<Number>();
  }
  template <size_t kBytes>
  void read(const char* name, char (&text)[kBytes]) const {
    const json& value = at(name);
    if (!value.is_string() || value.get_ref<const std::string&>().size() >= kBytes)
      fail(name, "a text of at most " + std::to_string(kBytes - 1) + " bytes", value);
    const auto& given = value.get_ref<const std::string&>();
    text[given.copy(text, kBytes - 1)] = '\0';
  }
  int32_t flag(const char* name) const {
    const json& value = at(name);
    if (!value.is_boolean()) fail(name, "true or false", value);
    return value.get<bool>() ? 1 : 0;
  }
  struct Word {
    const char* text;
    int32_t value;
  };
  int32_t one_of(const char* name, std::initializer_list<Word> words) const {
    const json& value = at(name);
    std::string known;
    for (const Word& word : words) {
      if (value == word.text) return word.value;
      known += (known.empty() ? "" : " or ") + std::string(word.text);
    }
    fail(name, known, value);
  }
  std::vector<Fields> rows(const char* name) const {
    const json& value = at(name);
    if (!value.is_array()) fail(name, "a list", value);
    std::vector<Fields> all;
    for (size_t i = 0; i < value.size(); ++i)
      all.emplace_back(path_, place_ + name + "[" + std::to_string(i) + "].", value[i]);
    return all;
  }

 private:
  const json& at(const char* name) const {
    const auto found = object_.find(name);
    if (found == object_.end()) fail(name, "a value", "nothing");
    return *found;
  }
  [[noreturn]] void fail(const std::string& name, const std::string& expected, const json& found) const {
    std::string shown = found.dump();
    if (shown.size() > kMostShown) shown = shown.substr(0, kMostShown) + "...";
    throw cases::CaseError("--device-file: " + place_ + name + ": expected " + expected + ", found " + shown + " in '" +
                           arrays::printable(path_) + "'");
  }

  static constexpr size_t kMostShown = 60;  // bytes of a value that errors show
  std::string path_, place_;
  const json& object_;
};

std::string text_of(const std::string& path) {
  const auto refuse = [&path](const std::string& why) {
    throw UsageError("--device-file: expected a file that can be read, found '" + arrays::printable(path) +
                     "': " + why);
  };
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored))
    refuse("it is " + arrays::kind_of(path));
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse(std::strerror(errno));
  std::string text;
  std::array<char, 1 << 16> piece;
  while (file.read(piece.data(), piece.size()) || file.gcount() > 0)
    text.append(piece.data(), static_cast<size_t>(file.gcount()));
  if (file.bad()) refuse(std::strerror(errno));
  return text;
}

}  // namespace

dr_device device_at(int32_t index) {
  dr_device device;
  dr_device_init(&device);
  wrapper::check(dr_device_get(index, &device));
  return device;
}

dr_costs costs_of(const dr_device& device, const char* backend, const char* variant, int32_t rule) {
  dr_costs costs;
  dr_costs_init(&costs);
  wrapper::check(dr_device_costs(&device, backend, variant, rule, DR_FORWARD, &costs));
  return costs;
}

std::vector<dr_costs> costs_of(const dr_device& device) {
  struct Names {
    const char* backend;
    const char* variant;
  };
  constexpr Names kCpu[] = {{"cpu", ""}};
  constexpr Names kCuda[] = {{"cuda-sm90", "fused"}, {"cuda-sm90", "prepared"}, {"cuda-sm80", ""}};
  std::vector<dr_costs> all;
  for (const Names& names : device.kind == DR_DEVICE_CPU ? std::span<const Names>(kCpu) : std::span<const Names>(kCuda))
    for (const int32_t rule : {DR_KDA, DR_GDN}) all.push_back(costs_of(device, names.backend, names.variant, rule));
  return all;
}

json device_json(const dr_device& device) { return device_json(device, costs_of(device)); }

json device_json(const dr_device& device, const std::vector<dr_costs>& all) {
  json costs = json::array();
  for (const dr_costs& c : all) {
    costs.push_back({{"backend", c.backend},
                     {"variant", c.variant},
                     {"rule", c.rule == DR_KDA ? "kda" : "gdn"},
                     {"op", "forward"},
                     {"measured", c.measured != 0},
                     {"measured_on", c.measured_on},
                     {"chunk", c.chunk},
                     {"emit_ns", c.emit_ns},
                     {"summarize_ns", c.summarize_ns},
                     {"local_ns", c.local_ns},
                     {"summarize_local_ns", c.summarize_local_ns},
                     {"carry_ns", c.carry_ns},
                     {"carry_unit_ns", c.carry_unit_ns},
                     {"split_ns", c.split_ns},
                     {"item_ns", c.item_ns},
                     {"emit_bytes", c.emit_bytes},
                     {"summarize_bytes", c.summarize_bytes},
                     {"prepare_ns", c.prepare_ns}});
  }
  return {{"name", device.name},
          {"model", device.model},
          {"kind", device.kind == DR_DEVICE_CPU ? "cpu" : "cuda"},
          {"units", device.units},
          {"compute_capability", device.compute_capability},
          {"l1_bytes", device.l1_bytes},
          {"l2_bytes", device.l2_bytes},
          {"bytes_per_ns", device.bytes_per_ns},
          {"flops_per_ns", device.flops_per_ns},
          {"costs", costs}};
}

cases::DeviceFacts read_device_file(const std::string& path) {
  const json read = json::parse(text_of(path), nullptr, false);
  if (read.is_discarded())
    throw UsageError("--device-file: expected JSON, found other text in '" + arrays::printable(path) + "'");
  const Fields fields(path, "", read);
  cases::DeviceFacts facts{};
  dr_device_init(&facts.device);
  facts.device.kind = fields.one_of("kind", {{"cpu", DR_DEVICE_CPU}, {"cuda", DR_DEVICE_CUDA}});
  fields.read("name", facts.device.name);
  fields.read("model", facts.device.model);
  fields.read("units", facts.device.units);
  fields.read("compute_capability", facts.device.compute_capability);
  fields.read("l1_bytes", facts.device.l1_bytes);
  fields.read("l2_bytes", facts.device.l2_bytes);
  fields.read("bytes_per_ns", facts.device.bytes_per_ns);
  fields.read("flops_per_ns", facts.device.flops_per_ns);
  for (const Fields& row : fields.rows("costs")) {
    dr_costs c;
    dr_costs_init(&c);
    c.rule = row.one_of("rule", {{"kda", DR_KDA}, {"gdn", DR_GDN}});
    c.op = row.one_of("op", {{"forward", DR_FORWARD}});
    c.measured = row.flag("measured");
    row.read("backend", c.backend);
    row.read("variant", c.variant);
    row.read("measured_on", c.measured_on);
    row.read("chunk", c.chunk);
    row.read("emit_ns", c.emit_ns);
    row.read("summarize_ns", c.summarize_ns);
    row.read("local_ns", c.local_ns);
    row.read("summarize_local_ns", c.summarize_local_ns);
    row.read("carry_ns", c.carry_ns);
    row.read("carry_unit_ns", c.carry_unit_ns);
    row.read("split_ns", c.split_ns);
    row.read("item_ns", c.item_ns);
    row.read("emit_bytes", c.emit_bytes);
    row.read("summarize_bytes", c.summarize_bytes);
    row.read("prepare_ns", c.prepare_ns);
    facts.costs.push_back(c);
  }
  return facts;
}

std::string cpu_model() {
  const dr_device cpu = device_at(0);
  return cpu.model[0] != '\0' ? cpu.model : "unknown CPU";
}

std::string capability_text(const dr_device& device) {
  return std::to_string(device.compute_capability / 10) + "." + std::to_string(device.compute_capability % 10);
}

}  // namespace deltarelay::command
