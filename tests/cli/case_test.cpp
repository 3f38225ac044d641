#include "case/case.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

namespace deltarelay::cases {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string error_of(const std::string& line) {
  try {
    parse(line);
  } catch (const CaseError& error) {
    return error.what();
  }
  return "(parsed)";
}

TEST(CaseParse, ReadsTheLineOfTheDocuments) {
  const Case c = parse(
      "kda bf16 hqk=16 hv=64 dk=128 dv=96 seqs=8192,1300x3 init final gate=bounded:-5 backend=cuda-sm90 segments=auto "
      "seed=7");
  EXPECT_EQ(c.rule, DR_KDA);
  EXPECT_EQ(c.dtype, DR_BF16);
  EXPECT_EQ(c.heads_qk, 16);
  EXPECT_EQ(c.heads_v, 64);
  EXPECT_EQ(c.dk, 128);
  EXPECT_EQ(c.dv, 96);
  EXPECT_THAT(c.lengths, ElementsAre(8192, 1300, 1300, 1300));
  EXPECT_FALSE(c.batched);
  EXPECT_EQ(c.initial.use, DR_STATE_ROWS);
  EXPECT_EQ(c.final.use, DR_STATE_ROWS);
  EXPECT_EQ(c.gate_form, DR_GATE_RAW_BOUNDED);
  EXPECT_EQ(c.lower_bound, -5.0);
  EXPECT_EQ(c.backend, "cuda-sm90");
  EXPECT_EQ(c.segments, DR_SEGMENTS_AUTO);
  EXPECT_EQ(c.seed, 7u);
}

TEST(CaseParse, DefaultsFollowEachOther) {
  EXPECT_EQ(parse("gdn hv=6 seqs=1").heads_qk, 6);
  EXPECT_EQ(parse("gdn hqk=3 seqs=1").heads_v, 3);
  EXPECT_EQ(parse("gdn dk=48 seqs=1").dv, 48);
  EXPECT_EQ(parse("gdn seqs=1").dtype, DR_FP32);
  EXPECT_EQ(parse("gdn seqs=1").gate_low, -5.0);
}

// Gates have the form in which layers pass them: raw for KDA, log-decays in fp32 for GDN.
TEST(CaseParse, GatesOfAFreshLayerHaveTheFormOfTheirRule) {
  const Case kda = parse("kda bf16 seqs=1 gate=init:2");
  EXPECT_EQ(kda.gate_form, DR_GATE_RAW_SOFTPLUS);
  EXPECT_EQ(kda.gate_profile, GateProfile::kInit);
  EXPECT_EQ(kda.gate_spread, 2.0);
  EXPECT_EQ(kda.gate_dtype(), DR_BF16);
  const Case gdn = parse("gdn bf16 seqs=1 gate=init");
  EXPECT_EQ(gdn.gate_form, DR_GATE_LOG);
  EXPECT_EQ(gdn.gate_dtype(), DR_FP32);
  EXPECT_EQ(parse("gdn bf16 g=bf16 seqs=1 gate=init").gate_dtype(), DR_BF16);
  EXPECT_EQ(print(gdn), print(parse("gdn bf16 seqs=1 gate=log:init")));
  EXPECT_EQ(print(kda), print(parse("kda bf16 seqs=1 gate=softplus:init:2")));
  EXPECT_EQ(parse("gdn seqs=1 gate=mixed"), parse("gdn seqs=1 gate=log:mixed"));
}

TEST(CaseParse, ReadsSequences) {
  EXPECT_THAT(parse("gdn seqs=8k,0,1x2").lengths, ElementsAre(8192, 0, 1, 1));
  EXPECT_THAT(parse("gdn seqs=none").lengths, ElementsAre());
  const Case batch = parse("gdn batch=3x2k");
  EXPECT_TRUE(batch.batched);
  EXPECT_THAT(batch.lengths, ElementsAre(2048, 2048, 2048));
  EXPECT_THAT(parse("gdn seqs=3,4 tail=5").offsets(), ElementsAre(0, 3, 7));
  EXPECT_EQ(parse("gdn seqs=3,4 tail=5").num_tokens(), 12);
}

TEST(CaseParse, ReadsNames) {
  EXPECT_EQ(parse("kda-8k-h64: kda bf16 seqs=8k").name, "kda-8k-h64");
  EXPECT_EQ(print(parse("a.b: kda seqs=1")).substr(0, 9), "a.b: kda ");
}

TEST(CaseParse, ReadsStates) {
  const Case c = parse("gdn seqs=5x4 init=slots:key:bf16:int64:pool=9:null=2:negative:pad=32 mask final=in-place");
  EXPECT_EQ(c.initial.use, DR_STATE_SLOTS);
  EXPECT_EQ(c.initial.layout, DR_STATE_KEY_MAJOR);
  EXPECT_EQ(c.initial.dtype, DR_BF16);
  EXPECT_EQ(c.initial.index_dtype, DR_INT64);
  EXPECT_EQ(c.initial.pool, 9);
  EXPECT_EQ(c.initial.null_index, 2);
  EXPECT_TRUE(c.initial.negative);
  EXPECT_EQ(c.initial.pad, 32);
  EXPECT_TRUE(c.mask);
  EXPECT_TRUE(c.in_place);
  EXPECT_EQ(c.final, c.initial);
}

TEST(CaseParse, ErrorsNameWordExpectedAndFound) {
  EXPECT_EQ(error_of(""), "rule: expected kda or gdn, found ''");
  EXPECT_EQ(error_of("mamba seqs=1"), "rule: expected kda or gdn, found 'mamba'");
  EXPECT_EQ(error_of("kda dk=0 seqs=1"), "dk: expected a whole number from 1 to 4096, found '0'");
  EXPECT_EQ(error_of("kda dk=x seqs=1"), "dk: expected a whole number from 1 to 4096, found 'x'");
  EXPECT_EQ(error_of("kda dk=12q seqs=1"), "dk: expected a whole number from 1 to 4096, found '12q'");
  EXPECT_EQ(error_of("kda dk=-9223372036854775808k seqs=1"),
            "dk: expected a whole number from 1 to 4096, found '-9223372036854775808k'");
  EXPECT_EQ(error_of("kda hqk=65536 seqs=2097152k strides=head-first"),
            "seqs: expected at most 2^46 tokens times heads, found '2147483648 tokens'")
      << "strides of more would not fit 64 bits";
  EXPECT_EQ(error_of("kda seqs=1 keys=uneven"), "keys: expected l2norm beside uneven, found 'no l2norm'");
  EXPECT_THAT(error_of("kda"), HasSubstr("found 'neither'"));
  EXPECT_THAT(error_of("kda seqs=1 batch=1x1"), HasSubstr("found 'both'"));
  EXPECT_THAT(error_of("kda seqs=1,,2"), HasSubstr("seqs: expected a whole number"));
  EXPECT_THAT(error_of("kda seqs=-1"), HasSubstr("found '-1'"));
  EXPECT_THAT(error_of("kda batch=7"), HasSubstr("batch: expected BxT"));
  EXPECT_THAT(error_of("kda seqs=1 speed=9"), HasSubstr("found 'speed=9'"));
  EXPECT_THAT(error_of("kda seqs=1 quickly"), HasSubstr("found 'quickly'"));
  EXPECT_EQ(error_of("kda seqs=1 hv=2 hv=3"), "hv: expected to be given once, found 'hv=3'");
  EXPECT_EQ(error_of("kda fp32 bf16 seqs=1"), "data type: expected to be given once, found 'bf16'");
  EXPECT_THAT(error_of("kda seqs=1 gate=soft"), HasSubstr("gate: expected log, linear, softplus or bounded"));
  EXPECT_THAT(error_of("kda seqs=1 gate=log:0,-5"), HasSubstr("LOW <= HIGH"));
  EXPECT_THAT(error_of("kda seqs=1 gate=log:mean:2"), HasSubstr("at most 0"));
  EXPECT_THAT(error_of("kda seqs=1 gate=softplus:3"), HasSubstr("softplus, softplus:init or softplus:init:SPREAD"));
  EXPECT_THAT(error_of("kda seqs=1 gate=init:"), HasSubstr("a finite number"));
  EXPECT_THAT(error_of("kda seqs=1 gate=init:-1"), HasSubstr("at least 0"));
  EXPECT_THAT(error_of("kda seqs=1 gate=mixed:2"), HasSubstr("or init or mixed"));
  EXPECT_THAT(error_of("kda seqs=1 gate=bounded:-5:high"), HasSubstr("bounded:B:low, bounded:B:init"));
  EXPECT_THAT(error_of("kda seqs=1 gate=bounded:nan"), HasSubstr("a finite number"));
  EXPECT_THAT(error_of("kda seqs=1 beta=3"), HasSubstr("beta: expected value, one, zero, near2, logit or twice"));
  EXPECT_THAT(error_of("kda seqs=1 no-a-log"), HasSubstr("no-a-log: expected gate=softplus or gate=bounded"));
  EXPECT_THAT(error_of("kda seqs=1 init=fast"), HasSubstr("init: expected rows or slots"));
  EXPECT_THAT(error_of("kda seqs=1 init=null=2"), HasSubstr("init: expected slots"));
  EXPECT_THAT(error_of("kda seqs=1 mask"), HasSubstr("mask: expected init"));
  EXPECT_THAT(error_of("kda seqs=1 final=in-place"), HasSubstr("final: expected init"));
  EXPECT_THAT(error_of("kda seqs=1 checkpoints=often"), HasSubstr("every:N, list:P,P,... or chunks"));
  EXPECT_THAT(error_of("kda seqs=1 checkpoints=list:32,16"), HasSubstr("increasing"));
  EXPECT_THAT(error_of("kda seqs=1 checkpoint-state=key"), HasSubstr("expected checkpoints="));
  EXPECT_THAT(error_of("kda batch=1x1 tail=3"), HasSubstr("tail: expected packed sequences"));
  EXPECT_THAT(error_of("kda batch=1x1 lengths=execute"), HasSubstr("lengths: expected packed sequences"));
  EXPECT_THAT(error_of("kda seqs=1 segments=many"), HasSubstr("segments: expected off, auto, a number or len:N"));
  EXPECT_THAT(error_of("kda seqs=1 carry=exact:-3"), HasSubstr("carry: expected exact, truncated or truncated:"));
  EXPECT_THAT(error_of("kda seqs=1 carry=truncated:low"), HasSubstr("carry: expected a finite number"));
  EXPECT_THAT(error_of("kda seqs=1 backend="), HasSubstr("backend: expected a name"));
  EXPECT_THAT(error_of("kda seqs=99999999999999999999"), HasSubstr("seqs: expected a whole number"));
  EXPECT_THAT(error_of("a=b: kda seqs=1"), HasSubstr("name: expected"));
  EXPECT_EQ(error_of("\x1b\xff: kda seqs=1"),
            "name: expected letters, digits, dots and dashes before the colon, found '\\x1b\\xff:'");
  EXPECT_EQ(error_of("kda seqs=1 backend=\a"), "backend: expected a name, found '\\x07'");
  EXPECT_EQ(error_of(std::string(100, 'x')),
            "rule: expected kda or gdn, found '" + std::string(60, 'x') + "...' (100 bytes)");
}

TEST(CasePrint, IsCanonical) {
  EXPECT_EQ(print(parse("kda  seqs=2k,7,7,7   hv=4")), "kda fp32 hqk=4 hv=4 dk=128 dv=128 seqs=2048,7x3 gate=log:-5,0");
  EXPECT_EQ(print(parse("gdn seqs=1 segments=1 seed=1 offsets=int32 strides=contiguous carry=exact")),
            "gdn fp32 hqk=1 hv=1 dk=128 dv=128 seqs=1 gate=log:-5,0 segments=off");
}

TEST(CasePrint, EveryWordComesBack) {
  const std::vector<std::string> words = {
      "fp16",
      "o=fp32 g=bf16 b=fp16",
      "tail=3 offsets=int64 lengths=execute",
      "gate=log:zero",
      "gate=log:extreme",
      "gate=linear:inf",
      "gate=linear:mean:-0.1",
      "gate=log:-0.30000000000000004,-1e-3",
      "gate=softplus no-a-log",
      "gate=bounded:-12.5:low no-dt-bias",
      "gate=init",
      "gate=init:2 g=bf16",
      "gate=softplus:init:0.5 no-dt-bias",
      "gate=bounded:-5:init",
      "gate=bounded:-5:init:2",
      "gate=linear:init",
      "gate=mixed",
      "gate=linear:mixed",
      "floor=-5",
      "beta=near2",
      "beta=twice keys=correlated l2norm scale=0.125",
      "strides=packed",
      "strides=head-first align=4",
      "align=beta:2,g:4,q:16",
      "align=8,beta:2 init final=slots",
      "init=key:fp16",
      "init=slots:negative mask final=slots:pool=30:pad=1",
      "init=slots:null=0 final=in-place",
      "checkpoints=every:16",
      "checkpoints=list:16,64 checkpoint-state=slots:key",
      "checkpoints=chunks",
      "backend=cpu isa=NEON variant=fused math=tf32 policy=fla device=h200 threads=3",
      "segments=off",
      "segments=12",
      "segments=len:4096 invariant carry=truncated seed=123456789012",
      "carry=truncated:-16",
      "carry=truncated:-23.5",
  };
  std::set<std::string> printed;
  for (const std::string& word : words) {
    const Case c = parse("x: kda seqs=5,6 " + word);
    EXPECT_EQ(parse(print(c)), c) << print(c);
    EXPECT_EQ(print(parse(print(c))), print(c));
    printed.insert(print(c));
  }
  EXPECT_EQ(printed.size(), words.size()) << "two different cases print alike";
}

// Does some backend serve the request?
bool library_accepts(const Request& request) {
  for (int32_t i = 0; i < dr_backend_count(); ++i)
    if (dr_backend_check(i, &request.problem, &request.options) == DR_SUCCESS) return true;
  return false;
}

// The case as this machine can check it: a case for a GPU is checked on the CPU (tests/gpu checks the GPU backends).
Case runnable_here(const Case& c) {
  if (!c.on_gpu()) return c;
  Case here = with_words(c, "backend=cpu device=cpu");
  here.isa.clear();
  here.variant.clear();
  here.math = DR_MATH_DEFAULT;
  return here;
}

TEST(CasePrint, RandomCasesComeBackAndAreValid) {
  std::set<std::string> printed;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const Case c = random_case(seed, 20'000'000);
    EXPECT_EQ(parse(print(c)), c) << print(c);
    EXPECT_LE(c.token_heads() * c.dk * c.dv, 20'000'000) << print(c);
    printed.insert(print(c));
    const Request request(c);
    ASSERT_TRUE(library_accepts(request)) << print(c) << "\n" << dr_last_error();
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(printed.size(), 2990u);
  for (const char* words : {"gate=init", ":init", "mixed", "align=", "beta:", "checkpoint:"})
    EXPECT_TRUE(std::any_of(printed.begin(), printed.end(), [&](const std::string& line) {
      return line.find(words) != std::string::npos;
    })) << words;
  EXPECT_EQ(random_case(17, 1'000'000), random_case(17, 1'000'000));
}

TEST(CaseFiles, EveryLineOfEveryFileIsACaseTheLibraryAccepts) {
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(DR_CASES_DIR)) {
    if (entry.path().extension() != ".txt") continue;
    ++files;
    const std::vector<Case> all = read_file(entry.path());
    EXPECT_FALSE(all.empty()) << entry.path();
    std::set<std::string> seen;
    for (const Case& c : all) {
      EXPECT_TRUE(seen.insert(print(c)).second) << entry.path() << " holds twice: " << print(c);
      if (!c.name.empty()) EXPECT_TRUE(seen.insert(c.name).second) << entry.path() << " has two of name " << c.name;
      const Request request(runnable_here(c));
      EXPECT_TRUE(library_accepts(request)) << print(c) << "\n" << dr_last_error();
    }
  }
  EXPECT_EQ(files, 16u);
}

TEST(CaseFiles, TargetsAreThoseOfTheTable) {
  int64_t table = 0;
  for (const Case& c : read_file(std::string(DR_CASES_DIR) + "/targets.txt")) {
    const bool kda = c.rule == DR_KDA;
    if (c.name.substr(0, 4) != "kda-" && c.name.substr(0, 4) != "gdn-") continue;
    ++table;
    EXPECT_EQ(c.name.substr(0, 3), kda ? "kda" : "gdn") << print(c);
    EXPECT_TRUE(c.dtype == DR_BF16 && c.dk == 128 && c.dv == 128 && c.l2norm && !c.batched) << print(c);
    EXPECT_EQ(c.gate_form, kda ? DR_GATE_RAW_BOUNDED : DR_GATE_LOG) << print(c);
    EXPECT_EQ(c.gate_dtype(), kda ? DR_BF16 : DR_FP32) << print(c);
    EXPECT_EQ(c.beta_dtype(), kda ? DR_BF16 : DR_FP32) << print(c);
    EXPECT_EQ(c.beta_form(), kda ? DR_BETA_LOGIT : DR_BETA_VALUE) << print(c);
    EXPECT_TRUE(!kda || (c.lower_bound == -5.0 && c.a_log && c.dt_bias)) << print(c);
    for (const State& state : {c.initial, c.final})
      EXPECT_TRUE(state.use == DR_STATE_ROWS && state.dtype == DR_FP32 && state.layout == DR_STATE_VALUE_MAJOR)
          << print(c);
  }
  EXPECT_EQ(table, 31);
}

// The same cases for the portable kernels. A name ends with the width or type if that differs.
TEST(CaseFiles, PortableTargetsAreThoseOfTheTable) {
  std::map<std::string, Case> table;
  for (const Case& c : read_file(std::string(DR_CASES_DIR) + "/targets.txt")) table[c.name] = c;
  int64_t same = 0, others = 0;
  for (const Case& c : read_file(std::string(DR_CASES_DIR) + "/targets_portable.txt")) {
    ASSERT_TRUE(c.name.starts_with("portable-")) << print(c);
    EXPECT_EQ(c.backend, "cuda-sm80") << print(c);
    const std::string name = c.name.substr(std::string("portable-").size());
    const auto found = table.find(name);
    if (found != table.end()) {
      Case expected = with_words(found->second, "backend=cuda-sm80");
      expected.name = c.name;
      EXPECT_EQ(c, expected) << print(c);
      ++same;
      continue;
    }
    const Case& base = table.at(name.substr(0, name.find("-h64") + 4));
    EXPECT_TRUE(c.rule == base.rule && c.heads_qk == base.heads_qk && c.heads_v == base.heads_v) << print(c);
    EXPECT_EQ(c.lengths, base.lengths) << print(c);
    ++others;
  }
  EXPECT_EQ(same, 8);
  EXPECT_EQ(others, 10);
}

TEST(CaseFiles, ErrorsNameFileAndLine) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() / "deltarelay_case_test.txt";
  std::ofstream(path) << "# comment\n\nkda seqs=1  # fine\nkda sqs=1\n";
  try {
    read_file(path);
    FAIL() << "a wrong line was accepted";
  } catch (const CaseError& error) {
    EXPECT_THAT(error.what(), HasSubstr("deltarelay_case_test.txt:4: word: expected"));
  }
  std::filesystem::remove(path);
  EXPECT_THROW(read_file("/nowhere/cases.txt"), CaseError);
}

TEST(CaseArguments, BareWordsQuotedLinesAndFiles) {
  const std::vector<Case> all =
      read_arguments({"kda", "bf16", "seqs=5", "gdn", "seqs=6", "a:", "kda", "seqs=7", "gdn seqs=8"});
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0].dtype, DR_BF16);
  EXPECT_THAT(all[1].lengths, ElementsAre(6));
  EXPECT_EQ(all[2].name, "a");
  EXPECT_THAT(all[3].lengths, ElementsAre(8));
  EXPECT_GT(read_arguments({std::string(DR_CASES_DIR) + "/smoke.txt", "kda seqs=1"}).size(), 20u);
  EXPECT_THROW(read_arguments({"tests/no-such-file.txt"}), CaseError);
  EXPECT_THROW(read_arguments({""}), CaseError);
}

TEST(CaseArguments, WordsReplaceWords) {
  const Case c = parse("n: kda bf16 hv=2 seqs=100,20 init segments=4");
  const Case changed = with_words(c, "fp32 batch=2x3 segments=off threads=2");
  EXPECT_EQ(print(changed), "n: kda fp32 hqk=2 hv=2 dk=128 dv=128 batch=2x3 init gate=log:-5,0 segments=off threads=2");
  EXPECT_EQ(with_words(c, ""), c);
  EXPECT_EQ(print(with_words(c, "gdn fp16")),
            "n: gdn fp16 hqk=2 hv=2 dk=128 dv=128 seqs=100,20 init gate=log:-5,0 segments=4");
  for (const char* words : {"speed=1", "fp16 gdn", "m: gdn", "no-a-log", "hv=1 hv=2"})
    EXPECT_THROW(with_words(c, words), CaseError) << words;
}

class DrawnWithWords : public ::testing::TestWithParam<const char*> {};

TEST_P(DrawnWithWords, AreThoseWords) {
  const std::string words = GetParam();
  const Case alone = parse(words + " seqs=1" + (words.find("l2norm") == std::string::npos ? " l2norm" : ""));
  int64_t longer = 0;
  for (const char* backend : {"", "cuda-sm90"})
    for (auto* const draw : {random_case, random_stage})
      for (uint64_t seed = 1; seed <= 40; ++seed) {
        const auto drawn = [&](uint64_t of) { return draw(of, 1'000'000, backend); };
        const Case c = drawn_with_words(drawn, seed, words);
        EXPECT_EQ(c, drawn_with_words(drawn, seed, words)) << print(c);
        EXPECT_EQ(with_words(c, words), c) << print(c);
        EXPECT_EQ(c.rule, alone.rule) << print(c);
        EXPECT_EQ(c.gate_form, alone.gate_form) << print(c);
        EXPECT_EQ(c.gate_profile, alone.gate_profile) << print(c);
        EXPECT_EQ(c.gate_spread, alone.gate_spread) << print(c);
        EXPECT_TRUE(is_measurable(c)) << print(c);
        const Request request(runnable_here(c));
        EXPECT_TRUE(library_accepts(request)) << print(c) << "\n" << dr_last_error();
        longer += c.initial.use != DR_STATE_NONE && c.strides != Strides::kContiguous;
        if (::testing::Test::HasFailure()) return;
      }
  EXPECT_GT(longer, 5) << "other words are drawn as ever";
}

INSTANTIATE_TEST_SUITE_P(Gates, DrawnWithWords,
                         ::testing::Values("kda bf16 gate=init", "kda bf16 gate=init:2", "kda bf16 gate=init:4",
                                           "kda bf16 gate=mixed", "kda bf16 gate=softplus", "kda bf16 gate=log:extreme",
                                           "kda bf16 gate=log:mean:-6", "kda bf16 gate=log:inf", "kda bf16 gate=linear",
                                           "kda bf16 g=fp32 gate=init:2", "kda fp16 gate=mixed", "gdn bf16 gate=init",
                                           "gdn bf16 gate=mixed", "kda gate=bounded:-5:low l2norm"));

TEST(DrawnWithWords, LeaveOutWhatContradictsThem) {
  const auto drawn = [](const char* line) { return [line](uint64_t) { return parse(line); }; };
  const auto fitted = [&](const char* line, const char* words) {
    return print_without_name(drawn_with_words(drawn(line), 1, words));
  };
  EXPECT_EQ(fitted("gdn fp32 seqs=200 init gate=bounded:-5 no-a-log no-dt-bias scale=0.25", "kda gate=init:2"),
            "kda fp32 hqk=1 hv=1 dk=128 dv=128 seqs=200 init gate=init:2 no-dt-bias scale=0.25");
  EXPECT_EQ(fitted("kda fp32 seqs=200 tail=3 offsets=int64 lengths=execute bound=300x4 final", "batch=2x50"),
            "kda fp32 hqk=1 hv=1 dk=128 dv=128 batch=2x50 final gate=log:-5,0");
  EXPECT_EQ(fitted("kda fp32 seqs=200 gate=log:zero beta=zero l2norm", "gate=mixed"),
            "kda fp32 hqk=1 hv=1 dk=128 dv=128 seqs=200 gate=mixed l2norm");
  EXPECT_EQ(fitted("kda summary fp32 seqs=200 given=w,u want=summaries init", "forward"),
            "kda fp32 hqk=1 hv=1 dk=128 dv=128 seqs=200 init gate=log:-5,0");
}

TEST(DrawnWithWords, AreDrawnAgainWhereSizesContradictThem) {
  const auto drawn = [](uint64_t seed) {
    return parse(seed < 4 ? "kda batch=2x50" : "kda seqs=99 seed=" + std::to_string(seed >> 32));
  };
  EXPECT_EQ(drawn_with_words(drawn, 3, "tail=7"), parse("kda seqs=99 tail=7"));
  EXPECT_THROW(drawn_with_words(drawn, 3, "mask"), CaseError);
  EXPECT_THROW(drawn_with_words(drawn, 3, "no-such-word"), CaseError);
  // What can be read is obeyed, though nothing could tell an error of one token from luck.
  EXPECT_EQ(drawn_with_words(drawn, 3, "bf16 seqs=1 dv=1"), parse("kda bf16 seqs=1 dv=1"));
}

TEST(CaseRequest, SaysWhatTheCaseSays) {
  const Request request(
      parse("gdn bf16 g=fp32 hqk=2 hv=4 dk=8 dv=16 seqs=3,4 tail=2 offsets=int64 beta=twice scale=2 threads=3 "
            "init=slots:null=1 segments=len:128 isa=NEON"));
  EXPECT_EQ(request.problem.rule, DR_GDN);
  EXPECT_EQ(request.problem.num_seqs, 2);
  EXPECT_EQ(request.problem.num_tokens, 9);
  EXPECT_EQ(request.problem.dtype_gate, DR_FP32);
  EXPECT_EQ(request.problem.beta_form, DR_BETA_TWICE_LOGIT);
  EXPECT_EQ(request.problem.scale, 2.0f);
  EXPECT_EQ(static_cast<const int64_t*>(request.problem.seq_offsets)[2], 7);
  EXPECT_EQ(request.problem.initial.has_null_index, 1);
  EXPECT_EQ(request.problem.initial.null_index, 1);
  EXPECT_EQ(request.options.segments, DR_SEGMENTS_LENGTH);
  EXPECT_EQ(request.options.segment_value, 128);
  EXPECT_STREQ(request.options.isa, "NEON");
  EXPECT_EQ(request.options.backend, nullptr);
  EXPECT_EQ(request.options.threads, 3);
}

TEST(CaseRequest, CountsCheckpointsWithoutAListOfThem) {
  for (const char* kind : {"every:48", "chunks", "list:16,64,96,112"}) {
    const Case c = parse(std::string("gdn seqs=100,47,0,64,96 checkpoints=") + kind);
    size_t rows = 0;
    for (const auto& positions : checkpoint_positions(c)) rows += positions.size();
    EXPECT_EQ(Request(c).problem.checkpoint.num_slots, static_cast<int64_t>(rows)) << kind;
  }
  // 800 GB of positions.
  EXPECT_EQ(Request(parse("gdn seqs=4294967295x1535 checkpoints=every:64")).problem.checkpoint.num_slots,
            int64_t{4294967295} / 64 * 1535);
}

TEST(CaseRequest, LengthsAtExecutionStayOutOfTheProblem) {
  const Request request(parse("gdn seqs=3,4 lengths=execute"));
  EXPECT_EQ(request.problem.seq_offsets, nullptr);
  EXPECT_EQ(static_cast<const int32_t*>(request.seq_offsets())[2], 7);
}

TEST(CaseRequest, UnknownDevicesAreNamed) { EXPECT_THROW(Request(parse("gdn seqs=1 device=abacus")), CaseError); }

TEST(CaseDevice, SaysWhereACaseRuns) {
  EXPECT_EQ(parse("gdn seqs=1 device=cuda").device, "cuda:0");
  EXPECT_TRUE(parse("gdn seqs=1 device=cuda").on_gpu());
  EXPECT_TRUE(parse("gdn seqs=1 device=cuda:0 backend=cuda-sm90").on_gpu());
  EXPECT_TRUE(parse("gdn seqs=1 backend=cuda-sm90").on_gpu());
  EXPECT_FALSE(parse("gdn seqs=1 backend=cuda-sm90 device=h200").on_gpu()) << "an H200 of the table is not here";
  EXPECT_FALSE(parse("gdn seqs=1").on_gpu());
  EXPECT_FALSE(parse("gdn seqs=1 device=cpu backend=cpu").on_gpu());
}

TEST(CaseStrides, ExtentsCoverEveryElementOnce) {
  for (const char* words : {"strides=contiguous", "strides=padded", "strides=head-first", "strides=packed"})
    for (const char* form : {"seqs=5,0,7 tail=2", "batch=3x4"}) {
      const Case c = parse(std::string("kda hqk=2 hv=4 dk=3 dv=5 ") + form + " " + words);
      const Rows rows_v = rows_of(c, Tensor::kV);
      const dr_layout& strides = rows_v.strides;
      std::set<int64_t> seen;
      const int64_t rows = c.batched ? c.lengths[0] : c.num_tokens();
      const int64_t sequences = c.batched ? c.num_seqs() : 1;
      for (int64_t n = 0; n < sequences; ++n)
        for (int64_t t = 0; t < rows; ++t)
          for (int64_t h = 0; h < c.heads_v; ++h)
            for (int64_t i = 0; i < c.dv; ++i)
              seen.insert(n * strides.sequence + t * strides.token + h * strides.head + i);
      EXPECT_EQ(static_cast<int64_t>(seen.size()), sequences * rows * c.heads_v * c.dv) << print(c);
      EXPECT_EQ(*seen.rbegin() + 1, extent(c, rows_v)) << print(c);
    }
}

TEST(CaseSlots, AreAPermutationThatLeavesOutTheNullSlot) {
  const Case c = parse("gdn seqs=1x12 init=slots:null=3:negative");
  const std::vector<int64_t> slots = slot_indices(c.initial, 12, 5, 1);
  const int64_t pool = pool_size(c.initial, 12);
  std::set<int64_t> named;
  for (size_t n = 0; n < slots.size(); ++n) {
    if (n % 4 == 1) {
      EXPECT_EQ(slots[n], 3);
    } else if (n % 4 == 3) {
      EXPECT_EQ(slots[n], -1);
    } else {
      EXPECT_TRUE(named.insert(slots[n]).second) << "slot named twice";
      EXPECT_GE(slots[n], 0);
      EXPECT_LT(slots[n], pool);
      EXPECT_NE(slots[n], 3);
    }
  }
  EXPECT_EQ(slots, slot_indices(c.initial, 12, 5, 1));
  EXPECT_NE(slots, slot_indices(c.initial, 12, 6, 1));
  EXPECT_NE(slots, slot_indices(c.initial, 12, 5, 2));
}

TEST(CaseCheckpoints, FollowTheLengths) {
  EXPECT_THAT(checkpoint_positions(parse("gdn seqs=100,47,0 checkpoints=every:48")),
              ElementsAre(ElementsAre(48, 96), ElementsAre(), ElementsAre()));
  EXPECT_THAT(checkpoint_positions(parse("gdn seqs=100,47 checkpoints=list:16,64")),
              ElementsAre(ElementsAre(16, 64), ElementsAre(16)));
  EXPECT_THAT(checkpoint_positions(parse("gdn seqs=128,65,0 checkpoints=chunks")),
              ElementsAre(ElementsAre(0, 64), ElementsAre(0, 64), ElementsAre()));
}

TEST(CaseHostile, NeedsSlowGatesAndUnrulyWrites) {
  EXPECT_TRUE(parse("kda seqs=1 gate=log:zero keys=correlated").hostile());
  EXPECT_TRUE(parse("kda seqs=1 gate=log:-0.01,0 beta=near2").hostile());
  EXPECT_FALSE(parse("kda seqs=1 gate=log:zero").hostile());
  EXPECT_FALSE(parse("kda seqs=1 gate=log:-5,0 keys=correlated").hostile());
}

TEST(CaseHostile, KdaIn16BitsWithKeysOfFewChannels) {
  EXPECT_TRUE(parse("kda bf16 dk=16 seqs=1 gate=log:-0.01,0").hostile());
  EXPECT_TRUE(parse("kda fp16 dk=1 seqs=1 gate=softplus").hostile());
  EXPECT_FALSE(parse("kda bf16 dk=17 seqs=1 gate=log:-0.01,0").hostile());
  EXPECT_FALSE(parse("kda fp32 dk=16 seqs=1 gate=log:-0.01,0").hostile());
  EXPECT_FALSE(parse("gdn bf16 dk=16 seqs=1 gate=log:-0.01,0").hostile());
  EXPECT_FALSE(parse("kda bf16 dk=16 seqs=1 gate=log:-0.5,0").hostile());
}

TEST(CaseStrained, NeedsBothUnrulyOrWeakGatesOfKdaAtStrengthOne) {
  EXPECT_TRUE(parse("gdn bf16 seqs=1 gate=log:-5,0 keys=correlated beta=near2").strained());
  EXPECT_TRUE(parse("kda bf16 seqs=1 gate=bounded:-5 keys=correlated beta=twice").strained());
  EXPECT_FALSE(parse("gdn bf16 seqs=1 gate=log:-0.5,0 keys=correlated beta=one").strained());
  EXPECT_FALSE(parse("gdn bf16 seqs=1 gate=log:-0.5,0 beta=near2").strained());
  EXPECT_TRUE(parse("kda bf16 dk=64 seqs=1 gate=log:-0.01,0 beta=one").strained());
  EXPECT_FALSE(parse("kda bf16 dk=65 seqs=1 gate=log:-0.01,0 beta=one").strained());
  EXPECT_FALSE(parse("kda bf16 dk=64 seqs=1 gate=log:-0.01,0").strained());
  EXPECT_FALSE(parse("gdn bf16 dk=64 seqs=1 gate=log:-0.01,0 beta=one").strained());
}

}  // namespace
}  // namespace deltarelay::cases
