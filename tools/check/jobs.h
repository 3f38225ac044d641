// Cases checked several at a time, their outcomes handed over in the order in which the cases came.
#pragma once
#include <cstdint>
#include <functional>

#include "check/check.h"

namespace deltarelay::check {

// Called one at a time, whatever the number of jobs.
struct JobHooks {
  std::function<bool(cases::Case&)> next;                           // false: there is no further case
  std::function<void(const Outcome&)> ended;                        // as soon as a case has ended; may be empty
  std::function<void(const cases::Case&, const Outcome&)> in_turn;  // once every case before it has been handed over
};

// `jobs` cases at a time, each on a thread and, on a GPU, on a stream of its own. An exception of a hook, or of a check that is
// itself at fault, ends the run and is thrown here; the latter names the case.
void check_cases(int32_t jobs, CheckOptions options, const JobHooks& hooks);

}  // namespace deltarelay::check
