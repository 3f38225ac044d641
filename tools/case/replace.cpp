// Words that replace those of a line. A Line knows which words exclude each other; nothing else takes a line apart.
#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <utility>

#include "case/case.h"
#include "case/text.h"
#include "case/words.h"

namespace deltarelay::cases {
namespace {

// What a word sets. A line has one word of a kind.
std::string_view kind_of(std::string_view word) {
  if (find_word(kFloatTypes, word) != nullptr) return "data type";
  const std::string_view key = word.substr(0, word.find('='));
  return key == "batch" ? "seqs" : key;  // either gives the lengths
}

// A line, or a part of one: what stands in front, and the words behind.
struct Line {
  explicit Line(std::string_view text) {
    std::vector<std::string_view> all = words_of(text);
    auto next = all.begin();
    const auto take = [&](std::string& front, bool wanted) {
      if (wanted) front = *next++;
    };
    take(name, next != all.end() && next->back() == ':');
    take(rule, next != all.end() && find_word(kRules, *next) != nullptr);
    take(operation, next != all.end() && find_word(kOps, *next) != nullptr);
    words.assign(next, all.end());
  }

  bool has_kind_of(std::string_view word) const {
    return std::any_of(words.begin(), words.end(),
                       [&](const std::string& mine) { return kind_of(mine) == kind_of(word); });
  }

  // These words in place of those of their kinds.
  void replace(const Line& by) {
    if (!by.name.empty()) fail("name", "words without a name", by.name);
    if (!by.rule.empty()) rule = by.rule;
    if (!by.operation.empty()) operation = by.operation;
    std::erase_if(words, [&](const std::string& word) { return by.has_kind_of(word); });
    words.insert(words.end(), by.words.begin(), by.words.end());
  }

  Case read() const {
    std::string text;
    for (const std::string* front : {&name, &rule, &operation})
      if (!front->empty()) text += *front + " ";
    for (const std::string& word : words) text += word + " ";
    return parse(text);
  }

  std::string name, rule, operation;  // empty: not given
  std::vector<std::string> words;
};

// Returns why the case contradicts the contract, or "".
std::string refusal_of(Case c) {
  // A rule of the call, which the plan does not see.
  if (c.gate_form == DR_GATE_RAW_SOFTPLUS && !c.a_log) return "no-a-log: expected gate=bounded, found softplus";
  c.device.clear();  // need not be here to say what contradicts the contract
  const Request request(c);
  const int32_t reference = dr_backend_count() - 1;
  return dr_backend_check(reference, &request.problem, &request.options) == DR_INVALID ? dr_last_error() : "";
}

// Gives words to drawn cases.
class Fitting {
 public:
  Fitting(std::string_view words, bool measurable) : given_(words), measurable_(measurable) {}

  // The drawn case with the words and with what they leave of its own; nothing if its sizes contradict them.
  std::optional<Case> fit(const Case& drawn) {
    const Line whole(print(drawn));
    Line line = whole;
    line.replace(given_);
    std::optional<Case> fitted = accepted(line);
    if (fitted) return fitted;
    line = whole;
    std::erase_if(line.words, [](const std::string& word) { return !is_size(word); });
    line.replace(given_);
    fitted = accepted(line);
    if (!fitted) return fitted;
    for (const std::string& word : whole.words) {
      if (line.has_kind_of(word)) continue;
      Line longer = line;
      longer.words.push_back(word);
      std::optional<Case> more = accepted(longer);
      if (!more) continue;
      line = longer;
      fitted = std::move(more);
    }
    return fitted;
  }

  const std::string& why_not() const { return why_not_; }  // of the last line that was not accepted

 private:
  static bool is_size(std::string_view word) {
    constexpr std::array<std::string_view, 8> kSizes = {"data type", "hqk",  "hv",      "dk",
                                                        "dv",        "seqs", "backend", "seed"};
    return std::find(kSizes.begin(), kSizes.end(), kind_of(word)) != kSizes.end();
  }

  std::optional<Case> accepted(const Line& line) {
    try {
      const Case c = line.read();
      why_not_ = refusal_of(c);
      if (!why_not_.empty() || (measurable_ && !is_measurable(c))) return {};
      return c;
    } catch (const CaseError& error) {
      why_not_ = error.what();
      return {};
    }
  }

  Line given_;
  bool measurable_;
  std::string why_not_;
};

}  // namespace

Case with_words(const Case& c, std::string_view words) {
  Line line(print(c));
  line.replace(Line(words));
  Case changed = line.read();
  changed.facts = c.facts;
  return changed;
}

Case drawn_with_words(const std::function<Case(uint64_t seed)>& draw, uint64_t seed, std::string_view words) {
  constexpr uint64_t kMostDraws = 32;
  std::string why_not;
  for (const bool measurable : {true, false}) {  // words that ask for what cannot be judged are obeyed too
    Fitting fitting(words, measurable);
    for (uint64_t i = 0; i < kMostDraws; ++i)
      if (const std::optional<Case> c = fitting.fit(draw(seed + (i << 32)))) return *c;
    why_not = fitting.why_not();
  }
  throw CaseError(why_not);
}

}  // namespace deltarelay::cases
