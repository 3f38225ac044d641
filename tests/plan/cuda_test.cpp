// Planning for GPUs, here or not: what cuda-sm90 takes, what a call needs of memory, and the table as it is sent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/sm90/accepts.h"
#include "kernels/cuda/sm90/record.h"
#include "length_mixes.h"
#include "plan/describe/schedule.h"
#include "plan/devices/cuda_devices.h"
#include "plan/plan.h"
#include "plan_cases.h"
#include "problem/status.h"

namespace deltarelay {
namespace {

using cuda::sm90::GdnRecord;
using cuda::sm90::KdaRecord;
using ::testing::HasSubstr;

constexpr const char* kName = "cuda-sm90";

Options on_h200() {
  Options options = test::options_on(test::device_of("h200"));
  options.backend = kName;
  return options;
}

std::string reason_of(const std::function<void(Problem&, Options&)>& change) {
  Problem problem = test::problem_of(Rule::kKda, {300, 40}, 2);
  problem.heads_v = 4;
  problem.q = problem.k = {256, 128, 0};
  problem.v = problem.o = {512, 128, 0};
  Options options = on_h200();
  change(problem, options);
  return backend_named(kName)->decline(problem, request_of(options));
}

TEST(CudaSm90, TakesWhatItsKernelsAreFor) {
  EXPECT_EQ(reason_of([](Problem&, Options&) {}), "");
  EXPECT_EQ(reason_of([](Problem& p, Options&) { p.rule = Rule::kGdn; }), "");
  EXPECT_EQ(reason_of([](Problem& p, Options&) { p.dtype = p.dtype_o = DType::kFp16; }), "");
  EXPECT_EQ(reason_of([](Problem& p, Options&) { p.dtype_gate = p.dtype_beta = DType::kFp32; }), "");
  EXPECT_EQ(reason_of([](Problem&, Options& o) { o.invariant = true; }), "");
  EXPECT_EQ(reason_of([](Problem&, Options& o) { o.device = test::device_of("h100"); }), "");
}

// One number a head is read as such, wherever it lies; gates of KDA that lie anywhere fall to the other way.
TEST(CudaSm90, AsksNoAlignmentOfNumbersOfAHead) {
  const auto narrow = [](Rule rule, const char* variant) {
    return [rule, variant](Problem& p, Options& o) {
      p.rule = rule;
      p.gate_form = GateForm::kRawBounded;
      p.lower_bound = -5.0f;
      p.alignment.beta = 2;
      if (rule == Rule::kGdn) p.alignment.g = 2;
      o.variant = variant;
    };
  };
  EXPECT_EQ(reason_of(narrow(Rule::kGdn, "fused")), "");
  EXPECT_EQ(reason_of(narrow(Rule::kGdn, "prepared")), "");
  EXPECT_EQ(reason_of(narrow(Rule::kKda, "fused")), "");
  EXPECT_EQ(reason_of([](Problem& p, Options& o) {
              p.alignment.g = 2;
              o.variant = "prepared";
            }),
            "");
  Problem slice = test::problem_of(Rule::kKda, {4096}, 4);
  slice.gate_form = GateForm::kRawBounded;
  slice.lower_bound = -5.0f;
  EXPECT_EQ(make_plan(slice, on_h200())->variant.number, cuda::sm90::kFused);
  slice.alignment.g = 8;
  EXPECT_EQ(make_plan(slice, on_h200())->variant.number, cuda::sm90::kPrepared);
}

// The fused walk takes bf16 gates of every form, bounded or not: log and softplus by itself, the others by name. In
// fp32 it has kernels for log gates, softplus, and what the frame of the middle holds of the bounded ones.
TEST(CudaSm90, WalksAnyGatesOfKdaFused) {
  for (const GateForm form : {GateForm::kLog, GateForm::kLinear, GateForm::kRawSoftplus, GateForm::kRawBounded}) {
    Problem problem = test::problem_of(Rule::kKda, {4096}, 4);
    problem.gate_form = form;
    problem.lower_bound = form == GateForm::kRawBounded ? -20.0f : 0.0f;
    Options options = on_h200();
    const bool by_itself = form == GateForm::kLog || form == GateForm::kRawSoftplus;
    EXPECT_EQ(make_plan(problem, options)->variant.number, by_itself ? cuda::sm90::kFused : cuda::sm90::kPrepared);
    options.variant = "fused";
    EXPECT_EQ(make_plan(problem, options)->variant.number, cuda::sm90::kFused);
    problem.dtype_gate = DType::kFp32;
    EXPECT_EQ(cuda::sm90::takes_way(problem, cuda::sm90::kFused), by_itself) << name_of(form);
    options.variant = "";
    EXPECT_EQ(make_plan(problem, options)->variant.number, by_itself ? cuda::sm90::kFused : cuda::sm90::kPrepared);
    problem.dtype_gate = DType::kFp16;
    EXPECT_FALSE(cuda::sm90::takes_way(problem, cuda::sm90::kFused)) << name_of(form);
  }
}

// A promise of -5 chooses the fused walk for both types of gates. The kernels of the middle's frame know no linear
// gates.
TEST(CudaSm90, WalksFlooredGatesOfKdaFused) {
  for (const DType type : {DType::kBf16, DType::kFp32}) {
    for (const GateForm form : {GateForm::kLog, GateForm::kLinear, GateForm::kRawBounded}) {
      Problem problem = test::problem_of(Rule::kKda, {4096}, 4);
      problem.dtype_gate = type;
      problem.gate_form = form;
      (form == GateForm::kRawBounded ? problem.lower_bound : problem.gate_floor) = -5.0f;
      const bool linear = form == GateForm::kLinear;
      EXPECT_EQ(cuda::sm90::in_mid_frame(problem), !linear) << name_of(form);
      EXPECT_EQ(make_plan(problem, on_h200())->variant.number,
                linear && type == DType::kFp32 ? cuda::sm90::kPrepared : cuda::sm90::kFused)
          << name_of(form) << " in " << name_of(type);
      problem.alignment.g = 8;
      EXPECT_FALSE(cuda::sm90::takes_way(problem, cuda::sm90::kFused));
    }
  }
}

// Segments that single CTAs would emit, and pairs half as many: up to 64 chunks pairs are faster with softplus gates
// (variants.cpp). Longer ones, and those of bounded gates, keep to the model.
TEST(CudaSm90, PairsEmitShortSegmentsOfSoftplusGates) {
  struct Case {
    int64_t tokens;
    int32_t heads, bounded_tiles, softplus_tiles;
  };
  for (const Case& c : {Case{8192, 8, 2, 2}, Case{32768, 8, 1, 2}, Case{65536, 4, 1, 2}, Case{65536, 8, 1, 1},
                        Case{131072, 4, 1, 1}, Case{131072, 8, 1, 1}}) {
    Problem problem = test::problem_of(Rule::kKda, {c.tokens}, c.heads);
    problem.gate_form = GateForm::kRawBounded;
    problem.lower_bound = -5.0f;
    const auto bounded = make_plan(problem, on_h200());
    EXPECT_EQ(bounded->tiling.value_tiles, c.bounded_tiles) << c.tokens;
    problem.gate_form = GateForm::kRawSoftplus;
    const auto softplus = make_plan(problem, on_h200());
    EXPECT_EQ(softplus->tiling.value_tiles, c.softplus_tiles) << c.tokens;
    EXPECT_GT(softplus->decision.segment, 0) << c.tokens;
    const bool moved = c.softplus_tiles != c.bounded_tiles;
    EXPECT_EQ(softplus->decision.segment == bounded->decision.segment, !moved) << c.tokens;
  }
}

// fp16 data runs fused where its gates are in fp16 too and the frame of the middle holds them.
TEST(CudaSm90, WalksHalfDataOfKdaFused) {
  const auto fused = [](DType data, DType gate, GateForm form, float bound) {
    Problem problem = test::problem_of(Rule::kKda, {4096}, 4);
    problem.dtype = problem.dtype_o = data;
    problem.dtype_gate = gate;
    problem.gate_form = form;
    (form == GateForm::kRawBounded ? problem.lower_bound : problem.gate_floor) = bound;
    const bool takes = cuda::sm90::takes_way(problem, cuda::sm90::kFused);
    EXPECT_EQ(make_plan(problem, on_h200())->variant.number, takes ? cuda::sm90::kFused : cuda::sm90::kPrepared);
    return takes;
  };
  using enum DType;
  EXPECT_TRUE(fused(kFp16, kFp16, GateForm::kRawBounded, -5.0f));
  EXPECT_TRUE(fused(kFp16, kFp16, GateForm::kLog, -5.0f));
  EXPECT_FALSE(fused(kFp16, kFp16, GateForm::kRawBounded, -6.0f));
  EXPECT_FALSE(fused(kFp16, kFp16, GateForm::kLog, 0.0f));
  EXPECT_FALSE(fused(kFp16, kFp16, GateForm::kLinear, -5.0f));
  EXPECT_FALSE(fused(kFp16, kFp16, GateForm::kRawSoftplus, 0.0f));
  EXPECT_FALSE(fused(kFp16, kBf16, GateForm::kRawBounded, -5.0f));
  EXPECT_FALSE(fused(kFp16, kFp32, GateForm::kRawBounded, -5.0f));
  EXPECT_FALSE(fused(kBf16, kFp16, GateForm::kRawBounded, -5.0f));
}

TEST(CudaSm90, DeclinesTheRestByNameExpectedAndFound) {
  const std::vector<std::pair<std::function<void(Problem&, Options&)>, std::string>> refusals{
      {[](Problem&, Options& o) { o.device = test::cpu_with(2); }, "device: expected a CUDA device, found a CPU"},
      {[](Problem&, Options& o) { o.device = test::device_of("b200"); }, "expected 9.0, found 10.0"},
      {[](Problem&, Options& o) { o.device = test::device_of("rtx4090"); }, "expected 9.0, found 8.9"},
      {[](Problem& p, Options&) { p.dk = 64; }, "dk: expected 128, found 64"},
      {[](Problem& p, Options&) { p.dv = 192; }, "dv: expected a multiple of 128 up to 512, found 192"},
      {[](Problem& p, Options&) { p.dv = 100; }, "dv: expected a multiple of 128 up to 512, found 100"},
      {[](Problem& p, Options&) {
         p.dv = 512;
         p.heads_v = 1 << 29;
       },
       "heads_v: expected at most 536870911 with this dv, found 536870912"},
      {[](Problem& p, Options&) {
         p.dv = 256;
         p.v = p.o = {1024, 256, 0};
         p.o.head = 512;
       },
       "layout_o.head: expected 256 (heads side by side, needed for dv above 128), found 512"},
      {[](Problem& p, Options&) {
         p.dv = 384;
         p.v = p.o = {1536, 384, 0};
         p.v.head = 128;
       },
       "layout_v.head: expected 384 (heads side by side, needed for dv above 128), found 128"},
      {[](Problem& p, Options&) { p.dtype = p.dtype_o = DType::kFp32; }, "dtype: expected bf16 or fp16, found fp32"},
      {[](Problem& p, Options&) { p.dtype_o = DType::kFp32; }, "dtype_o: expected bf16 as dtype, found fp32"},
      {[](Problem& p, Options&) { p.alignment.k = 8; }, "layout_k.alignment_bytes: expected at least 16, found 8"},
      {[](Problem& p, Options&) { p.q.token = 260; }, "layout_q.token: expected a multiple of 8 elements"},
      {[](Problem& p, Options&) { p.k.head = 132; }, "layout_k.head: expected a multiple of 8 elements"},
      {[](Problem& p, Options&) { p.v.sequence = 4; }, "found 4"},
      {[](Problem& p, Options&) { p.o.token = 516; }, "layout_o.token"},
      {[](Problem& p, Options&) { p.o.token = int64_t{1} << 39; }, "below 549755813888, found 549755813888"},
      {[](Problem& p, Options&) { p.num_tokens = int64_t{1} << 31; }, "num_tokens: expected at most 2147483647"},
      {[](Problem& p, Options& o) {  // the fused walk copies gates in pieces of 16 bytes
         p.gate_form = GateForm::kRawBounded;
         p.lower_bound = -5.0f;
         p.alignment.g = 8;
         o.variant = "fused";
       },
       "variant: expected prepared, with these gates, found fused"},
      {[](Problem&, Options& o) {
         o.columns = {0, 3};
       },
       "columns: expected all value columns, found a list of 2"},
      {[](Problem&, Options& o) { o.isa = "neon"; }, "isa: expected none (instruction sets are of CPUs), found neon"},
      {[](Problem&, Options& o) { o.math = DR_MATH_TF32; }, "math: expected default, found tf32"},
  };
  for (const auto& [change, words] : refusals) EXPECT_THAT(reason_of(change), HasSubstr(words));
}

// A head of several strips: as many heads of 128 values, but for what is prepared.
TEST(CudaSm90, WalksStripsLikeHeads) {
  auto wide_of = [](Rule rule, int32_t heads, int32_t strips) {
    Problem problem = test::problem_of(rule, {9000, 700, 0, 33}, heads, 128, 128 * strips);
    problem.gate_form = GateForm::kRawBounded;
    problem.lower_bound = -5.0f;
    return problem;
  };
  for (const Rule rule : {Rule::kKda, Rule::kGdn}) {
    for (const int32_t strips : {2, 3, 4}) {
      for (const char* way : {"fused", "prepared"}) {
        Options options = on_h200();
        options.variant = way;
        const Problem wide = wide_of(rule, 4, strips);
        Problem narrow = wide_of(rule, 4 * strips, 1);
        narrow.heads_qk = 4;
        EXPECT_EQ(backend_named(kName)->decline(wide, request_of(options)), "");
        const auto plan = make_plan(wide, options), like = make_plan(narrow, options);
        SCOPED_TRACE(std::string(name_of(rule)) + " " + way + ", " + std::to_string(strips) + " strips");
        EXPECT_EQ(plan->tiling.value_tiles, strips * like->tiling.value_tiles);
        EXPECT_EQ(plan->costs.copies, like->costs.copies);
        EXPECT_EQ(plan->costs.emit, like->costs.emit);
        EXPECT_EQ(plan->costs.summarize, like->costs.summarize);
        EXPECT_EQ(plan->costs.carry, like->costs.carry);
        EXPECT_EQ(plan->costs.state_bytes, like->costs.state_bytes);
        EXPECT_EQ(plan->costs.heads, 4) << "what is prepared is a head's";
        EXPECT_EQ(plan->table.rows1, like->table.rows1);
        EXPECT_EQ(walks_twins(*plan), walks_twins(*like));
        EXPECT_GT(plan->table.num_slots, 0) << "nothing is cut";
        for (const BufferId buffer : {BufferId::kSlotState, BufferId::kTransition, BufferId::kLives}) {
          ASSERT_NE(plan->ledger.find(buffer), nullptr) << name_of(buffer);
          EXPECT_EQ(plan->ledger.find(buffer)->bytes, like->ledger.find(buffer)->bytes) << name_of(buffer);
        }
        if (plan->variant.record_bytes > 0) {
          EXPECT_EQ(plan->ledger.find(BufferId::kPrepared)->bytes * static_cast<size_t>(strips),
                    like->ledger.find(BufferId::kPrepared)->bytes);
        }
      }
      const auto late = make_plan(test::problem_with_bounds(rule, 9000, 3, 4, 128, 128 * strips), on_h200());
      EXPECT_EQ(late->tiling.value_tiles % strips, 0);
    }
  }
}

// Rows of strips are handed on too: what lies between two units is the state of a strip.
TEST(CudaSm90, HandsStripsOn) {
  const std::vector<int64_t> lengths(6, 8192);
  const auto plan = make_plan(test::problem_of(Rule::kGdn, lengths, 16, 128, 256), on_h200());
  EXPECT_EQ(plan->tiling.value_tiles, 2);
  EXPECT_EQ(plan->relay.shares * plan->relay.side, 132);
  EXPECT_EQ(plan->relay.heads * plan->relay.side, 32);
  EXPECT_EQ(plan->ledger.find(BufferId::kRelayStates)->bytes, size_t{132} * 128 * 128 * 4);
  for (const ScheduledItem& item : schedule_table(plan->table, plan->costs, plan->tiling.value_tiles, plan->relay)) {
    ASSERT_LT(item.head, 16);
    ASSERT_LT(item.tile, 2);
  }
}

TEST(CudaSm90, ComesFirstOnHopperAndPortableKernelsTakeTheRest) {
  Options options = on_h200();
  options.backend.clear();
  EXPECT_EQ(std::string(make_plan(test::problem_of(Rule::kKda, {512}, 2), options)->backend->name), kName);
  EXPECT_EQ(std::string(make_plan(test::problem_of(Rule::kKda, {512}, 2, 64, 64), options)->backend->name),
            "cuda-sm80");
  options.columns = {0, 3};
  try {
    make_plan(test::problem_of(Rule::kKda, {512}, 2, 64, 64), options);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), DR_UNSUPPORTED);
    EXPECT_THAT(error.what(), HasSubstr("cuda-sm90: columns: expected all value columns"));
    EXPECT_THAT(error.what(), HasSubstr("cuda-sm80: columns: expected all value columns"));
    EXPECT_THAT(error.what(), HasSubstr("cpu: device"));
    EXPECT_THAT(error.what(), HasSubstr("reference: device"));
  }
}

size_t booked(const Plan& plan, BufferId name) {
  const Buffer* buffer = plan.ledger.find(name);
  return buffer == nullptr ? 0 : buffer->bytes;
}

TEST(CudaSm90, BooksRecordsSlotsAndTheTable) {
  Options options = on_h200();
  test::move_to(test::prepared_on("h200"), options);
  options.segments = DR_SEGMENTS_COUNT;
  options.segment_value = 3;
  const auto kda = make_plan(test::problem_of(Rule::kKda, {300, 0, 33}, 4), options);
  EXPECT_EQ(kda->chunk(), 32);
  EXPECT_EQ(kda->num_chunks, 10 + 0 + 2);
  EXPECT_EQ(booked(*kda, BufferId::kPrepared), size_t{12} * 4 * KdaRecord::kBytes);
  EXPECT_EQ(booked(*kda, BufferId::kSlotState), size_t{2} * 4 * 128 * 128 * 4);
  EXPECT_EQ(booked(*kda, BufferId::kTransition), size_t{2} * 4 * 128 * 128 * 4);
  EXPECT_EQ(booked(*kda, BufferId::kTable), kda->device_image.size());
  EXPECT_EQ(booked(*kda, BufferId::kScratch), 0u);
  const auto gdn = make_plan(test::problem_of(Rule::kGdn, {300, 0, 33}, 4), options);
  EXPECT_EQ(gdn->chunk(), 64);
  EXPECT_EQ(booked(*gdn, BufferId::kPrepared), size_t{5 + 1} * 4 * GdnRecord::kBytes);
  EXPECT_LE(gdn->tiling.value_tiles, 2);

  const auto late =
      make_plan(test::problem_with_bounds(Rule::kGdn, 1000, 3, 4), test::options_on(test::prepared_on("h200")));
  EXPECT_EQ(late->num_chunks, 16 + 3);
  EXPECT_EQ(booked(*late, BufferId::kPrepared), size_t{19} * 4 * GdnRecord::kBytes);
  EXPECT_TRUE(late->device_image.empty());
  EXPECT_GT(booked(*late, BufferId::kTable), late->device_table.scratch);
  EXPECT_EQ(booked(*late, BufferId::kOffsets), 0u) << "offsets are read where they are";
  auto late_chunks = [](int64_t tokens) {
    const Problem problem = test::problem_with_bounds(Rule::kGdn, tokens, 3, 4);
    return make_plan(problem, test::options_on(test::prepared_on("h200")))->num_chunks;
  };
  EXPECT_EQ(late_chunks(0), 0) << "nothing to launch";
  EXPECT_EQ(late_chunks(2), 2) << "no chunk is empty";
}

// Rows that do not fill whole rounds, and the states between those who walk them.
TEST(CudaSm90, HandsRowsOn) {
  const Options options = on_h200();
  auto gdn = [](const std::vector<int64_t>& lengths) { return test::problem_of(Rule::kGdn, lengths, 32); };
  const auto plan = make_plan(gdn(std::vector<int64_t>(6, 8192)), options);
  EXPECT_EQ(plan->tiling.value_tiles, 1);
  EXPECT_EQ(plan->relay.shares, 132);
  EXPECT_EQ(plan->relay.length, 374);
  EXPECT_EQ(booked(*plan, BufferId::kRelayStates), size_t{132} * 128 * 128 * 4);
  EXPECT_EQ(booked(*plan, BufferId::kRelayMarks), size_t{132} * 2 * 16);
  EXPECT_NE(describe_text(*plan).find("rows are handed on"), std::string::npos);

  auto hands_on = [](const Problem& problem, const Options& with) {
    const auto other = make_plan(problem, with);
    EXPECT_EQ(other->relay.shares > 0, booked(*other, BufferId::kRelayStates) > 0);
    return other->relay.shares > 0;
  };
  EXPECT_TRUE(hands_on(gdn({8192, 5000, 8192, 7777, 0, 6001, 8000}), options)) << "rows of many lengths";
  EXPECT_FALSE(hands_on(gdn({8192, 8192, 8192, 8192}), options)) << "fewer rows than multiprocessors";
  EXPECT_FALSE(hands_on(gdn(std::vector<int64_t>(100, 1024)), options)) << "more rows than are worth it";
  EXPECT_FALSE(hands_on(test::problem_with_bounds(Rule::kGdn, 6 * 8192, 6, 32), options)) << "lengths at execution";
  Options cut = options;
  cut.segments = DR_SEGMENTS_COUNT;
  cut.segment_value = 2;
  EXPECT_FALSE(hands_on(gdn(std::vector<int64_t>(6, 8192)), cut)) << "cut";
  EXPECT_FALSE(hands_on(gdn(std::vector<int64_t>(6, 8192)), test::options_on(test::prepared_on("h200"))))
      << "not from records";
}

// Whether rows are walked by twins, and so how many lines there are, is reckoned from the chunks that they have, not
// from tokens: 481 of them are 16 chunks. It matters where an odd number of multiprocessors leaves one without a twin.
TEST(CudaSm90, HandsOnWhatIsPredicted) {
  Options options = on_h200();
  options.device.units = 131;
  Problem problem = test::problem_of(Rule::kGdn, {481, 481, 481, 481, 0}, 66);
  problem.heads_qk = 33;
  const auto plan = make_plan(problem, options);
  ASSERT_EQ(plan->tiling.value_tiles, 1);
  ASSERT_TRUE(walks_twins(*plan));
  EXPECT_GT(plan->relay.shares, 0);
  EXPECT_EQ(plan->relay.side, 2);
  EXPECT_EQ(plan->predicted_ns, time_table(plan->table, plan->costs, plan->relay).total());
}

// Where the walk may have to leave a checkpoint before it is finished, and the pool would round it then.
TEST(CudaSm90, BooksCheckpointsOnTheirWayToAPoolOf16Bits) {
  const size_t state = size_t{4} * 128 * 128 * sizeof(float);
  Options options = on_h200();
  auto places = [&](const Problem& problem) {
    const auto plan = make_plan(problem, options);
    const size_t bytes = booked(*plan, BufferId::kCheckpoints);
    EXPECT_EQ(bytes, static_cast<size_t>(plan->checkpoints) * state);
    Problem wide = problem;
    wide.checkpoint.dtype = DType::kFp32;
    const auto without = make_plan(wide, options);
    EXPECT_EQ(without->ledger.find(BufferId::kCheckpoints), nullptr) << "fp32 is not rounded";
    EXPECT_EQ(plan->ledger.total_bytes(), without->ledger.total_bytes() + bytes) << "nothing else grows";
    return plan->checkpoints;
  };
  const Problem kda = test::problem_of(Rule::kKda, {300, 0, 130}, 4),
                gdn = test::problem_of(Rule::kGdn, {300, 0, 130}, 4);
  for (const DType pool : {DType::kBf16, DType::kFp16}) {
    EXPECT_EQ(places(test::with_checkpoints(kda, 48, 8, pool)), 6 + 2);
    options.variant = "prepared";
    EXPECT_EQ(places(test::with_checkpoints(gdn, 96, 4, pool)), 3 + 1);
    options.variant = "fused";
    EXPECT_EQ(places(test::with_checkpoints(gdn, 48, 8, pool)), 6 + 2);
    options.variant = "";
  }
  EXPECT_EQ(places(test::with_checkpoints(kda, 96, 4)), 0) << "whole chunks of 32";
  EXPECT_EQ(places(test::with_checkpoints(gdn, 128, 3)), 0) << "whole chunks of either way";
  options.variant = "fused";
  EXPECT_EQ(places(test::with_checkpoints(gdn, 96, 4)), 0) << "whole chunks of 32";
  options.variant = "";
  EXPECT_EQ(places(test::with_checkpoints(kda, 304, 1)), 0) << "no sequence is that long";
  Problem chunks = test::with_checkpoints(kda, 48, 8);
  chunks.checkpoints = Checkpoints::kChunks;
  EXPECT_EQ(places(chunks), 0);

  // A list may name all multiples of 16; no more can be stored than the pool has slots.
  EXPECT_EQ(places(test::with_checkpoints(kda, 0, 3)), 3);
  EXPECT_EQ(places(test::with_checkpoints(kda, 0, 100000)), 18 + 8);
  EXPECT_EQ(places(test::with_checkpoints(kda, 48, 100000)), 8);
  EXPECT_EQ(places(test::with_checkpoints(kda, 0, 0)), 0) << "an empty pool";
  const auto long_one = test::with_checkpoints(test::problem_of(Rule::kKda, {int64_t{1} << 20}, 4), 0, 1 << 20);
  EXPECT_EQ(places(long_one), 1 << 16) << "2^32 numbers";

  const auto text = describe_text(*make_plan(test::with_checkpoints(kda, 48, 8), options));
  EXPECT_THAT(text, HasSubstr("\n  checkpoints: "));
  const auto json = describe_json(*make_plan(test::with_checkpoints(kda, 48, 8), options));
  EXPECT_THAT(json, HasSubstr("\"name\":\"checkpoints\""));
  const auto on_cpu = make_plan(test::with_checkpoints(kda, 0, 8), test::options_on(test::cpu_with(2)));
  EXPECT_EQ(on_cpu->ledger.find(BufferId::kCheckpoints), nullptr) << "its chunks are 16 tokens";
}

// Checkpoints are a side product: a call with them is planned as without.
TEST(CudaSm90, CheckpointsMoveNoCut) {
  for (const Rule rule : {Rule::kKda, Rule::kGdn}) {
    for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{8192}, {65536}, {1500, 1500, 1500}, {70, 300}}) {
      for (const int32_t heads : {2, 8, 64}) {
        Problem problem = test::problem_of(rule, lengths, heads);
        if (rule == Rule::kKda) problem.gate_floor = -5.0f;
        const auto without = make_plan(problem, on_h200());
        for (const int64_t every : {64, 48, 1024}) {
          const auto with = make_plan(test::with_checkpoints(problem, every, 5000, DType::kFp32), on_h200());
          EXPECT_STREQ(with->variant.name, without->variant.name);
          EXPECT_EQ(with->table.rows1, without->table.rows1);
          EXPECT_EQ(with->table.rows3, without->table.rows3);
          EXPECT_EQ(with->relay.places(), without->relay.places());
        }
      }
    }
  }
}

// Whatever lengths come, there is room for them, and bounds that grow never take less.
TEST(CudaSm90, BooksCheckpointsForEveryLengthWithinTheBounds) {
  const Options options = test::options_on(test::prepared_on("h200"));
  for (const int64_t every : {0, 48, 80}) {
    int64_t before = 0;
    for (int64_t tokens = 0; tokens < 700; tokens += 23) {
      auto places = [&](const Problem& problem) {
        return make_plan(test::with_checkpoints(problem, every, 1000), options)->checkpoints;
      };
      const int64_t late = places(test::problem_with_bounds(Rule::kKda, tokens, 3, 4));
      EXPECT_GE(late, before);
      before = late;
      for (const int64_t cut : {int64_t{0}, tokens / 3, tokens / 2})
        EXPECT_GE(late, places(test::problem_of(Rule::kKda, {cut, tokens - cut, 0}, 4)));
    }
    EXPECT_GT(before, 0);
  }
}

template <class T>
std::vector<T> array_in(const std::vector<std::byte>& image, size_t offset, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  EXPECT_LE(offset + values.size() * sizeof(T), image.size());
  EXPECT_EQ(offset % 16, 0u);
  if (count > 0) std::memcpy(values.data(), image.data() + offset, values.size() * sizeof(T));
  return values;
}

TEST(CudaSm90, ImageIsTheTable) {
  test::Random random(81);
  for (int32_t round = 0; round < 300; ++round) {
    const auto lengths = test::random_lengths(random, static_cast<test::Family>(round % test::kFamilies));
    Options options = on_h200();
    options.invariant = round % 4 == 0;
    Problem problem =
        test::problem_of(round % 2 ? Rule::kKda : Rule::kGdn, lengths, static_cast<int32_t>(random.in(1, 24)));
    if (round % 7 == 0) {
      problem.offsets.clear();
      problem.num_seqs = random.in(1, 9);
      problem.seq_len = random.magnitude(1, 20000);
      problem.num_tokens = problem.num_seqs * problem.seq_len;
    }
    const auto plan = make_plan(problem, options);
    const DeviceTableLayout& at = plan->device_table;
    const std::vector<std::byte>& image = plan->device_image;
    SCOPED_TRACE(round);
    EXPECT_EQ(image.size() % 16, 0u);
    EXPECT_EQ(at.bytes, image.size()) << "no scratch";
    const auto counts = array_in<int32_t>(image, at.counts, 4);
    EXPECT_EQ(counts[3], plan->table.num_slots);
    EXPECT_EQ(array_in<Row>(image, at.rows1, counts[0]), plan->table.rows1);
    EXPECT_EQ(array_in<Fold>(image, at.folds, counts[1]), plan->table.folds);
    EXPECT_EQ(array_in<Row>(image, at.rows3, counts[2]), plan->table.rows3);
    const auto tokens = array_in<int64_t>(image, at.token_begin, problem.num_seqs + 1);
    const auto chunks = array_in<int32_t>(image, at.chunk_begin, problem.num_seqs + 1);
    EXPECT_EQ(tokens[0], 0);
    EXPECT_EQ(chunks[0], 0);
    for (int64_t n = 0; n < problem.num_seqs; ++n) {
      const auto i = static_cast<size_t>(n);
      ASSERT_EQ(tokens[i + 1] - tokens[i], problem.length(n));
      ASSERT_EQ(chunks[i + 1] - chunks[i], plan::ceil_div(problem.length(n), plan->chunk()));
    }
    EXPECT_EQ(chunks.back(), plan->num_chunks);
    EXPECT_EQ(make_plan(problem, options)->device_image, image) << "padding too";
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
}

TEST(CudaDevices, AreListedAfterTheTableAndFoundByNumber) {
  const int32_t here = cuda_device_count();
  for (int32_t i = 0; i < here; ++i) {
    const dr_device device = device_at(device_count() - here + i);
    EXPECT_EQ(std::string(device.name), "cuda:" + std::to_string(i));
    EXPECT_EQ(device.kind, DR_DEVICE_CUDA);
    EXPECT_GT(device.units, 0);
    EXPECT_GT(device.bytes_per_ns, 0);
    EXPECT_EQ(cuda_ordinal(device), i);
    EXPECT_EQ(std::string(device_named(device.name).name), device.name);
    EXPECT_STRNE(device.model, "");
    dr_device other = device;
    other.bytes_per_ns += 1;
    EXPECT_EQ(cuda_ordinal(other), i) << "bandwidth is the caller's to say";
    other.units += 1;
    EXPECT_EQ(cuda_ordinal(other), -1) << "another GPU";
  }
  EXPECT_EQ(cuda_ordinal(test::device_of("h200")), -1);
  EXPECT_EQ(cuda_ordinal(device_at(0)), -1);
}

TEST(CudaDevices, ThatAreNotHereAreRefusedInWords) {
  const std::string past = "cuda:" + std::to_string(cuda_device_count());
  for (const std::string& name : {past, std::string("cuda:"), std::string("cuda:-1"), std::string("cuda:00"),
                                  std::string("cuda:1x"), std::string("cuda:99999")}) {
    try {
      device_named(name);
      FAIL() << name << " was found";
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), DR_INVALID);
      EXPECT_THAT(error.what(), HasSubstr("a GPU of this machine"));
      EXPECT_THAT(error.what(), HasSubstr("'" + name + "'"));
    }
  }
  try {
    device_named("h300");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("cpu, a100"));
    EXPECT_THAT(error.what(), HasSubstr("cuda:0"));
  }
}

TEST(CudaDevices, ABackendForCudaMeansTheCurrentGpu) {
  dr_options request{};
  request.size = sizeof request;
  request.backend = kName;
  const Problem problem = test::problem_of(Rule::kKda, {512}, 2);
  const Options options = validate_options(&request, problem);
  EXPECT_TRUE(options.device_is_here);
  if (cuda_device_count() == 0) {
    EXPECT_EQ(options.device.kind, DR_DEVICE_CPU);
    EXPECT_EQ(options.cuda_device, -1);
    EXPECT_THAT(backend_named(kName)->decline(problem, request_of(options)), HasSubstr("expected a CUDA device"));
  } else {
    EXPECT_EQ(options.device.kind, DR_DEVICE_CUDA);
    EXPECT_EQ(options.cuda_device, cuda_current_device());
  }
  request.backend = nullptr;
  EXPECT_EQ(validate_options(&request, problem).device.kind, DR_DEVICE_CPU) << "a GPU has to be asked for";
  EXPECT_EQ(validate_options(nullptr, problem, kName).cuda_device, options.cuda_device);
}

}  // namespace
}  // namespace deltarelay
