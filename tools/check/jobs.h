// Checks several cases at a time and reports their outcomes in the order of the cases.
#pragma once
#include <cstdint>
#include <functional>

#include "check/check.h"

namespace deltarelay::check {

// Called one at a time, for any number of jobs.
struct JobHooks {
  std::function<bool(cases::Case&)> next;                           // returns false if there is no further case
  std::function<void(const Outcome&)> ended;                        // called when a case has ended; may be empty
  std::function<void(const cases::Case&, const Outcome&)> in_turn;  // called in the order of the cases
};

// Runs `jobs` cases at a time, each on its own thread and, on a GPU, its own stream. An exception of a hook, or of a
// defective check, ends the run and is thrown here; the latter names the case.
void check_cases(int32_t jobs, CheckOptions options, const JobHooks& hooks);

}  // namespace deltarelay::check
