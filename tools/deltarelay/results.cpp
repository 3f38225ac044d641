#include "deltarelay/results.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <nlohmann/json.hpp>

#include "check/device_memory.h"
#include "deltarelay/device_facts.h"
#include "deltarelay/fma_peak.h"
#include "deltarelay/terminal.h"

namespace deltarelay::command {
namespace {

using nlohmann::json;

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

double ratio(double a, double b) { return b > 0 ? a / b : 0; }

double predicted_gain(const Timing& timing) {
  return ratio(static_cast<double>(timing.predicted_unsplit_ns), static_cast<double>(timing.predicted_ns));
}

double per_token_head(const BenchRow& row) {
  return ratio(static_cast<double>(row.timing.workspace_bytes), static_cast<double>(row.what.token_heads()));
}

double gbytes_per_second(const BenchRow& row) {
  return ratio(static_cast<double>(least_bytes(row.what)) * 1e-6, row.timing.call.median);
}

json row_json(const BenchRow& row) {
  const Timing& t = row.timing;
  json out = {{"case", row.what.name},
              {"line", cases::print_without_name(row.what)},
              {"rule", row.what.rule == DR_KDA ? "kda" : "gdn"},
              {"backend", t.backend},
              {"segments", t.segments},
              {"cut_sequences", t.cut_sequences},
              {"chunk", t.chunk},
              {"value_tiles", t.value_tiles},
              {"runs", t.call.runs},
              {"ms", t.call.median},
              {"ms_low", t.call.low},
              {"ms_high", t.call.high},
              {"host_us", t.host_us},
              {"plan_us", t.plan_us},
              {"token_heads_per_s", token_heads_per_second(row)},
              {"gflops", gflops_of(row)},
              {"gbytes_per_s", gbytes_per_second(row)},
              {"unsplit_ms", t.unsplit.median},
              {"unsplit_ms_low", t.unsplit.low},
              {"unsplit_ms_high", t.unsplit.high},
              {"predicted_ms", static_cast<double>(t.predicted_ns) * 1e-6},
              {"predicted_unsplit_ms", static_cast<double>(t.predicted_unsplit_ns) * 1e-6},
              {"error", row.error},
              {"workspace_bytes", t.workspace_bytes},
              {"workspace_bytes_per_token_head", per_token_head(row)},
              {"plan", t.plan_text},
              {"peers", json::object()}};
  if (t.on_gpu) {
    out["back_to_back_ms"] = t.back_to_back_ms;
    out["input_sets"] = t.input_sets;
    out["graph_nodes"] = t.graph_nodes;
  } else {
    out["isa"] = t.isa;
    out["variant"] = t.variant;
    out["threads"] = t.threads;
    out["fma_peak_gflops"] = t.fma_peak_gflops;
    out["fma_ratio"] = ratio(gflops_of(row), t.fma_peak_gflops);
  }
  if (!row.beside.words.empty())
    out["beside"] = {{"words", row.beside.words}, {"segments", row.beside.segments}, {"ms", row.beside.ms}};
  for (const SweepPoint& point : row.sweep) out["sweep"][std::to_string(point.segments)] = point.ms;
  return out;
}

// Cells.
bool cut(const BenchRow& row) { return row.timing.cut_sequences > 0; }
std::string name_cell(const BenchRow& row) {
  return row.what.name.empty() ? cases::print_without_name(row.what) : row.what.name;
}
std::string backend_cell(const BenchRow& row) {
  const std::string& way = row.timing.isa.empty() ? row.timing.variant : row.timing.isa;
  return row.timing.backend + (way.empty() ? "" : "/" + way);
}
std::string unsplit_cell(const BenchRow& row) { return cut(row) ? significant(row.timing.unsplit.median, 4) : "-"; }
std::string gain_cell(const BenchRow& row) {
  return cut(row) ? significant(ratio(row.timing.unsplit.median, row.timing.call.median)) + "x" : "-";
}
std::string predicted_cell(const BenchRow& row) {
  return cut(row) ? significant(predicted_gain(row.timing)) + "x" : "-";
}
std::string gflops_cell(const BenchRow& row) { return row.what.is_stage() ? "-" : significant(gflops_of(row)); }
std::string peak_cell(const BenchRow& row) {
  return row.timing.on_gpu || row.what.is_stage() ? "-"
                                                  : significant(ratio(gflops_of(row), row.timing.fma_peak_gflops));
}

}  // namespace

double gflops_of(const BenchRow& row) {
  // 7 DK DV a token-head are those of the forward. Those of a stage depend on what it is given.
  if (row.what.is_stage()) return 0;
  const double flops = 7.0 * row.what.dk * row.what.dv * static_cast<double>(row.what.token_heads());
  return ratio(flops * 1e-6, row.timing.call.median);
}

double token_heads_per_second(const BenchRow& row) {
  return ratio(static_cast<double>(row.what.token_heads()) * 1e3, row.timing.call.median);
}

const std::vector<Column>& result_columns(Columns kind) {
  static const Column kSegments = {"segments", 8, [](auto& row) { return std::to_string(row.timing.segments); }};
  static const Column kMs = {"ms", 8, [](auto& row) { return significant(row.timing.call.median, 4); }};
  static const Column kLow = {"10 %", 8, [](auto& row) { return significant(row.timing.call.low, 4); }};
  static const Column kHigh = {"90 %", 8, [](auto& row) { return significant(row.timing.call.high, 4); }};
  static const Column kRate = {"token-heads/s", 13,
                               [](auto& row) { return thousands(static_cast<int64_t>(token_heads_per_second(row))); }};
  static const Column kGflops = {"GFLOP/s", 8, gflops_cell};
  static const Column kUnsplit = {"unsplit", 8, unsplit_cell};
  static const Column kGain = {"vs unsplit", 10, gain_cell};
  static const Column kPredicted = {"predicted", 9, predicted_cell};
  static const Column kPlanUs = {"plan us", 8, [](auto& row) { return significant(row.timing.plan_us); }};
  static const Column kError = {"error", 8, [](auto& row) { return significant(row.error, 2); }};
  static const std::vector<Column> kCpuColumns = {
      {"case", 0, name_cell},
      {"backend", 16, backend_cell},
      {"threads", 7, [](auto& row) { return row.timing.on_gpu ? "-" : std::to_string(row.timing.threads); }},
      kSegments,
      kMs,
      kLow,
      kHigh,
      kRate,
      kGflops,
      {"of peak", 7, peak_cell},
      kUnsplit,
      kGain,
      kPredicted,
      kPlanUs,
      kError};
  static const std::vector<Column> kGpuColumns = {
      {"case", 0, name_cell},
      {"backend", 9, backend_cell},
      kSegments,
      kMs,
      kLow,
      kHigh,
      {"GB/s", 6, [](auto& row) { return significant(gbytes_per_second(row), 4); }},
      kRate,
      kUnsplit,
      kGain,
      kPredicted,
      {"host us", 7, [](auto& row) { return significant(row.timing.host_us); }},
      kPlanUs,
      {"B/token-head", 12, [](auto& row) { return significant(per_token_head(row)); }},
      kError};
  return kind == Columns::kGpu ? kGpuColumns : kCpuColumns;
}

std::string results_json(const std::vector<BenchRow>& rows, const std::string& commit) {
  const std::string cpu = cpu_model();
  json out = {{"device", cpu},        {"date", utc_now()}, {"commit", commit},         {"driver", ""},
              {"cuda", ""},           {"cpu", cpu},        {"build", dr_build_info()}, {"fma_target", fma_target()},
              {"rows", json::array()}};
  const bool on_gpu = std::any_of(rows.begin(), rows.end(), [](const BenchRow& row) { return row.timing.on_gpu; });
  if (on_gpu) {
    const check::gpu::Facts gpu = check::gpu::facts();
    out["device"] = gpu.name;
    out["driver"] = gpu.driver;
    out["cuda"] = gpu.cuda;
    out["l2_bytes"] = gpu.l2_bytes;
    out["units"] = gpu.units;
  }
  for (const BenchRow& row : rows) out["rows"].push_back(row_json(row));
  return out.dump(2) + "\n";
}

}  // namespace deltarelay::command
