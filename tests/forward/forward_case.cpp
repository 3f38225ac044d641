#include "forward_case.h"

#include <algorithm>
#include <cctype>
#include <limits>
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
    for (std::string next; line.ends_with('\\') && std::getline(lines, next);) line.replace(line.size() - 1, 1, next);
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    all.push_back(cases::parse(line));
  }
  return all;
}

namespace {

// Every combination of one word from each list.
std::vector<std::string> all_combinations(const std::vector<std::vector<std::string>>& lists) {
  std::vector<std::string> lines = {""};
  for (const std::vector<std::string>& words : lists) {
    std::vector<std::string> longer;
    for (const std::string& line : lines) {
      for (const std::string& word : words) longer.push_back(line + " " + word);
    }
    lines = std::move(longer);
  }
  return lines;
}

// A small set of combinations that contains every word of every list.
std::vector<std::string> covering_combinations(const std::vector<std::vector<std::string>>& lists) {
  size_t longest = 0;
  for (const std::vector<std::string>& words : lists) longest = std::max(longest, words.size());
  std::vector<std::string> lines(longest);
  for (const std::vector<std::string>& words : lists) {
    for (size_t i = 0; i < longest; ++i) lines[i] += " " + words[i % words.size()];
  }
  return lines;
}

}  // namespace

std::vector<cases::Case> combine(const std::vector<std::vector<std::string>>& lists) {
  const std::vector<std::string> lines = DR_SANITIZED != 0 ? covering_combinations(lists) : all_combinations(lists);
  std::vector<cases::Case> all;
  for (const std::string& line : lines) all.push_back(cases::parse(line));
  return all;
}

namespace {

// Sanitizers look for errors that a third whole chunk does not add. One-lane kernels take them minutes otherwise.
cases::Case of_few_chunks(cases::Case c) {
  constexpr int64_t kChunk = 64;
  for (int64_t& length : c.lengths) length = std::min(length, 2 * kChunk + length % kChunk);
  return c;
}

}  // namespace

std::vector<cases::Case> on_every_isa(const std::vector<cases::Case>& lines) {
  std::vector<cases::Case> all;
  for (int32_t i = 0; i < dr_isa_count(); ++i) {
    for (const cases::Case& c : lines) {
      cases::Case line = cases::with_words(c, std::string("backend=cpu isa=") + dr_isa_name(i));
      if (DR_SANITIZED != 0 && c.segments == DR_SEGMENTS_AUTO) line = of_few_chunks(line);
      std::string isa = dr_isa_name(i);
      line.name = c.name + "-on-" + isa;
      all.push_back(line);
    }
  }
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

Ran::Ran(const cases::Case& c, const check::Fill& fill) : tensors(c, check::kLeastAlignment, fill), run(c) {
  run.execute(tensors.tensors());
}

void expect_correct_when_cut(const cases::Case& c) {
  const cases::Case line = on_backend(c);
  SCOPED_TRACE(cases::print(line));
  try {
    const Ran cut(line);
    const Ran whole(cases::with_words(line, "segments=off"),
                    [&cut](check::TensorSet& inputs) { inputs.copy_inputs(cut.tensors); });
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

namespace {

using Bits = std::vector<std::byte>;

void append(Bits& bits, const std::byte* data, int64_t element, int64_t count, int32_t dtype) {
  const int64_t size = check::bytes_of(dtype);
  bits.insert(bits.end(), data + element * size, data + (element + count) * size);
}

void append_rows(Bits& bits, const check::TensorSet& x, int64_t sequence, int64_t head, int64_t tokens) {
  for (int64_t t = 0; t < tokens; ++t) append(bits, x.o().data, x.o().at(sequence, t, head, 0), x.of().dv, x.o().dtype);
}

void append_state(Bits& bits, const check::StateTensor& s, int64_t slot, int64_t head) {
  if (slot >= 0) append(bits, s.data, s.at(slot, head, 0, 0), s.dk * s.dv, s.state.dtype);
}

}  // namespace

Bits block_of(const check::TensorSet& x, int64_t sequence, int64_t head) {
  Bits bits;
  append_rows(bits, x, sequence, head, x.of().lengths[static_cast<size_t>(sequence)]);
  const check::StateTensor& s = x.final_state();
  if (s.used()) append_state(bits, s, s.slots[static_cast<size_t>(sequence)], head);
  return bits;
}

Bits history_of(const check::TensorSet& x, int64_t sequence, int64_t head, int64_t tokens) {
  Bits bits;
  append_rows(bits, x, sequence, head, tokens);
  const std::vector<std::vector<int64_t>> positions = cases::checkpoint_positions(x.of());
  size_t row = 0;
  for (size_t n = 0; n < positions.size(); ++n) {
    for (const int64_t position : positions[n]) {
      const int64_t slot = x.checkpoint().slots[row++];
      if (static_cast<int64_t>(n) == sequence && position <= tokens) append_state(bits, x.checkpoint(), slot, head);
    }
  }
  return bits;
}

void expect_contained(const check::TensorSet& dirty, const check::TensorSet& clean, const Place& place,
                      const std::string& what) {
  const cases::Case& c = clean.of();
  for (int64_t n = 0; n < c.num_seqs(); ++n) {
    for (int64_t head = 0; head < c.heads_v; ++head) {
      const bool spoilt = n == place.sequence && head == place.head;
      const int64_t kept = place.token < 0 ? -1 : place.token / 64 * 64;
      const int64_t tokens = spoilt ? kept : c.lengths[static_cast<size_t>(n)];
      EXPECT_TRUE(history_of(dirty, n, head, tokens) == history_of(clean, n, head, tokens))
          << what << " reached the first " << tokens << " tokens of sequence " << n << ", head " << head;
      if (spoilt) continue;
      EXPECT_TRUE(block_of(dirty, n, head) == block_of(clean, n, head))
          << what << " reached the state of sequence " << n << ", head " << head;
    }
  }
}

std::vector<double> gates_outside_the_contract(const cases::Case& c) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
  if (c.raw_gate()) return {kNan};
  if (c.gate_form == DR_GATE_LINEAR) return {-0.5, 1.5, 1e4, -kInf, kInf, kNan};
  return {100.0, 0.5, 1e4, kInf, kNan};
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
