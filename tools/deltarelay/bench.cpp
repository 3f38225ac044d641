#include <algorithm>
#include <cstdio>
#include <functional>
#include <new>
#include <optional>

#include "arrays/arrays.h"
#include "check/check.h"
#include "deltarelay/commands.h"
#include "deltarelay/commit.h"
#include "deltarelay/deltarelay.hpp"
#include "deltarelay/results.h"
#include "deltarelay/terminal.h"

namespace deltarelay::command {
namespace {

struct BenchSettings {
  CaseArguments arguments;
  std::string json;
  bool markdown = false;
  bool sweep = false;
  bool full_columns = false;
  double min_seconds = 0.5;
  std::string beside;
  std::string commit = kCommit;
};

// Prints rows as they finish, in columns wide enough for usual values.
class RowPrinter {
 public:
  RowPrinter(const std::vector<cases::Case>& all, Columns kind) : columns_(result_columns(kind)) {
    for (const Column& column : columns_) widths_.push_back(std::max(column.width, std::string(column.title).size()));
    for (const cases::Case& c : all)
      widths_[0] = std::max(widths_[0], c.name.empty() ? cases::print_without_name(c).size() : c.name.size());
    std::vector<std::string> titles;
    for (const Column& column : columns_) titles.emplace_back(column.title);
    std::printf("%s\n", bold(line(titles)).c_str());
  }
  void print(const BenchRow& row) const {
    std::vector<std::string> cells;
    for (const Column& column : columns_) cells.push_back(column.cell(row));
    std::printf("%s\n", line(cells).c_str());
    if (!row.sweep.empty()) std::printf("  %s\n", sweep_line(row).c_str());
    std::fflush(stdout);
  }

 private:
  std::string line(const std::vector<std::string>& cells) const {
    std::string text;
    for (size_t i = 0; i < cells.size(); ++i) {
      const std::string gap(widths_[i] - std::min(widths_[i], cells[i].size()), ' ');
      text += (i > 0 ? "  " : "") + (i < kLeftColumns ? cells[i] + gap : gap + cells[i]);
    }
    return text;
  }
  // "segments 1: 2.36 ms, 2: 1.31, 4: 0.71; auto (16): 0.284"
  static std::string sweep_line(const BenchRow& row) {
    std::string text = "segments ";
    for (size_t i = 0; i < row.sweep.size(); ++i)
      text += (i > 0 ? ", " : "") + std::to_string(row.sweep[i].segments) + ": " + significant(row.sweep[i].ms, 4) +
              (i == 0 ? " ms" : "");
    return text + "; auto (" + std::to_string(row.timing.segments) + "): " + significant(row.timing.call.median, 4);
  }
  const std::vector<Column>& columns_;
  std::vector<size_t> widths_;
};

// Throws with the outcome's message unless the outcome passed.
const check::Outcome& require_passed(const check::Outcome& outcome) {
  if (!outcome.passed()) throw std::runtime_error(outcome.message);
  return outcome;
}

int64_t most_segments(const cases::Case& c) {
  const cases::Request request(c);
  return Plan(request.problem, request.options).summary().max_segments;
}

constexpr int64_t kSweep[] = {1, 2, 4, 8, 16, 32, 64};
constexpr double kSweepShare = 0.3;  // time for each number of segments, relative to the row itself

std::vector<SweepPoint> sweep(const cases::Case& c, check::Trial& trial, const TimedInputs& inputs, double min_seconds,
                              const ShowProgress& progress) {
  std::vector<SweepPoint> points;
  for (const int64_t segments : kSweep) {
    cases::Case way = unsplit_of(c);
    if (segments > 1) {
      way.segments = DR_SEGMENTS_COUNT;
      way.segment_value = segments;
    }
    const check::Outcome outcome = trial.judge(way);
    // The backend declines forced cuts, or no sequence has enough chunks: no such point. Anything else is a failure.
    if (outcome.verdict == check::Verdict::kDeclined || outcome.verdict == check::Verdict::kInvalid) continue;
    if (!outcome.passed()) throw std::runtime_error(std::to_string(segments) + " segments: " + outcome.message);
    if (most_segments(way) < segments) continue;
    points.push_back({segments, time_case(way, inputs, {kSweepShare * min_seconds, false}, progress).call.median});
  }
  return points;
}

bool cuts_something(const cases::Case& c) {
  const cases::Request request(c);
  return Plan(request.problem, request.options).summary().cut_sequences > 0;
}

BenchRow measure(const cases::Case& c, const BenchSettings& settings,
                 const std::function<void(double, const char*)>& show) {
  show(0, "checking ");
  check::CheckOptions options;
  options.full_columns = settings.full_columns;
  options.alignment = check::kAllocatorAlignment;
  check::Trial trial(c, options);
  const check::Outcome outcome = require_passed(trial.judge(c));
  // The unsplit call for comparison must pass too.
  if (cuts_something(c)) require_passed(trial.judge(unsplit_of(c)));
  const auto timed = [&](double share) { show(share, "timing "); };
  timed(0);
  const TimedInputs inputs(trial);
  BenchRow row{c, time_case(c, inputs, {settings.min_seconds, true}, timed), outcome.worst_error(), {}, {}};
  if (!settings.beside.empty()) {
    const cases::Case way = cases::with_words(c, settings.beside);
    require_passed(trial.judge(way));
    const Timing timing = time_case(way, inputs, {settings.min_seconds, false}, timed);
    row.beside = {settings.beside, timing.segments, timing.call.median};
  }
  if (settings.sweep) row.sweep = sweep(c, trial, inputs, settings.min_seconds, timed);
  return row;
}

int run_bench(const BenchSettings& settings) {
  const std::vector<cases::Case> all = settings.arguments.read();
  const bool to_file = !settings.json.empty() && settings.json != "-";
  // Before minutes of timing.
  require_one_format(settings.json == "-", settings.markdown);
  if (to_file) require_writable("--json", settings.json);
  if (arrays::printable(settings.commit) != settings.commit)
    throw UsageError("--commit: expected printable characters, found " + cases::in_quotes(settings.commit));
  for (const cases::Case& c : all)
    if (!settings.beside.empty()) cases::with_words(c, settings.beside);
  const bool gpu = !all.empty() && std::all_of(all.begin(), all.end(), [](const cases::Case& c) { return c.on_gpu(); });
  const Columns kind = gpu ? Columns::kGpu : Columns::kCpu;
  std::vector<BenchRow> rows;
  const auto save = [&] {
    if (to_file) write_file("--json", settings.json, results_json(rows, settings.commit));
  };
  int64_t failed = 0;
  constexpr int64_t kSteps = 100;  // of the progress bar, per case
  Progress progress(kSteps * static_cast<int64_t>(all.size()));
  // Standard output has one format: rows as they come, one Markdown table, or JSON.
  std::optional<RowPrinter> printer;
  if (!settings.markdown && settings.json != "-") printer.emplace(all, kind);
  for (size_t i = 0; i < all.size(); ++i) {
    const cases::Case& c = all[i];
    const int64_t step = kSteps * static_cast<int64_t>(i);
    const auto fail = [&](const char* why) {
      progress.clear();
      ++failed;
      std::fprintf(
          stderr, "%s  %s\n      %s\n      no time is given for a case that failed; repeat: deltarelay verify \"%s\"\n",
          "FAIL", cases::print(c).c_str(), why, cases::print(c).c_str());
    };
    try {
      rows.push_back(measure(c, settings, [&](double share, const char* what) {
        progress.show(step + static_cast<int64_t>(share * kSteps), what + cases::print(c));
      }));
      progress.clear();
      if (printer) printer->print(rows.back());
    } catch (const std::runtime_error& error) {  // from the case, the check, the library or the run
      fail(error.what());
    } catch (const std::bad_alloc&) {
      fail("memory: the tensors of this case do not fit");
    }
    save();  // a run that is cut off keeps its rows
  }
  if (settings.markdown) {
    std::vector<std::string> titles;
    for (const Column& column : result_columns(kind)) titles.emplace_back(column.title);
    Table table(titles, kLeftColumns);
    for (const BenchRow& row : rows) {
      std::vector<std::string> cells;
      for (const Column& column : result_columns(kind)) cells.push_back(column.cell(row));
      table.add(std::move(cells));
    }
    std::fputs(table.markdown().c_str(), stdout);
  }
  save();
  if (settings.json == "-") std::fputs(results_json(rows, settings.commit).c_str(), stdout);
  return failed == 0 ? kExitSuccess : kExitFailure;
}

}  // namespace

void add_bench(Command app, int& exit_code) {
  Command command = app.add_subcommand("bench", "Check cases, then time them");
  command.footer(
      "Columns: ms is the median of one call, 10 % and 90 % its spread; GFLOP/s counts 7 DK DV a token-head; 'of peak' "
      "is\n"
      "the share of the fp32 FMA rate of as many threads, measured in between; 'unsplit' is the time of the same case "
      "with\n"
      "segments=off, timed in turns with it; 'vs unsplit' and 'predicted' are the gain as measured and as modelled.\n"
      "On a GPU (device=cuda) ms is the work of a whole call there, replayed as a graph on inputs that are not in its "
      "cache;\n"
      "'host us' is the time the call itself takes, 'B/token-head' its workspace.\n"
      "Examples:\n"
      "  deltarelay bench tests/cases/cpu-bench.txt --json results.json\n"
      "  deltarelay bench gdn fp32 hv=4 seqs=4096 threads=1 --min-time 2\n"
      "  deltarelay bench tests/cases/targets.txt --with device=cuda --sweep");
  auto settings = std::make_shared<BenchSettings>();
  settings->arguments.add_to(command);
  command.add_option("--json", settings->json, "Write results to a file in the common format (- for standard output)")
      .value("FILE")
      .not_empty();
  command.add_flag("--markdown", settings->markdown, "Print a Markdown table");
  command.add_flag("--sweep", settings->sweep, "Time 1, 2, 4, ... 64 forced segments beside what the planner chose");
  command.add_option("--beside", settings->beside, "Check and time each case with these words too, e.g. \"policy=fla\"")
      .value("WORDS")
      .not_empty();
  command.add_flag("--full-columns", settings->full_columns,
                   "Check every value column of large cases too, not only a sample");
  command.add_option("--min-time", settings->min_seconds, "Seconds to spend on each timed plan")
      .value("SECONDS")
      .positive()
      .show_default();
  command.add_option("--commit", settings->commit, "Commit to name in the results").value("HASH").show_default();
  command.callback([settings, &exit_code] { exit_code = run_bench(*settings); });
}

}  // namespace deltarelay::command
