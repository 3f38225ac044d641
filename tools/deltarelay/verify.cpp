#include <chrono>
#include <cstdio>
#include <limits>

#include "check/check.h"
#include "check/jobs.h"
#include "check/random.h"
#include "deltarelay/commands.h"
#include "deltarelay/deltarelay.hpp"
#include "deltarelay/terminal.h"

namespace deltarelay::command {
namespace {

struct VerifySettings {
  CaseArguments arguments;
  bool every_isa = false;
  bool skip_declined = false;
  bool quiet = false;
  bool hash = false;
  bool compare = false;  // with --hash, compare with the reference too
  check::CheckOptions check;
  check::RandomOptions random;

  bool draws() const { return random.cases > 0 || random.seconds > 0; }
};

// The seeds behind it, one for each further case, must be seeds of a case line too.
constexpr int64_t kMostSeed = int64_t{1} << 62;

struct Tally {
  int64_t passed = 0;
  int64_t failed = 0;
  int64_t skipped = 0;
};

// "cpu/NEON, 4 segments"
std::string way_of(const cases::Case& c) {
  const cases::Request request(c);
  const Plan plan(request.problem, request.options);
  const dr_plan_summary summary = plan.summary();
  std::string way = summary.backend;
  for (const char* name : {summary.isa, summary.variant})
    if (name != nullptr && *name != '\0') way += std::string("/") + name;
  if (summary.cut_sequences > 0) way += ", " + std::to_string(summary.num_segments) + " segments";
  return way;
}

// "o 1.2e-06 of 2.0e-05, final 8.1e-07 of 2.0e-05"
std::string errors_of(const check::Outcome& outcome) {
  std::string text;
  for (const check::TensorError& error : outcome.errors)
    text += (text.empty() ? "" : ", ") + error.tensor + " " + significant(error.worst, 2) + " of " +
            significant(error.tolerance, 2);
  if (outcome.sampled > 0) text += " (sampled columns)";
  return text;
}

void print_passed(const cases::Case& c, const check::Outcome& outcome) {
  std::printf("%s    %s  [%s; %s]\n", green("ok").c_str(), cases::print(c).c_str(), way_of(c).c_str(),
              errors_of(outcome).c_str());
}

void print_failed(const cases::Case& c, const check::Outcome& outcome) {
  std::printf("%s  %s\n      %s\n", red("FAIL").c_str(), cases::print(c).c_str(), outcome.message.c_str());
  if (!outcome.plan.empty()) std::printf("      plan: %s\n", outcome.plan.c_str());
  if (!outcome.errors.empty()) std::printf("      errors: %s\n", errors_of(outcome).c_str());
  std::printf("      repeat: deltarelay verify \"%s\"\n", cases::print(c).c_str());
}

// Prints one line per case, so that diff can compare two builds. Reasons go to standard error.
void print_hash(const cases::Case& c, const check::Outcome& outcome) {
  if (outcome.passed()) {
    std::printf("%016llx  %s\n", static_cast<unsigned long long>(outcome.hash), cases::print(c).c_str());
    return;
  }
  const bool declined = outcome.verdict == check::Verdict::kDeclined;
  std::printf("%-16s  %s\n", declined ? "declined" : "failed", cases::print(c).c_str());
  std::fprintf(stderr, "deltarelay: %s\n  in: %s\n", outcome.message.c_str(), cases::print(c).c_str());
}

void count_hashed(const cases::Case& c, const check::Outcome& outcome, const VerifySettings& settings, Tally& tally) {
  const bool declined = outcome.verdict == check::Verdict::kDeclined && settings.skip_declined;
  ++(outcome.passed() ? tally.passed : declined ? tally.skipped : tally.failed);
  print_hash(c, outcome);
}

void count(const cases::Case& c, const check::Outcome& outcome, const VerifySettings& settings, Tally& tally) {
  if (settings.hash) {
    count_hashed(c, outcome, settings, tally);
  } else if (outcome.passed()) {
    ++tally.passed;
    if (!settings.quiet) print_passed(c, outcome);
  } else if (outcome.verdict == check::Verdict::kDeclined && settings.skip_declined) {
    ++tally.skipped;
    if (!settings.quiet) std::printf("skip  %s\n      %s\n", cases::print(c).c_str(), outcome.message.c_str());
  } else {
    ++tally.failed;
    print_failed(c, outcome);
  }
  std::fflush(stdout);
}

// Repeats every case for each instruction set of the cpu backend.
std::vector<cases::Case> for_every_isa(const std::vector<cases::Case>& all) {
  std::vector<cases::Case> more;
  for (int32_t i = 0; i < dr_isa_count(); ++i)
    for (const cases::Case& c : all)
      more.push_back(cases::with_words(c, std::string("backend=cpu isa=") + dr_isa_name(i)));
  return more;
}

void verify_random(const VerifySettings& settings, Tally& tally) {
  check::RandomOptions options = settings.random;
  options.words = settings.arguments.with;
  options.check = settings.check;
  const auto start = std::chrono::steady_clock::now();
  const bool counted = options.cases > 0;
  Progress progress(counted ? options.cases : static_cast<int64_t>(options.seconds));
  int64_t ran = 0;
  std::string begun;  // the line of the case that began last
  const auto show = [&] {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    progress.show(counted ? ran : static_cast<int64_t>(elapsed.count()), begun);
  };
  const check::RandomTally random = check::check_random(
      options,
      [&](const cases::Case& c) {
        begun = cases::print(c);
        show();
      },
      [&](const cases::Case& c, const check::Outcome& outcome) {
        if (outcome.verdict != check::Verdict::kDeclined) ++ran;
        progress.clear();
        count(c, outcome, settings, tally);
        show();
      });
  progress.clear();
  if (!settings.hash)
    std::printf("random cases: %lld ran, %lld were declined\n", static_cast<long long>(ran),
                static_cast<long long>(random.declined));
  for (const auto& [reason, times] : random.reasons)
    std::fprintf(settings.hash ? stderr : stdout, "declined %lld: %s\n", static_cast<long long>(times), reason.c_str());
  if (random.given_up.empty()) return;
  ++tally.failed;
  std::printf("%s  random cases were given up: %s\n", red("FAIL").c_str(), random.given_up.c_str());
}

void verify_listed(const std::vector<cases::Case>& all, const VerifySettings& settings, Tally& tally) {
  Progress progress(static_cast<int64_t>(all.size()));
  size_t begun = 0;
  int64_t done = 0;
  const auto show = [&] { progress.show(done, cases::print(all[begun - 1])); };
  const auto next = [&](cases::Case& c) {
    if (begun == all.size()) return false;
    c = all[begun++];
    show();
    return true;
  };
  const auto in_turn = [&](const cases::Case& c, const check::Outcome& outcome) {
    ++done;
    if (!settings.quiet || !outcome.passed()) progress.clear();
    count(c, outcome, settings, tally);
    show();
  };
  check::check_cases(settings.random.jobs, settings.check, {next, {}, in_turn});
}

void require_backends(const std::vector<std::string>& names) {
  std::string known;
  for (int32_t i = 0; i < dr_backend_count(); ++i) known += (i > 0 ? ", " : "") + std::string(dr_backend_name(i));
  for (const std::string& name : names)
    if (!name.empty() && (", " + known + ",").find(", " + name + ",") == std::string::npos)
      throw UsageError("--on: expected of " + known + ", found " + cases::in_quotes(name));
}

int run_verify(const VerifySettings& settings) {
  std::vector<cases::Case> all = settings.arguments.read();
  if (all.empty() && !settings.draws())
    throw cases::CaseError("case: expected a case, a file of cases or --random, found 'nothing'");
  if (settings.draws() && !settings.arguments.device_file.empty())
    throw cases::CaseError("--device-file: expected cases of the command line, found random ones");
  if (settings.draws()) require_backends(settings.random.backends);
  if (settings.every_isa) all = for_every_isa(all);
  Tally tally;
  verify_listed(all, settings, tally);
  if (settings.draws()) verify_random(settings, tally);
  if (settings.hash) return tally.failed == 0 ? kExitSuccess : kExitFailure;
  std::string summary = std::to_string(tally.passed) + " passed, " + std::to_string(tally.failed) + " failed";
  if (tally.skipped > 0) summary += ", " + std::to_string(tally.skipped) + " skipped";
  std::printf("%s\n", tally.failed == 0 ? green(summary).c_str() : red(summary).c_str());
  return tally.failed == 0 ? kExitSuccess : kExitFailure;
}

}  // namespace

void add_verify(Command app, int& exit_code) {
  Command command =
      app.add_subcommand("verify", "Run cases and hold their results against the double-precision reference");
  command.footer(
      "Outputs are filled with NaN first, guarded on both sides, and measured against the table of tolerances.\n"
      "Examples:\n"
      "  deltarelay verify tests/cases/smoke.txt\n"
      "  deltarelay verify kda bf16 hv=4 seqs=4096 init final segments=4\n"
      "  deltarelay verify tests/cases/ci.txt --every-isa --with \"threads=2\"\n"
      "  deltarelay verify --random 60 --seed 1000\n"
      "  deltarelay verify --random-cases 20000 --on cuda-sm80,cuda-sm90 --jobs 16 --skip-declined -q\n"
      "  deltarelay verify --random-cases 1000 --with \"kda bf16 gate=init:2\" -q\n"
      "  deltarelay verify tests/cases/gpu.txt\n"
      "  deltarelay verify tests/cases/ci.txt --hash > before.txt");
  auto settings = std::make_shared<VerifySettings>();
  settings->arguments.add_to(command, false);
  command.add_flag("--every-isa", settings->every_isa, "Run each case on every instruction set of the cpu backend");
  command.add_flag("--skip-declined", settings->skip_declined, "A case that its backend declines is no failure");
  command.add_flag("-q,--quiet", settings->quiet, "Print failures and the summary only");
  command.add_flag("--hash", settings->hash,
                   "Print a hash of the outputs of each case instead, to show that no bit moved between two builds; "
                   "nothing is compared unless --compare is given too");
  command.add_flag("--compare", settings->compare, "With --hash: hold the results against the reference too");
  command.add_flag("--full-columns", settings->check.full_columns,
                   "Check every value column of large cases too, not only a sample");
  command.add_flag("!--bare-workspace", settings->check.poison_workspace,
                   "Leave the workspace on a GPU as it was allocated, for compute-sanitizer --tool initcheck");
  command.add_option("--random", settings->random.seconds, "Draw random cases for so many seconds")
      .value("SECONDS")
      .positive();
  command
      .add_option("--random-cases", settings->random.cases,
                  "Draw random cases until so many have run, those that were declined not counted")
      .value("N")
      .whole(1, std::numeric_limits<int64_t>::max());
  command
      .add_option("--stop-after", settings->random.most_seconds,
                  "Begin no random case after so many seconds, whatever has run by then")
      .value("SECONDS")
      .positive();
  command.add_option("--on", settings->random.backends, "Backends that random cases are drawn for, in turn")
      .value("NAME,...")
      .comma_separated();
  command
      .add_option("--jobs", settings->random.jobs, "Cases at a time, 1 to 256; they are printed in the order they came")
      .value("N")
      .whole(1, 256);
  command.add_option("--seed", settings->random.seed, "Seed of the first random case").value("N").whole(0, kMostSeed);
  command.add_option("--cost", settings->random.cost, "Most tokens x HV x DK x DV of a random case")
      .value("N")
      .whole(1, std::numeric_limits<int64_t>::max());
  command.callback([settings, &exit_code] {
    settings->check.compare = !settings->hash || settings->compare;
    exit_code = run_verify(*settings);
  });
}

}  // namespace deltarelay::command
