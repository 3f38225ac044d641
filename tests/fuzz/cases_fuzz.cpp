// Fuzz target for the case grammar: lines of the case files with changed words and bytes. Either the parser refuses a
// line and names the word, what was expected and what was found, all printable; or the printed line gives the same case
// back and the library answers its request.
#include <algorithm>
#include <filesystem>
#include <vector>

#include "case/case.h"
#include "refusal.h"

namespace fuzz {
namespace {

namespace cases = deltarelay::cases;

// Lines of the files, in a fixed order.
const std::vector<std::string>& lines() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(DR_CASES_DIR)) {
      if (entry.path().extension() != ".txt") continue;
      for (const cases::Case& c : cases::read_file(entry.path())) found.push_back(cases::print(c));
    }
    std::sort(found.begin(), found.end());
    expect(!found.empty(), "expected case files in " DR_CASES_DIR, "none");
    return found;
  }();
  return all;
}

std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words(1);
  for (const char byte : line) {
    if (byte == ' ') {
      words.emplace_back();
    } else {
      words.back() += byte;
    }
  }
  return words;
}

std::string any_word(Input& in) {
  static const char* const kWords[] = {"kda",
                                       "gdn",
                                       "forward",
                                       "backward",
                                       "commit",
                                       "chunk-local",
                                       "state-pass",
                                       "outputs",
                                       "summary",
                                       "carry",
                                       "chunk=16",
                                       "chunk=32",
                                       "given=none",
                                       "given=w,u",
                                       "given=inverse,gate_sums",
                                       "given=aqk,v_new,states",
                                       "want=none",
                                       "want=states",
                                       "want=w,u,k_to_end",
                                       "sums=base2",
                                       "intermediates=fp32",
                                       "states=key:bf16",
                                       "fp32",
                                       "bf16",
                                       "fp16",
                                       "o=fp32",
                                       "g=bf16",
                                       "b=fp16",
                                       "a-log=bf16",
                                       "dt-bias=fp16",
                                       "hqk=1",
                                       "hv=2",
                                       "dk=64",
                                       "dv=512",
                                       "seqs=none",
                                       "seqs=0",
                                       "seqs=5,1k,3x4",
                                       "batch=2x3",
                                       "batch=1x1",
                                       "tail=3",
                                       "offsets=int64",
                                       "lengths=execute",
                                       "gate=log:-5,0",
                                       "gate=linear:mean:-1",
                                       "gate=softplus",
                                       "gate=init",
                                       "gate=init:2",
                                       "gate=mixed",
                                       "gate=bounded:-5",
                                       "gate=bounded:-5:low",
                                       "gate=bounded:-5:init",
                                       "gate=log:inf",
                                       "floor=-2",
                                       "beta=twice",
                                       "beta=near2",
                                       "keys=uneven",
                                       "l2norm",
                                       "scale=0.5",
                                       "scale=-1e-300",
                                       "strides=packed",
                                       "strides=head-first",
                                       "align=2",
                                       "init",
                                       "init=slots:null=1:negative:pool=9:int64:pad=3:key:bf16",
                                       "final=in-place",
                                       "final=rows:fp16",
                                       "mask",
                                       "checkpoints=every:48",
                                       "checkpoints=list:16,32",
                                       "checkpoints=chunks",
                                       "checkpoint-state=slots",
                                       "backend=cpu",
                                       "backend=reference",
                                       "isa=NEON",
                                       "variant=fused",
                                       "math=tf32",
                                       "policy=fla",
                                       "device=h200",
                                       "device=cpu",
                                       "segments=3",
                                       "segments=len:128",
                                       "segments=off",
                                       "threads=2",
                                       "invariant",
                                       "carry=truncated:-8",
                                       "carry=exact",
                                       "seed=7",
                                       "no-a-log",
                                       "no-dt-bias",
                                       "name:",
                                       ":",
                                       "=",
                                       "="};
  return kWords[in.below(std::size(kWords))];
}

std::string any_number(Input& in) {
  const std::string number = std::to_string(in.odd_number());
  switch (in.below(6)) {
    case 1:
      return number + "k";
    case 2:
      return "-" + number;
    case 3:
      return number + "e" + std::to_string(in.in(-400, 400));
    case 4:
      return in.one_of<const char*>({"nan", "inf", "-inf", "-0", "1e308", "1e-320", "0x10", ""});
    case 5:
      return number + "x" + std::to_string(in.in(0, 2000));
    default:
      return number;
  }
}

// Replaces the text between two separators of a word.
void change_value(Input& in, std::string& word) {
  const size_t from = std::min(word.find_first_of("=:,x", in.below(word.size() + 1)), word.size());
  if (from == word.size()) {
    word += in.one_of<const char*>({"=", ":", ",", "k", ""}) + any_number(in);
    return;
  }
  const size_t end = std::min(word.find_first_of(":,x", from + 1), word.size());
  word.replace(from + 1, end - from - 1, any_number(in));
}

std::string any_line(Input& in) {
  std::vector<std::string> words = words_of(lines()[in.below(lines().size())]);
  const auto any = [&]() -> std::string& { return words[in.below(words.size())]; };
  for (int64_t i = in.in(0, 4); i > 0; --i) {
    switch (in.below(6)) {
      case 0:
        change_value(in, any());
        break;
      case 1:
        any() = any_word(in);
        break;
      case 2:
        words.push_back(any_word(in));
        break;
      case 3:
        words.erase(words.begin() + static_cast<std::ptrdiff_t>(in.below(words.size())));
        if (words.empty()) words.emplace_back();
        break;
      case 4: {  // a word of another line
        const std::vector<std::string> other = words_of(lines()[in.below(lines().size())]);
        any() = other[in.below(other.size())];
        break;
      }
      default: {  // any byte
        std::string& word = any();
        if (!word.empty()) word[in.below(word.size())] = static_cast<char>(in.below(256));
        break;
      }
    }
  }
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + word;
  return line;
}

std::string shown(const std::string& line) {  // for a failure: bytes as numbers
  std::string text;
  for (const char byte : line) {
    const auto value = static_cast<unsigned char>(byte);
    if (value >= 0x20 && value < 0x7f) {
      text += byte;
    } else {
      text += "<" + std::to_string(value) + ">";
    }
  }
  return text;
}

void check_refusal(const std::string& line, const std::string& message) {
  const std::string found = shown(message) + " for " + shown(line);
  expect(message.find(": expected ") != std::string::npos && message.find(", found ") != std::string::npos,
         "expected a message with word, expected and found", found);
  expect(std::all_of(message.begin(), message.end(), [](char byte) { return byte >= 0x20 && byte < 0x7f; }),
         "expected a message of printable characters", found);
}

// The library must answer, in any way.
void ask(const cases::Case& c, const std::string& line) {
  try {
    const cases::Request request(c);
    dr_plan* plan = nullptr;
    if (answered("dr_plan_create", dr_plan_create(&request.problem, &request.options, &plan))) dr_plan_destroy(plan);
  } catch (const cases::CaseError& error) {  // an unknown device
    check_refusal(line, error.what());
  }
}

}  // namespace

void run_input(Input& in) {
  const std::string line = any_line(in);
  cases::Case c;
  try {
    c = cases::parse(line);
  } catch (const cases::CaseError& error) {
    check_refusal(line, error.what());
    return;
  }
  const std::string printed = cases::print(c);
  cases::Case back;
  try {
    back = cases::parse(printed);
    expect(cases::with_words(c, "") == c, "expected the case with no word replaced", shown(printed));
  } catch (const cases::CaseError& error) {
    fail("expected a printed case to be read, found: " + shown(error.what()) + " for " + shown(printed));
  }
  expect(back == c && cases::print(back) == printed, "expected a printed case to come back", shown(printed));
  ask(c, line);
}

}  // namespace fuzz
