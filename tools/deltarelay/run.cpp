// Runs a forward on the user's tensors: reads, runs, compares with the reference, times, writes.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <thread>

#include "check/check.h"
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

// Redraws the progress bar during work that reports nothing: reading a file, the reference.
class Watched {
 public:
  Watched() : thread_([this] { watch(); }) {}
  ~Watched() { finish(); }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;
  void now(int64_t step, const char* what) {
    const std::lock_guard lock(mutex_);
    step_ = step;
    what_ = what;
    progress_.show(step_, what_);
  }
  void finish() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    wake_.notify_one();
    thread_.join();
    progress_.clear();
  }
  static constexpr int64_t kRun = 15, kTime = 60, kWrite = 95, kAll = 100;

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, std::chrono::milliseconds(250), [this] { return done_; }))
      progress_.show(step_, what_);
  }
  Progress progress_{kAll};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  int64_t step_ = 0;
  std::string what_ = "reading";
  std::thread thread_;
};

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

arrays::Format format_of(const std::string& path, arrays::Format otherwise) {
  const std::string extension = std::filesystem::path(path).extension().string();
  if (extension == ".npz") return arrays::Format::kNpz;
  if (extension == ".safetensors") return arrays::Format::kSafetensors;
  return otherwise;
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
  if (!settings.out.empty()) require_writable(settings.out);
  Watched watched;
  const arrays::File file = arrays::File::read(settings.file);
  const OwnData own(file, settings.rule, settings.words, settings.bf16);
  const cases::Case& c = own.of();

  watched.now(Watched::kRun, settings.no_check ? "running" : "running and checking");
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
    watched.now(Watched::kTime, "timing");
    const TimedInputs inputs(trial);
    timing = time_case(way, inputs, {settings.seconds, false}, [&](double share) {
      const auto done = static_cast<int64_t>(share * static_cast<double>(Watched::kWrite - Watched::kTime));
      watched.now(std::min(Watched::kTime + done, Watched::kWrite), "timing");
    });
  }
  const arrays::Format format = format_of(settings.out, file.format());
  if (ran && !settings.out.empty()) {
    watched.now(Watched::kWrite, "writing");
    arrays::write(settings.out, format, results);
  }
  watched.finish();

  std::printf("%s  %s\n",
              outcome.passed() ? green(settings.no_check ? "ran" : "passed").c_str() : red("FAILED").c_str(),
              line_of(c).c_str());
  for (const std::string& name : own.unused()) std::printf("  not looked at: %s\n", name.c_str());
  if (!outcome.plan.empty()) std::printf("  plan   %s\n", outcome.plan.c_str());
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
  return outcome.passed() ? kExitSuccess : kExitFailure;
}

}  // namespace

void add_run(Command app, int& exit_code) {
  Command command = app.add_subcommand("run", "A forward on tensors of your own, from an .npz or .safetensors file");
  command.footer(
      "Arrays: q, k, v, g, beta; with raw gates a_log and dt_bias; initial (or initial_state) for states to begin "
      "with,\n"
      "seq_offsets (or cu_seqlens) for packed sequences. Shapes are [T, H, D] or [B, T, H, D]; docs/run.md has them "
      "all.\n"
      "Examples:\n"
      "  deltarelay run kda mine.npz\n"
      "  deltarelay run kda mine.npz --out results.npz l2norm beta=logit gate=bounded:-5 segments=4\n"
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
