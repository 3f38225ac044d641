#include "check/jobs.h"

#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace deltarelay::check {
namespace {

class JobRun {
 public:
  JobRun(const CheckOptions& options, const JobHooks& hooks) : options_(options), hooks_(hooks) {}

  void run(int32_t jobs) {
    std::vector<std::thread> threads;
    try {
      for (int32_t job = 1; job < jobs; ++job) threads.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
      const std::lock_guard<std::mutex> lock(mutex_);
      error_ = std::make_exception_ptr(std::runtime_error("jobs: expected a thread for each of " +
                                                          std::to_string(jobs) + ", found that the system gives " +
                                                          std::to_string(threads.size() + 1)));
    }
    work();
    for (std::thread& thread : threads) thread.join();
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

 private:
  struct Job {
    cases::Case c;
    std::optional<Outcome> outcome;  // none while the case runs
  };

  void work() {
    try {
      while (Job* job = begin()) {
        const Outcome outcome = check(job->c);
        end(*job, outcome);
      }
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex_);
      error_ = std::current_exception();
    }
  }

  Job* begin() {
    const std::lock_guard<std::mutex> lock(mutex_);
    cases::Case c;
    if (error_ != nullptr || !hooks_.next(c)) return nullptr;
    waiting_.push_back({std::move(c), {}});  // a deque, so that other jobs keep their addresses
    return &waiting_.back();
  }

  Outcome check(const cases::Case& c) const {
    try {
      return check_case(c, options_);
    } catch (const std::exception& error) {
      throw std::runtime_error(std::string(error.what()) + "; case: " + cases::print(c));
    }
  }

  void end(Job& job, const Outcome& outcome) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (hooks_.ended) hooks_.ended(outcome);
    job.outcome = outcome;
    for (; !waiting_.empty() && waiting_.front().outcome.has_value(); waiting_.pop_front())
      hooks_.in_turn(waiting_.front().c, *waiting_.front().outcome);
  }

  CheckOptions options_;
  const JobHooks& hooks_;
  std::mutex mutex_;
  std::deque<Job> waiting_;  // in order of arrival
  std::exception_ptr error_;
};

}  // namespace

void check_cases(int32_t jobs, CheckOptions options, const JobHooks& hooks) {
  if (jobs > 1) options.reference_threads = 1;
  JobRun(options, hooks).run(jobs);
}

}  // namespace deltarelay::check
