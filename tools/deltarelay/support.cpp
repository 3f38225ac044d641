#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "deltarelay/commands.h"
#include "deltarelay/deltarelay.hpp"
#include "deltarelay/terminal.h"

namespace deltarelay::command {
namespace {

using nlohmann::json;

// One question to every backend: words that are added to "<rule> <operation> <data type>". Each entry is a case that
// can be run by hand.
struct Feature {
  const char* name;
  const char* words;
  const char* op = "";  // "": the forward
};

constexpr const char* kBase = "hqk=2 hv=2 dk=128 dv=128 seqs=256";

constexpr std::array<Feature, 31> kFeatures = {{
    {"log gate", "gate=log:-5,0"},
    {"linear gate", "gate=linear:-5,0"},
    {"raw softplus gate", "gate=softplus"},
    {"raw bounded gate", "gate=bounded:-5"},
    {"beta logits", "beta=logit"},
    {"2 x sigmoid beta", "beta=twice"},
    {"q/k L2 norm", "l2norm"},
    {"grouped values (HV > HQK)", "hqk=2 hv=8"},
    {"any width (DK=60, DV=100)", "dk=60 dv=100"},
    {"widest (DK=DV=256)", "dk=256 dv=256"},
    {"widest values (DK=128, DV=512)", "dk=128 dv=512"},
    {"fp32 gate and beta", "g=fp32 b=fp32"},
    {"fp32 gate, beta and output", "g=fp32 b=fp32 o=fp32"},
    {"packed sequences", "seqs=200,0,1,55"},
    {"batched sequences", "batch=2x128"},
    {"lengths known at execution", "seqs=200,56 lengths=execute"},
    {"packed q/k/v views", "strides=packed"},
    {"[DV, DK] states, in place", "init final=in-place"},
    {"[DK, DV] states, 16 bit", "init=key:bf16 final=key:bf16"},
    {"state slots, null slot, mask", "seqs=64x4 init=slots:null=0:negative mask final=slots:null=0:negative"},
    {"states inside a sequence", "checkpoints=every:64"},
    {"segments", "segments=2"},
    {"batch-invariant mode", "invariant"},
    {"TF32 products, where asked for", "math=tf32"},
    {"truncated carry", "carry=truncated l2norm beta=logit"},
    {"stage chunk-local", "", "chunk-local"},
    {"stage state-pass", "init final", "state-pass"},
    {"stage state-pass, in segments", "segments=2", "state-pass"},
    {"stage outputs", "", "outputs"},
    {"stage summary", "", "summary"},
    {"stage carry", "init final", "carry"},
}};

constexpr std::array<const char*, 3> kTypes = {"fp32", "bf16", "fp16"};

struct Answer {
  dr_status status;
  std::string reason;
};

// Device on which a backend is asked: this machine, or else the first device of the table where the backend accepts
// something.
std::string place_of(int32_t backend) {
  const auto takes = [backend](const std::string& words) {
    const cases::Request request(cases::parse("kda bf16 " + std::string(kBase) + words));
    return dr_backend_check(backend, &request.problem, &request.options) == DR_SUCCESS;
  };
  if (takes("")) return "";
  for (int32_t i = 1; i < dr_device_count(); ++i) {
    dr_device device;
    dr_device_init(&device);
    if (dr_device_get(i, &device) != DR_SUCCESS) continue;
    std::string words = std::string(" device=") + device.name;
    if (takes(words)) return words;
  }
  return "";
}

// "rtx4090" of " device=rtx4090".
std::string device_in(const std::string& place) { return place.substr(place.find('=') + 1); }

Answer ask(int32_t backend, const char* rule, const char* type, const Feature& feature) {
  const std::string head = std::string(rule) + " " + feature.op + " " + type + " ";
  const cases::Case base = cases::parse(head + kBase + place_of(backend));
  const cases::Request request(cases::with_words(base, feature.words));
  const dr_status status = dr_backend_check(backend, &request.problem, &request.options);
  return {status, status == DR_SUCCESS ? "" : dr_last_error()};
}

// Data types that a backend accepts, in words: "fp32 bf16 fp16", "all", "-".
std::string types_of(int32_t backend, const char* rule, const Feature& feature) {
  std::string types;
  size_t count = 0;
  for (const char* type : kTypes) {
    if (ask(backend, rule, type, feature).status != DR_SUCCESS) continue;
    types += (types.empty() ? "" : " ") + std::string(type);
    ++count;
  }
  return count == kTypes.size() ? "all" : count == 0 ? "-" : types;
}

void print_reasons() {
  for (int32_t backend = 0; backend < dr_backend_count(); ++backend)
    for (const char* rule : {"kda", "gdn"})
      for (const char* type : kTypes)
        for (const Feature& feature : kFeatures) {
          const Answer answer = ask(backend, rule, type, feature);
          if (answer.status != DR_SUCCESS)
            std::printf("%s declines \"%s %s %s %s\": %s\n", dr_backend_name(backend), rule, feature.op, type,
                        feature.words, answer.reason.c_str());
        }
}

void print_support_json() {
  json rows = json::array();
  for (const Feature& feature : kFeatures)
    for (const char* rule : {"kda", "gdn"})
      for (const char* type : kTypes)
        for (int32_t backend = 0; backend < dr_backend_count(); ++backend) {
          const Answer answer = ask(backend, rule, type, feature);
          rows.push_back({{"feature", feature.name},
                          {"words", feature.words},
                          {"rule", rule},
                          {"dtype", type},
                          {"backend", dr_backend_name(backend)},
                          {"device", device_in(place_of(backend))},
                          {"accepted", answer.status == DR_SUCCESS},
                          {"reason", answer.reason}});
        }
  std::printf("%s\n", rows.dump(2).c_str());
}

// The answers of one backend for both rules, feature by feature.
struct BackendAnswers {
  int32_t backend;
  std::vector<std::string> kda;
  std::vector<std::string> gdn;

  bool takes_anything() const {
    const auto some = [](const std::string& types) { return types != "-"; };
    return std::any_of(kda.begin(), kda.end(), some) || std::any_of(gdn.begin(), gdn.end(), some);
  }
};

// Backends that accept something. Others would only be a column of dashes.
std::vector<BackendAnswers> columns() {
  std::vector<BackendAnswers> all;
  for (int32_t backend = 0; backend < dr_backend_count(); ++backend) {
    BackendAnswers column{backend, {}, {}};
    for (const Feature& feature : kFeatures) {
      column.kda.push_back(types_of(backend, "kda", feature));
      column.gdn.push_back(types_of(backend, "gdn", feature));
    }
    if (column.takes_anything()) all.push_back(std::move(column));
  }
  return all;
}

void print_matrix(bool markdown) {
  const std::vector<BackendAnswers> used = columns();
  std::vector<std::string> header = {"feature"};
  for (const BackendAnswers& column : used)
    for (const char* rule : {"KDA", "GDN"}) header.push_back(std::string(rule) + " " + dr_backend_name(column.backend));
  const size_t width = header.size();
  Table table(std::move(header), width);
  for (size_t i = 0; i < kFeatures.size(); ++i) {
    std::vector<std::string> row = {kFeatures[i].name};
    for (const BackendAnswers& column : used) {
      row.push_back(column.kda[i]);
      row.push_back(column.gdn[i]);
    }
    table.add(std::move(row));
  }
  std::fputs((markdown ? table.markdown() : table.text()).c_str(), stdout);
  for (int32_t backend = 0; backend < dr_backend_count() && !markdown; ++backend) {
    const std::string place = place_of(backend);
    if (!place.empty())
      std::printf("%s takes nothing on this machine; asked for %s\n", dr_backend_name(backend),
                  device_in(place).c_str());
  }
}

}  // namespace

void add_support(Command app, int& exit_code) {
  struct Settings {
    bool json = false;
    bool markdown = false;
    bool why = false;
  };
  Command command =
      app.add_subcommand("support", "Which backend takes which rule, data type and feature, by asking each of them");
  command.footer(
      "A cell lists the data types of q, k, v that the backend takes: all, some, or - for none.\n"
      "Example:\n  deltarelay support --why");
  auto settings = std::make_shared<Settings>();
  command.add_flag("--json", settings->json, "Print JSON, one row for every question");
  command.add_flag("--markdown", settings->markdown, "Print a Markdown table");
  command.add_flag("--why", settings->why, "Print the reason of every refusal");
  command.callback([settings, &exit_code] {
    require_one_format(settings->json, settings->markdown);
    if (settings->json) {
      print_support_json();
    } else {
      print_matrix(settings->markdown);
      if (settings->why) print_reasons();
    }
    exit_code = kExitSuccess;
  });
}

}  // namespace deltarelay::command
