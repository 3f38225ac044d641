// Seeded random cases, one after the other or several at a time.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "check/check.h"

namespace deltarelay::check {

struct RandomOptions {
  int64_t cases = 0;          // until so many have run, those that are declined not counted,
  double seconds = 0;         // and for so long at least
  uint64_t seed = 1;          // of the first; the others follow by one
  int64_t cost = 50'000'000;  // most tokens x HV x DK x DV of a case: some 50 ms for the reference on one core
  int32_t jobs = 1;           // cases at a time, each on a thread and, on a GPU, on a stream of its own
  std::string words;          // replace or add to those of every case
  std::vector<std::string> backends = {""};  // drawn for in turn
  CheckOptions check;
};

struct RandomTally {
  int64_t passed = 0;
  int64_t failed = 0;
  int64_t declined = 0;
  std::map<std::string, int64_t> reasons;  // of those declined, without what was found
  std::string given_up;                    // why the run ended early: more of it would tell nothing; empty: it did not
};

// `before` (may be empty) and `after` see every case in the order in which they are drawn, one call at a time. Which cases are drawn does
// not depend on `jobs`, but for the last few.
RandomTally check_random(const RandomOptions& options, const std::function<void(const cases::Case&)>& before,
                         const std::function<void(const cases::Case&, const Outcome&)>& after);

}  // namespace deltarelay::check
