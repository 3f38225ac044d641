// Seeded random cases, one after the other or several at a time.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "check/check.h"

namespace deltarelay::check {

struct RandomOptions {
  int64_t cases = 0;   // stop after this many cases, declined ones not counted,
  double seconds = 0;  // but not before this time,
  double most_seconds = std::numeric_limits<double>::infinity();  // and begin none after this one
  uint64_t seed = 1;          // of the first forward and the first stage; each further one adds one
  int64_t cost = 50'000'000;  // limit on tokens x HV x DK x DV of a case: about 50 ms for the reference on one core
  int32_t jobs = 1;           // cases at a time, each on its own thread and, on a GPU, its own stream
  std::string words;          // of every case, in place of those drawn (cases::drawn_with_words)
  std::vector<std::string> backends = {""};  // used in turn
  CheckOptions check;
};

struct RandomTally {
  int64_t passed = 0;
  int64_t failed = 0;
  int64_t declined = 0;
  std::map<std::string, int64_t> reasons;  // of declined cases, without what was found
  std::string given_up;                    // why the run ended early; empty if it did not
};

// Does the reference run stages? Only then are stages drawn.
bool draws_stages();

// The case of draw `i`. Every fifth draw is a stage, beside the forwards: these have the seeds, the order and the
// backends that they have without stages.
cases::Case drawn_case(const RandomOptions& options, int64_t i);

// `before` (may be empty) and `after` see every case in the order of drawing, one call at a time. Which cases are drawn
// does not depend on `jobs`, except for the last few.
RandomTally check_random(const RandomOptions& options, const std::function<void(const cases::Case&)>& before,
                         const std::function<void(const cases::Case&, const Outcome&)>& after);

}  // namespace deltarelay::check
