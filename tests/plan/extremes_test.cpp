// Whatever the sizes, a problem is planned and described within 50 ms, or refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "deltarelay/deltarelay.h"
#include "length_mixes.h"
#include "problem/types.h"

namespace deltarelay {
namespace {

// Time of the thread, so that waiting does not count. Other threads still share its core and caches: the slowest plan
// took 29 ms on a Xeon and over 100 beside other tests.
#if defined(NDEBUG) && defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr double kMostMilliseconds = 50 * 4;
#else
constexpr double kMostMilliseconds = 50 * 40;
#endif

double thread_milliseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

// The least of three runs: the first meets memory that the system has to clear.
template <class Body>
double best_milliseconds(const Body& body) {
  double best = 1e9;
  for (int32_t i = 0; i < 3 && (i == 0 || best > kMostMilliseconds / 4); ++i) {
    const double start = thread_milliseconds();
    body();
    best = std::min(best, thread_milliseconds() - start);
  }
  return best;
}

struct Extreme {
  dr_problem problem;
  dr_options options;
  dr_device device;
  std::vector<dr_costs> costs;
  std::vector<int64_t> offsets;
};

std::vector<int64_t> offsets_of(test::Random& random, int64_t num_seqs) {
  const int64_t kind = random.in(0, 5), unit = random.one_of<int64_t>({1, 16, 64, 1000, 4096});
  std::vector<int64_t> offsets(1);
  for (int64_t n = 0; n < num_seqs; ++n) {
    int64_t length = unit;                                                      // 0: all alike
    if (kind == 1) length = unit * (1 + n % 5000);                              // many different ones
    if (kind == 2) length = random.magnitude(1, 1 << 16);                       // skewed
    if (kind == 3) length = n == num_seqs / 2 ? int64_t{1} << 32 : n % 3;       // one that is as long as can be
    if (kind == 4) length = n % 7 == 0 ? 0 : random.in(0, 2 * unit);            // with empty ones
    if (kind == 5) length = random.in(1, 50) == 1 ? random.in(1, 1 << 22) : 1;  // decode and prefill
    offsets.push_back(offsets.back() + length);
  }
  return offsets;
}

// Costs that do not belong together.
void take_odd_costs(test::Random& random, Extreme& e) {
  const char* const families[][2] = {{"cpu", ""}, {"cuda-sm90", "fused"}, {"cuda-sm90", "prepared"}, {"cuda-sm80", ""}};
  for (const auto& [backend, variant] : families) {
    dr_costs c;
    dr_costs_init(&c);
    if (dr_device_costs(&e.device, backend, variant, e.problem.rule, DR_FORWARD, &c) != DR_SUCCESS) continue;
    for (int32_t* cost : {&c.emit_ns, &c.summarize_ns, &c.carry_ns, &c.carry_unit_ns, &c.split_ns, &c.item_ns,
                          &c.emit_bytes, &c.summarize_bytes, &c.prepare_ns}) {
      const int64_t any = random.magnitude(1, INT32_MAX - 1);
      *cost = static_cast<int32_t>(random.one_of<int64_t>({1, *cost, *cost, *cost, any}));
    }
    c.local_ns = c.summarize_local_ns = 0;
    e.costs.push_back(c);
  }
  e.options.costs = e.costs.data();
  e.options.num_costs = static_cast<int32_t>(e.costs.size());
}

void make_extreme(uint64_t seed, Extreme& e) {
  test::Random random(seed);
  // Mostly ordinary, at times as small or large as can be, or beyond.
  auto some = [&](int64_t usual, int64_t most) {
    const int64_t kind = random.in(0, 9);
    if (kind < 5) return random.magnitude(1, usual);
    if (kind < 7) return random.magnitude(1, most);
    return kind == 7 ? most : kind == 8 ? most - random.in(0, std::min<int64_t>(most / 2, 100)) : most + 1;
  };
  dr_problem& p = e.problem;
  dr_problem_init(&p);
  p.rule = random.in(0, 1) == 0 ? DR_KDA : DR_GDN;
  p.heads_qk = static_cast<int32_t>(some(64, kMaxHeads));
  p.heads_v = p.heads_qk;
  if (p.heads_qk <= kMaxHeads / 4) p.heads_v *= static_cast<int32_t>(random.one_of<int64_t>({1, 2, 4}));
  p.dk = random.one_of<int32_t>({128, 128, 64, 1, 256, 60});
  p.dv = random.in(0, 3) == 0 ? random.one_of<int32_t>({1, 128, 256}) : p.dk;
  p.dtype = random.one_of<int32_t>({DR_BF16, DR_FP32});
  p.num_seqs = some(2048, kMaxSequences);
  const int64_t lengths = random.in(0, 3);
  if (lengths == 0) {  // batched
    p.seq_len = some(1 << 16, kMaxSequenceTokens);
  } else if (lengths == 1) {  // known at execution
    p.num_tokens = some(int64_t{1} << 20, int64_t{1} << 44);
  } else {
    e.offsets = offsets_of(random, p.num_seqs);
    p.seq_offsets = e.offsets.data();
    p.seq_offsets_dtype = DR_INT64;
    p.num_tokens = e.offsets.back() + random.one_of<int64_t>({0, 5, int64_t{1} << 30});
  }
  if (random.in(0, 3) == 0) {
    p.checkpoints = random.one_of<int32_t>({DR_CHECKPOINTS_EVERY, DR_CHECKPOINTS_LIST, DR_CHECKPOINTS_CHUNKS});
    if (p.checkpoints == DR_CHECKPOINTS_EVERY) p.checkpoint_every = 16 * some(64, int64_t{1} << 40);
    p.checkpoint.use = DR_STATE_ROWS;
    p.checkpoint.layout = DR_STATE_VALUE_MAJOR;
    p.checkpoint.dtype = random.one_of<int32_t>({DR_FP32, DR_BF16});
  }
  dr_options& o = e.options;
  dr_options_init(&o);
  dr_device& d = e.device;
  dr_device_init(&d);
  ASSERT_EQ(dr_device_find(random.one_of<const char*>({"h200", "h200", "a100", "b200", "cpu", "cpu"}), &d), DR_SUCCESS);
  if (random.in(0, 1) == 0) {
    d.units = static_cast<int32_t>(some(256, 1 << 16));
    d.bytes_per_ns = static_cast<int32_t>(random.one_of<int64_t>({0, 1, d.bytes_per_ns, d.bytes_per_ns, INT32_MAX}));
    if (random.in(0, 2) == 0) take_odd_costs(random, e);
  }
  o.device = &d;
  if (random.in(0, 3) == 0) o.threads = static_cast<int32_t>(some(64, 4096));
  switch (random.in(0, 9)) {
    case 0:
      o.segments = DR_SEGMENTS_OFF;
      break;
    case 1:
      o.segments = DR_SEGMENTS_COUNT;
      o.segment_value = some(64, int64_t{1} << 62);
      break;
    case 2:
    case 3:
      o.segments = DR_SEGMENTS_LENGTH;
      o.segment_value = random.in(0, 4) == 0 ? int64_t{1} << 62 : 64 * some(256, int64_t{1} << 50);
      o.invariant = random.in(0, 2) == 0;
      break;
    case 4:
      o.invariant = 1;
      break;
    case 5:
      o.policy = random.one_of<const char*>({"fla", "cula-sm100", "cula-sm90", "flashqla", "flashkda-pr9"});
      break;
    default:
      break;
  }
}

std::string describe(const dr_plan* plan, int32_t format) {
  size_t needed = 0;
  EXPECT_EQ(dr_plan_describe(plan, format, nullptr, 0, &needed), DR_SUCCESS) << dr_last_error();
  std::string text(needed, '\0');
  EXPECT_EQ(dr_plan_describe(plan, format, text.data(), text.size(), nullptr), DR_SUCCESS) << dr_last_error();
  text.pop_back();
  return text;
}

// Plans e, and describes what was planned. Returns whether it was.
bool plan_extreme(const Extreme& e) {
  dr_plan* plan = nullptr;
  dr_status status = DR_SUCCESS;
  const double planning = best_milliseconds([&] {
    dr_plan_destroy(plan);
    plan = nullptr;
    status = dr_plan_create(&e.problem, &e.options, &plan);
  });
  EXPECT_LE(planning, kMostMilliseconds) << (status == DR_SUCCESS ? "planned" : dr_last_error());
  if (status != DR_SUCCESS) {
    EXPECT_TRUE(status == DR_INVALID || status == DR_UNSUPPORTED) << dr_last_error();
    EXPECT_STRNE(dr_last_error(), "");
    return false;
  }
  dr_plan_summary summary;
  dr_plan_summary_init(&summary);
  EXPECT_LE(best_milliseconds([&] { EXPECT_EQ(dr_plan_summarize(plan, &summary), DR_SUCCESS); }), kMostMilliseconds);
  EXPECT_GE(summary.predicted_ns, 0);
  EXPECT_GE(summary.unsplit_ns, 0);
  size_t needed = 0;
  for (const int32_t format : {DR_DESCRIBE_TEXT, DR_DESCRIBE_JSON, DR_DESCRIBE_SIGNATURE}) {
    const double describing = best_milliseconds([&] { dr_plan_describe(plan, format, nullptr, 0, &needed); });
    EXPECT_LE(describing, kMostMilliseconds) << "format " << format << ", " << needed << " bytes";
  }
  const std::string json = describe(plan, DR_DESCRIBE_JSON);
  EXPECT_TRUE(nlohmann::json::accept(json));
  EXPECT_LE(json.size(), size_t{16} << 20);
  dr_plan_destroy(plan);
  return true;
}

TEST(Extremes, EveryProblemIsPlannedInTimeOrRefused) {
  int32_t planned = 0, refused = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Extreme e;
    make_extreme(seed, e);
    (plan_extreme(e) ? planned : refused) += 1;
    if (HasFailure()) break;
  }
  EXPECT_GT(planned, 100);
  EXPECT_GT(refused, 50);
}

// The largest of everything that is accepted.
TEST(Extremes, TheMostSequencesHeadsAndUnits) {
  for (const char* name : {"h200", "a100", "cpu"}) {
    for (const bool distinct : {false, true}) {
      for (const int32_t segments : {DR_SEGMENTS_AUTO, DR_SEGMENTS_COUNT, DR_SEGMENTS_LENGTH}) {
        for (const bool large : {false, true}) {
          SCOPED_TRACE(std::string(name) + (distinct ? " distinct" : " alike") + (large ? " large" : " small") +
                       " segments " + std::to_string(segments));
          Extreme e;
          dr_problem_init(&e.problem);
          dr_options_init(&e.options);
          dr_device_init(&e.device);
          ASSERT_EQ(dr_device_find(name, &e.device), DR_SUCCESS);
          if (large) e.device.units = 1 << 16;
          e.options.device = &e.device;
          e.options.segments = segments;
          e.options.segment_value = segments == DR_SEGMENTS_COUNT ? 2 : segments == DR_SEGMENTS_LENGTH ? 16 * 1024 : 0;
          e.offsets.assign(1, 0);
          for (int64_t n = 0; n < kMaxSequences; ++n)
            e.offsets.push_back(e.offsets.back() + (distinct ? 16 + 16 * (n % 8000) : 1024));
          dr_problem& p = e.problem;
          p.rule = DR_GDN;
          p.num_seqs = kMaxSequences;
          p.num_tokens = e.offsets.back();
          p.seq_offsets = e.offsets.data();
          p.seq_offsets_dtype = DR_INT64;
          p.heads_qk = p.heads_v = large ? 33 : 1;
          p.dk = p.dv = 128;
          p.dtype = DR_BF16;
          plan_extreme(e);
          if (HasFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace deltarelay
