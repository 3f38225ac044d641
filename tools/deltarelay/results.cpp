#include "deltarelay/results.h"

#include <array>
#include <ctime>

#include "deltarelay/cpu_model.h"
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

json row_json(const BenchRow& row) {
  const Timing& t = row.timing;
  const double seconds = t.call.median * 1e-3;
  return {{"case", row.what.name},
          {"line", cases::print_without_name(row.what)},
          {"op", row.what.op == DR_OP_KDA ? "kda" : "gdn"},
          {"backend", t.backend},
          {"isa", t.isa},
          {"segments", t.segments},
          {"cut_sequences", t.cut_sequences},
          {"chunk", t.chunk},
          {"value_tiles", t.value_tiles},
          {"threads", t.threads},
          {"runs", t.call.runs},
          {"ms", t.call.median},
          {"ms_low", t.call.low},
          {"ms_high", t.call.high},
          // A CPU plan is done by the caller's own thread and its helpers: the call is the work.
          {"host_us", t.call.median * 1e3},
          {"plan_us", t.plan_us},
          {"token_heads_per_s", token_heads_per_second(row)},
          {"gflops", gflops_of(row)},
          {"gbytes_per_s", ratio(static_cast<double>(least_bytes(row.what)) * 1e-9, seconds)},
          {"fma_peak_gflops", t.fma_peak_gflops},
          {"fma_ratio", ratio(gflops_of(row), t.fma_peak_gflops)},
          {"unsplit_ms", t.unsplit.median},
          {"unsplit_ms_low", t.unsplit.low},
          {"unsplit_ms_high", t.unsplit.high},
          {"predicted_ms", static_cast<double>(t.predicted_ns) * 1e-6},
          {"predicted_unsplit_ms", static_cast<double>(t.predicted_unsplit_ns) * 1e-6},
          {"error", row.error},
          {"workspace_bytes", t.workspace_bytes},
          {"plan", t.plan_text},
          {"peers", json::object()}};
}

}  // namespace

double gflops_of(const BenchRow& row) {
  const double flops = 7.0 * row.what.dk * row.what.dv * static_cast<double>(row.what.token_heads());
  return ratio(flops * 1e-6, row.timing.call.median);
}

double token_heads_per_second(const BenchRow& row) {
  return ratio(static_cast<double>(row.what.token_heads()) * 1e3, row.timing.call.median);
}

std::vector<std::string> result_header() {
  return {"case",    "backend", "threads", "segments",   "ms",        "10 %",    "90 %", "token-heads/s",
          "GFLOP/s", "of peak", "unsplit", "vs unsplit", "predicted", "plan us", "error"};
}

size_t result_left_columns() { return 2; }

std::vector<std::string> result_cells(const BenchRow& row) {
  const Timing& t = row.timing;
  const bool cut = t.cut_sequences > 0;
  return {row.what.name.empty() ? cases::print_without_name(row.what) : row.what.name,
          t.backend + (t.isa.empty() ? "" : "/" + t.isa),
          std::to_string(t.threads),
          std::to_string(t.segments),
          significant(t.call.median, 4),
          significant(t.call.low, 4),
          significant(t.call.high, 4),
          thousands(static_cast<int64_t>(token_heads_per_second(row))),
          significant(gflops_of(row)),
          significant(ratio(gflops_of(row), t.fma_peak_gflops)),
          cut ? significant(t.unsplit.median, 4) : "-",
          cut ? significant(ratio(t.unsplit.median, t.call.median)) + "x" : "-",
          cut ? significant(predicted_gain(t)) + "x" : "-",
          significant(t.plan_us),
          significant(row.error, 2)};
}

nlohmann::json results_json(const std::vector<BenchRow>& rows, const std::string& commit) {
  const std::string cpu = cpu_model();
  json out = {{"device", cpu},        {"date", utc_now()}, {"commit", commit},         {"driver", ""},
              {"cuda", ""},           {"cpu", cpu},        {"build", dr_build_info()}, {"fma_target", fma_target()},
              {"rows", json::array()}};
  for (const BenchRow& row : rows) out["rows"].push_back(row_json(row));
  return out;
}

}  // namespace deltarelay::command
