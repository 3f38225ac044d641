#include "forward_case.h"

#include <algorithm>
#include <cctype>
#include <sstream>

namespace deltarelay::forward {

std::string backend_under_test() {
  for (int32_t i = 0; i < dr_backend_count(); ++i) {
    const std::string name = dr_backend_name(i);
    if (name.substr(0, 4) != "cuda") return name;
  }
  return {};
}

bool nothing_to_test() { return backend_under_test() == "reference"; }

std::vector<cases::Case> cases_in(std::string_view text) {
  std::vector<cases::Case> all;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    all.push_back(cases::parse(line));
  }
  return all;
}

std::vector<cases::Case> combine(const std::vector<std::vector<std::string>>& lists) {
  std::vector<std::string> lines = {""};
  for (const std::vector<std::string>& words : lists) {
    std::vector<std::string> longer;
    for (const std::string& line : lines) {
      for (const std::string& word : words) longer.push_back(line + " " + word);
    }
    lines = std::move(longer);
  }
  std::vector<cases::Case> all;
  for (const std::string& line : lines) all.push_back(cases::parse(line));
  return all;
}

std::string name_of(const testing::TestParamInfo<cases::Case>& info) {
  std::string name = info.param.name.empty() ? "line" : info.param.name;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name + "_" + std::to_string(info.index);
}

cases::Case on_backend(const cases::Case& c) {
  return c.backend.empty() ? cases::with_words(c, "backend=" + backend_under_test()) : c;
}

void expect_correct(const cases::Case& c) {
  const cases::Case line = on_backend(c);
  const check::Outcome outcome = check::check_case(line);
  EXPECT_TRUE(outcome.passed()) << check::report(line, outcome);
}

Ran::Ran(const cases::Case& c) : tensors(c), run(c) { run.execute(tensors.tensors()); }

void expect_correct_when_cut(const cases::Case& c) {
  const cases::Case line = on_backend(c);
  SCOPED_TRACE(cases::print(line));
  try {
    const Ran cut(line);
    const Ran whole(cases::with_words(line, "segments=off"));
    EXPECT_GE(cut.run.summary().cut_sequences, 1)
        << "the plan cut nothing: " << cut.run.describe(DR_DESCRIBE_SIGNATURE);
    EXPECT_EQ(whole.run.summary().cut_sequences, 0);
    EXPECT_EQ(cut.tensors.damage(), "");
    EXPECT_TRUE(cut.run.workspace_intact());
    const check::Reference reference = check::run_reference(cut.tensors);
    const auto expect_close = [](const std::vector<check::TensorError>& errors, const char* what) {
      for (const check::TensorError& error : errors) {
        EXPECT_TRUE(error.passes()) << what << ", " << error.tensor << ": worst " << error.worst << " at sequence "
                                    << error.worst_sequence << ", head " << error.worst_head << ", tolerance "
                                    << error.tolerance << ", not finite " << error.not_finite;
      }
    };
    expect_close(check::compare(cut.tensors, reference), "cut against reference");
    expect_close(check::compare(whole.tensors, reference), "uncut against reference");
    expect_close(check::compare(cut.tensors, whole.tensors), "cut against uncut");
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ForwardCase);
TEST_P(ForwardCase, AgreesWithTheReference) {
  if (nothing_to_test()) GTEST_SKIP() << "only the reference is built in";
  expect_correct(GetParam());
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CutCase);
TEST_P(CutCase, AgreesWithTheUncutRunAndTheReference) {
  if (nothing_to_test()) GTEST_SKIP() << "only the reference is built in";
  expect_correct_when_cut(GetParam());
}

}  // namespace deltarelay::forward
