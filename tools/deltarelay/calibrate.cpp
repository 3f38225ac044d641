// Measures facts and stage costs of this machine's CPU. The library never measures by itself.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "check/run.h"
#include "deltarelay/commands.h"
#include "deltarelay/device_facts.h"
#include "deltarelay/fma_peak.h"
#include "deltarelay/terminal.h"

namespace deltarelay::command {
namespace {

struct CalibrateSettings {
  std::string output;
  double seconds = 3.0;
};

constexpr int32_t kBursts = 50;
constexpr double kBurstSeconds = 0.003;
// All calls take turns, so that a slow period of the machine affects all of them alike.
constexpr int32_t kMostRounds = 5;
constexpr double kRoundSeconds = 0.1;

// CPU time of this thread in nanoseconds: time that other processes take of the core does not count.
double worked_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e9 * static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec);
}

double elapsed_ns() {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A timed call. Keeps the smallest time, because other load can only add time. A call on one thread runs on the
// caller's thread and is measured by CPU time; a call on several threads is measured by wall time.
class TimedCall {
 public:
  explicit TimedCall(const std::string& line) : tensors_(cases::parse(line)), run_(tensors_.of()) {
    run_.execute(tensors_.tensors());  // the first call pays for threads and page faults
  }
  void run_for(double seconds) {
    const auto clock = tensors_.of().threads == 1 ? worked_ns : elapsed_ns;
    const double end = elapsed_ns() + 1e9 * seconds;
    do {
      const double start = clock();
      run_.execute(tensors_.tensors());
      best_ns_ = std::min(best_ns_, clock() - start);
    } while (elapsed_ns() < end);
  }
  double ns() const { return best_ns_; }

 private:
  check::TensorSet tensors_;
  check::PlannedRun run_;
  double best_ns_ = std::numeric_limits<double>::infinity();
};

// The calls of one rule at DK = DV = 128. Costs are differences between them.
struct RuleCalls {
  static constexpr int64_t kChunk = 16;               // of the cpu backend
  static constexpr int64_t kShort = 64, kLong = 256;  // chunks of a whole sequence
  static constexpr int64_t kThird = 64;               // chunks of one of three segments; also twice that
  static constexpr int64_t kPieces = 16;              // segments of the long sequence; also twice as many
  static constexpr int64_t kBrief = 16;               // chunks for a cost of a few microseconds

  TimedCall emit, emit_long;      // one head on one thread
  TimedCall narrow, narrow_long;  // half of the value columns
  TimedCall thirds, thirds_long;  // one segment of three is summarized
  TimedCall pieces, more_pieces;  // all but two of the segments are summarized and folded
  TimedCall whole, halves;        // all units, in one phase and in two

  RuleCalls(const std::string& rule, int32_t units)
      : emit(line(rule, kShort, "segments=off")),
        emit_long(line(rule, kLong, "segments=off")),
        narrow(line(rule, kShort, "dv=64 segments=off")),
        narrow_long(line(rule, kLong, "dv=64 segments=off")),
        thirds(line(rule, 3 * kThird, "segments=3")),
        thirds_long(line(rule, 6 * kThird, "segments=3")),
        pieces(line(rule, kLong, "segments=" + std::to_string(kPieces))),
        more_pieces(line(rule, kLong, "segments=" + std::to_string(2 * kPieces))),
        whole(line(rule, kBrief, "segments=off", units)),
        halves(line(rule, kBrief, "segments=2", units)) {}

  std::vector<TimedCall*> all() {
    return {&emit, &emit_long, &narrow, &narrow_long, &thirds, &thirds_long, &pieces, &more_pieces, &whole, &halves};
  }

  // Returns false and leaves the costs unchanged if the times cannot be right, as differences on a busy machine may be.
  bool set_costs(dr_costs& c) const {
    const double more = kLong - kShort;
    const double emit_ns = (emit_long.ns() - emit.ns()) / more;
    const double item_ns = emit.ns() - kShort * emit_ns;
    // Half of the columns take the shared part and half of the rest.
    const double local_ns = 2 * (narrow_long.ns() - narrow.ns()) / more - emit_ns;
    const double summarize_ns = (thirds_long.ns() - thirds.ns() - 3 * kThird * emit_ns) / kThird;
    // Twice as many segments are that many more folds. The first and the last segment are not summarized.
    constexpr int64_t kMoreSummarized = kLong / kPieces;
    const double carry_ns = (more_pieces.ns() - pieces.ns() - kMoreSummarized * summarize_ns) / kPieces;
    // A summary is a walk with other columns; a fold is a product of the size of a few chunks.
    const bool credible = emit_ns > 0 && summarize_ns > 0.5 * emit_ns && summarize_ns < 4 * emit_ns && local_ns > 0 &&
                          local_ns < emit_ns && carry_ns > 0 && carry_ns < 20 * emit_ns;
    if (!credible) return false;
    const auto number = [](double ns, int32_t least, int32_t most = 1 << 30) {
      return static_cast<int32_t>(std::lround(std::clamp<double>(ns, least, most)));
    };
    c.chunk = kChunk;
    c.emit_ns = number(emit_ns, 1);
    c.summarize_ns = number(summarize_ns, 1);
    c.local_ns = number(local_ns, 0, c.emit_ns);
    c.summarize_local_ns = number(local_ns, 0, c.summarize_ns);
    c.carry_ns = c.carry_unit_ns = number(carry_ns, 0);
    c.split_ns = number(halves.ns() - whole.ns(), 0);
    c.item_ns = number(item_ns, 0);
    return true;
  }

 private:
  // Gates are so weak that no number underflows. Subnormal numbers are slow on x86: with gates that forget, cut calls
  // took two to four times as long on a Xeon.
  static constexpr const char* kGates = "gate=log:-0.01,0";

  static std::string line(const std::string& rule, int64_t chunks, const std::string& words, int32_t units = 1) {
    return rule + " fp32 hv=" + std::to_string(units) + " threads=" + std::to_string(units) +
           " seqs=" + std::to_string(chunks * kChunk) + " backend=cpu l2norm " + kGates + " " + words;
  }
};

cases::DeviceFacts measure(double seconds) {
  Progress progress(100);
  progress.show(0, "timing multiply-adds");
  cases::DeviceFacts facts;
  facts.device = device_at(0);
  double rate = 0;  // largest of many short bursts
  for (int32_t burst = 0; burst < kBursts; ++burst) rate = std::max(rate, measure_fma_gflops(1, kBurstSeconds));
  facts.device.flops_per_ns = std::max(1, static_cast<int32_t>(std::lround(rate)));
  const std::string names[] = {"kda", "gdn"};
  facts.costs = costs_of(facts.device);
  int64_t done = 0;
  const auto rounds = static_cast<int32_t>(std::clamp<double>(seconds / kRoundSeconds, 1, kMostRounds));
  for (size_t rule = 0; rule < facts.costs.size(); ++rule) {
    progress.show(50 * static_cast<int64_t>(rule), "drawing inputs of " + names[rule]);
    RuleCalls calls(names[rule], facts.device.units);
    const std::vector<TimedCall*> all = calls.all();
    const auto turns = static_cast<int64_t>(rounds * all.size());
    const double share = std::max(0.0, seconds - kBursts * kBurstSeconds) / static_cast<double>(2 * turns);
    for (int32_t round = 0; round < rounds; ++round) {
      for (TimedCall* call : all) {
        progress.show(100 * done++ / (2 * turns), "timing " + names[rule]);
        call->run_for(share);
      }
    }
    dr_costs& c = facts.costs[rule];
    if (!calls.set_costs(c)) {
      progress.clear();
      std::fprintf(stderr,
                   "deltarelay: %s: times are too unsteady to take costs from; the library's are kept, scaled by the "
                   "rate. Repeat on an idle machine or with more --seconds\n",
                   names[rule].c_str());
      continue;
    }
    c.measured = 1;
    const std::string_view model = facts.device.model;
    c.measured_on[model.copy(c.measured_on, sizeof c.measured_on - 1)] = '\0';
  }
  return facts;
}

int run_calibration(const CalibrateSettings& settings) {
  if (!settings.output.empty()) require_writable("--output", settings.output);
  const cases::DeviceFacts facts = measure(settings.seconds);
  const std::string text = device_json(facts.device, facts.costs).dump(2) + "\n";
  if (settings.output.empty()) {
    std::fputs(text.c_str(), stdout);
    return kExitSuccess;
  }
  write_file("--output", settings.output, text);
  Table table({"rule", "emit", "summarize", "local", "carry", "split", "item"}, 1);
  for (const dr_costs& c : facts.costs)
    table.add({c.rule == DR_KDA ? "kda" : "gdn", duration(c.emit_ns), duration(c.summarize_ns), duration(c.local_ns),
               duration(c.carry_unit_ns), duration(c.split_ns), duration(c.item_ns)});
  std::printf("%s, %d threads, %d GFLOP/s each\n%s", facts.device.model, facts.device.units, facts.device.flops_per_ns,
              table.text().c_str());
  return kExitSuccess;
}

}  // namespace

void add_calibrate(Command app, int& exit_code) {
  Command command =
      app.add_subcommand("calibrate", "Measure this machine's CPU: facts and stage costs that plans can be made with");
  command.footer(
      "The library's own costs were measured on one model of CPU; on another one they are estimates. A file of "
      "measured ones\n"
      "goes into dr_options.device and dr_options.costs, or to --device-file of plan, explain, verify and bench. Times "
      "are the\n"
      "least of many; on a machine that is busy they may be too unsteady, and then it says so.\n"
      "Examples:\n"
      "  deltarelay calibrate --output cpu.json\n"
      "  deltarelay plan kda bf16 hv=2 seqs=65536 --device-file cpu.json");
  auto settings = std::make_shared<CalibrateSettings>();
  command.add_option("-o,--output", settings->output, "Write the facts to a file, and a table to standard output")
      .value("FILE")
      .not_empty();
  command.add_option("--seconds", settings->seconds, "Time to take, about: more than 0, at most 600")
      .value("SECONDS")
      .positive(600.0)
      .show_default();
  command.callback([settings, &exit_code] { exit_code = run_calibration(*settings); });
}

}  // namespace deltarelay::command
