#include <algorithm>
#include <cstdio>
#include <optional>

#include "check/check.h"
#include "check/run.h"
#include "deltarelay/commands.h"
#include "deltarelay/commit.h"
#include "deltarelay/deltarelay.hpp"
#include "deltarelay/results.h"
#include "deltarelay/terminal.h"

namespace deltarelay::command {
namespace {

struct Settings {
  CaseArguments arguments;
  std::string json;
  bool markdown = false;
  double min_seconds = 0.5;
  std::string commit = kCommit;
};

// Cells of finished rows are printed at once, in columns that are wide enough for what usually comes.
class RowPrinter {
 public:
  explicit RowPrinter(const std::vector<cases::Case>& all) {
    constexpr size_t kWidest[] = {0, 16, 7, 8, 8, 8, 8, 13, 8, 7, 8, 10, 9, 8, 8};
    const std::vector<std::string> header = result_header();
    for (size_t i = 0; i < header.size(); ++i) widths_.push_back(std::max(kWidest[i], header[i].size()));
    for (const cases::Case& c : all)
      widths_[0] = std::max(widths_[0], c.name.empty() ? cases::print_without_name(c).size() : c.name.size());
    std::printf("%s\n", bold(line(header)).c_str());
  }
  void print(const BenchRow& row) const {
    std::printf("%s\n", line(result_cells(row)).c_str());
    std::fflush(stdout);
  }

 private:
  std::string line(const std::vector<std::string>& cells) const {
    std::string text;
    for (size_t i = 0; i < cells.size(); ++i) {
      const std::string gap(widths_[i] - std::min(widths_[i], cells[i].size()), ' ');
      text += (i > 0 ? "  " : "") + (i < result_left_columns() ? cells[i] + gap : gap + cells[i]);
    }
    return text;
  }
  std::vector<size_t> widths_;
};

double worst_error(const check::Outcome& outcome) {
  double worst = 0;
  for (const check::TensorError& error : outcome.errors) worst = std::max(worst, error.worst);
  return worst;
}

int run(const Settings& settings) {
  const std::vector<cases::Case> all = settings.arguments.read();
  std::vector<BenchRow> rows;
  int64_t failed = 0;
  constexpr int64_t kSteps = 100;  // of the progress bar, for each case
  Progress progress(kSteps * static_cast<int64_t>(all.size()));
  // Standard output is for one thing: rows as they come, one Markdown table, or JSON.
  std::optional<RowPrinter> printer;
  if (!settings.markdown && settings.json != "-") printer.emplace(all);
  for (size_t i = 0; i < all.size(); ++i) {
    const cases::Case& c = all[i];
    const int64_t step = kSteps * static_cast<int64_t>(i);
    const auto show = [&](double share, const char* what) {
      progress.show(step + static_cast<int64_t>(share * kSteps), what + cases::print(c));
    };
    try {
      show(0, "checking ");
      const check::Outcome outcome = check::check_case(c);
      if (!outcome.passed()) throw std::runtime_error(outcome.message);
      const auto timed = [&](double share) { show(share, "timing "); };
      timed(0);
      rows.push_back({c, time_case(c, settings.min_seconds, timed), worst_error(outcome)});
      progress.clear();
      if (printer) printer->print(rows.back());
    } catch (const cases::CaseError&) {
      throw;
    } catch (const std::runtime_error& error) {  // of the check, of the library, or of the run
      progress.clear();
      ++failed;
      std::fprintf(
          stderr, "%s  %s\n      %s\n      no time is given for a case that failed; repeat: deltarelay verify \"%s\"\n",
          "FAIL", cases::print(c).c_str(), error.what(), cases::print(c).c_str());
    }
  }
  if (settings.markdown && settings.json != "-") {
    Table table(result_header(), result_left_columns());
    for (const BenchRow& row : rows) table.add(result_cells(row));
    std::fputs(table.markdown().c_str(), stdout);
  }
  if (!settings.json.empty()) {
    const std::string text = results_json(rows, settings.commit).dump(2) + "\n";
    if (settings.json == "-") {
      std::fputs(text.c_str(), stdout);
    } else {
      write_file(settings.json, text);
    }
  }
  return failed == 0 ? kExitSuccess : kExitFailure;
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("bench", "Check cases, then time them");
  command->footer(
      "Columns: ms is the median of one call, 10 % and 90 % its spread; GFLOP/s counts 7 DK DV a token-head; 'of peak' "
      "is\n"
      "the share of the fp32 FMA rate of as many threads, measured in between; 'unsplit' is the time of the same case "
      "with\n"
      "segments=off, timed in turns with it; 'vs unsplit' and 'predicted' are the gain as measured and as modelled.\n"
      "Examples:\n"
      "  deltarelay bench tests/cases/cpu-bench.txt --json results.json\n"
      "  deltarelay bench gdn fp32 hv=4 seqs=4096 threads=1 --min-time 2");
  auto settings = std::make_shared<Settings>();
  settings->arguments.add_to(*command);
  command->add_option("--json", settings->json, "Write results to a file in the common format (- for standard output)")
      ->type_name("FILE");
  command->add_flag("--markdown", settings->markdown, "Print a Markdown table");
  command->add_option("--min-time", settings->min_seconds, "Seconds to spend on each timed plan")
      ->type_name("SECONDS")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--commit", settings->commit, "Commit to name in the results")
      ->type_name("HASH")
      ->capture_default_str();
  command->callback([settings, &exit_code] { exit_code = run(*settings); });
}

}  // namespace deltarelay::command
