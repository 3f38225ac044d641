// Tests of the whole forward pass, written as case lines: a failure prints the line that repeats it
// (deltarelay verify "<line>").
#pragma once
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "case/case.h"
#include "check/check.h"
#include "check/run.h"

namespace deltarelay::cases {

// GoogleTest prints a parameter as its case line.
inline void PrintTo(const Case& c, std::ostream* out) { *out << print(c); }

}  // namespace deltarelay::cases

namespace deltarelay::forward {

// The backend under test: the library's first choice in host memory (tests/gpu has the others).
std::string backend_under_test();
// True if only the reference is built: comparing it with itself would prove nothing.
bool nothing_to_test();

// One case per line; lines without a name are numbered. A backslash at the end continues a case on the next line.
std::vector<cases::Case> cases_in(std::string_view text);
// Every combination of one word from each list, as cases. Sanitizers take 15 times as long and look for errors that
// hardly depend on values, so under them the set is as small as possible but contains every word.
std::vector<cases::Case> combine(const std::vector<std::vector<std::string>>& lists);
// Every case on every instruction set of this machine.
std::vector<cases::Case> on_every_isa(const std::vector<cases::Case>& lines);
// A name that GoogleTest accepts.
std::string name_of(const testing::TestParamInfo<cases::Case>& info);

// The case on the backend under test, unless it names another.
cases::Case on_backend(const cases::Case& c);
// Runs the case in guarded memory and compares it with the reference.
void expect_correct(const cases::Case& c);
// The same; also checks that the plan cut a sequence and that the uncut run agrees within the tolerance.
void expect_correct_when_cut(const cases::Case& c);

// A case that ran: its tensors hold the results.
struct Ran {
  explicit Ran(const cases::Case& c, const check::Fill& fill = {});
  check::TensorSet tensors;
  check::PlannedRun run;
};

// Bits of one (sequence, head): o and final state.
std::vector<std::byte> block_of(const check::TensorSet& x, int64_t sequence, int64_t head);
// Bits of the results after `tokens` tokens: rows of o and checkpoints.
std::vector<std::byte> history_of(const check::TensorSet& x, int64_t sequence, int64_t head, int64_t tokens);

// One position in an input; token -1 means the initial state.
struct Place {
  int64_t sequence, head, token;
};
// `dirty` had a bad number at the place: only its sequence and head may differ from `clean`, from its 64-token chunk
// on.
void expect_contained(const check::TensorSet& dirty, const check::TensorSet& clean, const Place& place,
                      const std::string& what);
// Values of g outside the contract, in the gate form of the case.
std::vector<double> gates_outside_the_contract(const cases::Case& c);

// Test suites over case lines: TEST_P bodies are in forward_case.cpp.
class ForwardCase : public testing::TestWithParam<cases::Case> {};
class CutCase : public testing::TestWithParam<cases::Case> {};

}  // namespace deltarelay::forward
