// Runs a forward on the user's tensors: reads, runs, compares with the reference, times, writes.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "check/check.h"
#include "check/element.h"
#include "deltarelay/commands.h"
#include "deltarelay/own_data.h"
#include "deltarelay/terminal.h"
#include "deltarelay/timing.h"

namespace deltarelay::command {
namespace {

struct RunSettings {
  std::string rule;
  std::string file;
  std::vector<std::string> words;
  std::string out;
  bool bf16 = false;
  bool no_check = false;
  bool no_time = false;
  bool full_columns = false;
  double seconds = 0.5;
};

// Steps of the progress bar.
constexpr int64_t kRun = 15, kTime = 60, kWrite = 95, kAll = 100;

// The values are unknown, so an error counts as wrong only above the tolerance of hostile data.
cases::Case judged_as_hostile(cases::Case c) {
  c.keys = cases::KeyProfile::kCorrelated;
  c.gate_profile = cases::GateProfile::kZero;
  return c;
}

// The case as a line, without the gate range that a drawn case would have.
std::string line_of(const cases::Case& c) {
  std::string line = cases::print(c);
  const std::string drawn = ":-5,0";
  const size_t at = line.find(drawn + " ") != std::string::npos ? line.find(drawn + " ") : line.rfind(drawn);
  return at == std::string::npos ? line : line.erase(at, drawn.size());
}

void print_error(const check::TensorError& error, double typical) {
  if (error.measured == 0) {
    std::printf("  %-6s not measured\n", error.tensor.c_str());
    return;
  }
  const bool above = error.passes() && error.worst > typical;
  std::printf("  %-6s error %s, of all %s (%s %s)%s\n", error.tensor.c_str(), significant(error.worst, 2).c_str(),
              significant(error.whole, 2).c_str(), above ? "hostile data may have" : "typical data may have",
              significant(above ? error.tolerance : typical, 2).c_str(),
              error.not_finite > 0 ? (", " + thousands(error.not_finite) + " numbers not finite").c_str() : "");
}

void print_check(const cases::Case& c, const check::Outcome& outcome) {
  for (const check::TensorError& error : outcome.errors) {
    const bool of_output = error.tensor == "o";
    print_error(error, of_output ? check::tolerance_of_output(c) : check::tolerance_of_state(c, c.final.dtype));
  }
  if (outcome.sampled > 0)
    std::printf("  (measured on %d value columns, every token; --full measures all)\n", outcome.sampled);
}

arrays::Format format_of(const std::string& path) {
  const std::string extension = std::filesystem::path(path).extension().string();
  if (extension == ".npz") return arrays::Format::kNpz;
  if (extension == ".safetensors") return arrays::Format::kSafetensors;
  throw UsageError("--out: expected a name that ends in .npz or .safetensors, the files that can be written, found '" +
                   arrays::printable(path) + "'");
}

// "38,400 NaN in q, 3 infinities in v".
std::string inputs_text(const std::vector<check::Spoiled::Input>& inputs) {
  std::string text;
  for (const check::Spoiled::Input& input : inputs) {
    std::string found;
    if (input.nans > 0) found = thousands(input.nans) + " NaN";
    if (input.infinities > 0) found += (found.empty() ? "" : " and ") + thousands(input.infinities) + " infinities";
    text += (text.empty() ? "" : ", ") + found + " in " + input.tensor;
  }
  return text;
}

// "38,400 NaN or infinities in o"; empty if all are finite.
std::string results_text(const std::vector<arrays::Array>& results) {
  std::string text;
  for (const arrays::Array& array : results) {
    int64_t count = 0;
    for (int64_t i = 0; i < arrays::count_of(array.shape); ++i)
      count += std::isfinite(check::load(array.data.data(), array.dtype, i)) ? 0 : 1;
    if (count > 0) text += (text.empty() ? "" : ", ") + thousands(count) + " NaN or infinities in " + array.name;
  }
  return text;
}

void print_not_finite(const cases::Case& c, const check::Spoiled& spoiled, const std::string& results) {
  if (!spoiled.inputs.empty()) std::printf("  inputs hold %s\n", inputs_text(spoiled.inputs).c_str());
  if (spoiled.gates_outside > 0)
    std::printf("  g holds %s %s, of which the contract does not say what results are\n",
                thousands(spoiled.gates_outside).c_str(),
                c.gate_form == DR_GATE_LOG ? "log-decays above 0" : "decays outside [0, 1]");
  if (!results.empty()) std::printf("  results hold %s\n", results.c_str());
  const auto open = std::count_if(spoiled.open_from.begin(), spoiled.open_from.end(),
                                  [](int64_t from) { return from != check::Spoiled::kNever; });
  if (open > 0)
    std::printf("  not measured: %s of %s heads of sequences, from the 64 tokens with such an input on\n",
                thousands(open).c_str(), thousands(static_cast<int64_t>(spoiled.open_from.size())).c_str());
}

std::string listed(const std::vector<arrays::Array>& all, arrays::Format format) {
  std::string text;
  for (const arrays::Array& array : all) {
    const bool as_words = format == arrays::Format::kNpz && array.dtype == DR_BF16;
    text += (text.empty() ? "" : ", ") + array.name + " " + arrays::shape_text(array.shape) + " " + array.type +
            (as_words ? " as uint16" : "");
  }
  return text;
}

int run_own_data(const RunSettings& settings) {
  arrays::Format format{};
  if (!settings.out.empty()) {
    format = format_of(settings.out);
    require_writable("--out", settings.out);
  }
  Progress progress(kAll);
  progress.show(0, "reading");
  const arrays::File file = arrays::File::read(settings.file);
  const OwnData own(file, settings.rule, settings.words, settings.bf16);
  const cases::Case& c = own.of();

  progress.show(kRun, settings.no_check ? "running" : "running and checking");
  check::CheckOptions options;
  options.compare = !settings.no_check;
  options.full_columns = settings.full_columns;
  options.alignment = check::kAllocatorAlignment;
  options.fill = [&own](check::TensorSet& tensors) { own.fill(tensors); };
  const cases::Case way = judged_as_hostile(c);
  check::Trial trial(way, options);
  const check::Outcome outcome = trial.judge(way);
  std::vector<std::vector<std::byte>> memory;
  std::vector<arrays::Array> results;
  const bool ran = outcome.verdict == check::Verdict::kPassed || !outcome.errors.empty();
  if (ran) results = own.results(trial.tensors(), memory);

  Timing timing;
  if (ran && !settings.no_time) {
    progress.show(kTime, "timing");
    const TimedInputs inputs(trial);
    timing = time_case(way, inputs, {settings.seconds, false}, [&](double share) {
      const auto done = static_cast<int64_t>(share * static_cast<double>(kWrite - kTime));
      progress.show(std::min(kTime + done, kWrite), "timing");
    });
  }
  if (ran && !settings.out.empty()) {
    progress.show(kWrite, "writing");
    arrays::write(settings.out, format, results);
  }
  progress.clear();

  const std::string not_finite = results_text(results);
  const bool finite = not_finite.empty() && outcome.spoiled.inputs.empty();
  const std::string verdict = !outcome.passed()   ? red("FAILED")
                              : settings.no_check ? green("ran")
                              : finite            ? green("passed")
                                                  : red("NOT FINITE");
  std::printf("%s  %s\n", verdict.c_str(), line_of(c).c_str());
  for (const std::string& name : own.unused()) std::printf("  not looked at: %s\n", name.c_str());
  if (!outcome.plan.empty()) std::printf("  plan   %s\n", outcome.plan.c_str());
  print_not_finite(c, outcome.spoiled, not_finite);
  print_check(c, outcome);
  if (!outcome.passed()) std::printf("  why: %s\n", outcome.message.c_str());
  if (timing.call.runs > 0) {
    const double ns = 1e6 * timing.call.median;
    std::printf("  time   %s median, %s least of %s calls; %s token-heads a second; workspace %s\n",
                duration(ns).c_str(), duration(1e6 * timing.call.least).c_str(), thousands(timing.call.runs).c_str(),
                thousands(static_cast<int64_t>(1e9 * static_cast<double>(c.token_heads()) / ns)).c_str(),
                bytes(timing.workspace_bytes).c_str());
  }
  if (ran && !settings.out.empty())
    std::printf("  wrote  %s: %s\n", settings.out.c_str(), listed(results, format).c_str());
  return outcome.passed() && (finite || settings.no_check) ? kExitSuccess : kExitFailure;
}

}  // namespace

void add_run(Command app, int& exit_code) {
  Command command = app.add_subcommand("run", "A forward on tensors of your own, from an .npz or .safetensors file");
  command.footer(
      "Arrays: q, k, v, g, beta; with raw gates a_log and dt_bias; initial (or initial_state) for states to begin "
      "with,\n"
      "seq_offsets (or cu_seqlens) for packed sequences. Shapes are [T, H, D] or [B, T, H, D]; docs/run.md has them "
      "all.\n"
      "The exit code is 1 if a result is wrong, and if inputs or results hold NaN or infinities.\n"
      "Examples:\n"
      "  deltarelay run kda mine.npz\n"
      "  deltarelay run kda mine.npz --out results.npz l2norm beta=logit segments=4\n"
      "  deltarelay run gdn layer.safetensors --out results.safetensors init=key device=cuda");
  auto settings = std::make_shared<RunSettings>();
  command.add_option("rule", settings->rule, "kda or gdn").required().one_of({"kda", "gdn"});
  command.add_option("file", settings->file, "The tensors, .npz or .safetensors").value("FILE").required();
  command.add_option("case", settings->words, "Words of a case on gates, beta, states and how it is to be done");
  command.add_option("-o,--out", settings->out, "Write o and final to a file, .npz or .safetensors")
      .value("FILE")
      .not_empty();
  command.add_flag("--bf16", settings->bf16,
                   "Arrays of 16-bit words (uint16, V2) hold bits of bf16, which NumPy has not");
  command.add_flag("--no-check", settings->no_check, "Do not hold the results against the reference");
  command.add_flag("--no-time", settings->no_time, "Call once, for the results");
  command.add_flag("--full", settings->full_columns, "Check every value column, however large the tensors are");
  command.add_option("--seconds", settings->seconds, "Time for so long").value("SECONDS").positive().show_default();
  command.callback([settings, &exit_code] { exit_code = run_own_data(*settings); });
}

}  // namespace deltarelay::command
