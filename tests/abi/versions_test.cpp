// Callers compiled with another version of the header: 0.2.0 with its frozen structures, a later version that this
// library does not know, and 0.1.
#include <algorithm>
#include <cstring>

#include "frozen_call.h"
#include "small_call.h"

namespace contract {
namespace {

constexpr unsigned char kGuard = 0xa5;

// A structure as a later header may define it. The memory after it does not belong to the library.
template <class Structure>
struct Later {
  Structure known;
  uint64_t added[3];
  unsigned char behind[64];

  static constexpr uint32_t kSize = sizeof(Structure) + sizeof(added);

  explicit Later(const Structure& from) : known(from), added{} {
    static_assert(offsetof(Later, behind) == kSize);
    known.size = kSize;
    std::memset(behind, kGuard, sizeof behind);
  }
  bool guarded() const {
    return std::all_of(std::begin(behind), std::end(behind), [](unsigned char byte) { return byte == kGuard; });
  }
};

template <class Structure>
Structure sized(uint32_t size = sizeof(Structure)) {
  Structure structure{};
  structure.size = size;
  return structure;
}

// Arbitrary contents of a later caller's structure before the library fills it.
template <class Structure>
Later<Structure> unfilled() {
  Later<Structure> later(sized<Structure>());
  std::memset(later.added, 0xff, sizeof later.added);
  return later;
}

template <class Structure>
void expect_filled(const Later<Structure>& later) {
  EXPECT_EQ(later.known.size, later.kSize);
  for (const uint64_t word : later.added) EXPECT_EQ(word, 0u) << "what this version does not know is zero";
  EXPECT_TRUE(later.guarded()) << "memory behind the caller's structure was written";
}

std::string size_words(uint32_t known) { return std::to_string(known) + ", or zeros in the fields after it"; }

dr_device cpu_facts() {
  dr_device device = sized<dr_device>();
  EXPECT_EQ(dr_device_get(0, &device), DR_SUCCESS) << dr_last_error();
  return device;
}

dr_costs cpu_costs(int32_t rule) {
  const dr_device device = cpu_facts();
  dr_costs costs = sized<dr_costs>();
  EXPECT_EQ(dr_device_costs(&device, "cpu", "", rule, DR_FORWARD, &costs), DR_SUCCESS) << dr_last_error();
  return costs;
}

std::string signature(const dr_plan* plan) {
  char text[512] = "";
  EXPECT_EQ(dr_plan_describe(plan, DR_DESCRIBE_SIGNATURE, text, sizeof text, nullptr), DR_SUCCESS) << dr_last_error();
  return text;
}

void execute(const dr_plan* plan, SmallCall& call, const dr_tensors* tensors) {
  size_t bytes = 0;
  ASSERT_EQ(dr_plan_workspace_bytes(plan, &bytes), DR_SUCCESS) << dr_last_error();
  ASSERT_EQ(dr_execute(plan, tensors, call.workspace(bytes), bytes, nullptr), DR_SUCCESS) << dr_last_error();
}

void expect_same_outputs(const SmallCall& a, const SmallCall& b) {
  EXPECT_FALSE(a.untouched());
  EXPECT_EQ(std::memcmp(a.o.data(), b.o.data(), a.o.size() * sizeof(float)), 0);
  EXPECT_EQ(std::memcmp(a.state.data(), b.state.data(), a.state.size() * sizeof(float)), 0);
}

void run_today(SmallCall& call, std::string* words = nullptr) {
  const PlanOwner owner(call.problem);
  ASSERT_NE(owner.plan, nullptr);
  if (words != nullptr) *words = signature(owner.plan);
  execute(owner.plan, call, &call.tensors);
}

TEST(Versions, AProgramOf020RunsAsOneOfToday) {
  SmallCall today, old;
  std::string words;
  run_today(today, &words);
  frozen_call call{};
  call.num_seqs = old.problem.num_seqs;
  call.num_tokens = old.problem.num_tokens;
  call.heads = old.problem.heads_v;
  call.dk = old.problem.dk;
  call.dv = old.problem.dv;
  call.seq_offsets = old.offsets;
  call.q = old.q.data();
  call.k = old.k.data();
  call.v = old.v.data();
  call.g = old.g.data();
  call.beta = old.beta.data();
  call.o = old.o.data();
  call.final = old.state.data();
  const char* const failed = frozen_call_run(&call);
  ASSERT_EQ(failed, nullptr) << failed << ": " << dr_last_error();
  EXPECT_STREQ(call.backend, "cpu");
  EXPECT_EQ(call.signature, words);
  expect_same_outputs(old, today);
}

TEST(Versions, AProgramOfALaterHeaderIsServedWhileItAsksForNothingNew) {
  SmallCall today, call;
  std::string words;
  run_today(today, &words);

  Later<dr_device> device = unfilled<dr_device>();
  ASSERT_EQ(dr_device_get(0, &device.known), DR_SUCCESS) << dr_last_error();
  expect_filled(device);
  EXPECT_EQ(std::memcmp(device.known.name, cpu_facts().name, sizeof device.known.name), 0);
  Later<dr_device> found = unfilled<dr_device>();
  ASSERT_EQ(dr_device_find("h200", &found.known), DR_SUCCESS) << dr_last_error();
  expect_filled(found);

  Later<dr_costs> costs = unfilled<dr_costs>();
  ASSERT_EQ(dr_device_costs(&device.known, "cpu", "", DR_KDA, DR_FORWARD, &costs.known), DR_SUCCESS) << dr_last_error();
  expect_filled(costs);
  EXPECT_EQ(costs.known.emit_ns, cpu_costs(DR_KDA).emit_ns);

  const Later<dr_problem> problem(call.problem);
  Later<dr_options> options(sized<dr_options>());
  options.known.device = &device.known;
  options.known.costs = &costs.known;
  options.known.num_costs = 1;
  PlanOwner owner;
  ASSERT_EQ(dr_plan_create(&problem.known, &options.known, &owner.plan), DR_SUCCESS) << dr_last_error();
  EXPECT_EQ(signature(owner.plan), words);
  EXPECT_EQ(dr_backend_check(dr_backend_count() - 1, &problem.known, &options.known), DR_SUCCESS) << dr_last_error();

  Later<dr_plan_summary> summary = unfilled<dr_plan_summary>();
  ASSERT_EQ(dr_plan_summarize(owner.plan, &summary.known), DR_SUCCESS) << dr_last_error();
  expect_filled(summary);
  EXPECT_STREQ(summary.known.backend, "cpu");

  const Later<dr_tensors> tensors(call.tensors);
  execute(owner.plan, call, &tensors.known);
  expect_same_outputs(call, today);
}

// Every structure that the caller fills, with one new field set, is refused under its own name.
TEST(Versions, ANewFieldOfALaterHeaderIsRefusedByName) {
  SmallCall call;
  dr_plan* plan = nullptr;
  const auto added_byte = [](uint32_t known) { return "with byte " + std::to_string(known + 8) + " set"; };

  Later<dr_problem> problem(call.problem);
  problem.added[1] = 1;
  const std::vector<std::string> of_problem{size_words(sizeof(dr_problem)), added_byte(sizeof(dr_problem))};
  expect_failure(dr_plan_create(&problem.known, nullptr, &plan), DR_INVALID, "problem.size", of_problem);
  expect_failure(dr_backend_check(0, &problem.known, nullptr), DR_INVALID, "problem.size", of_problem);

  Later<dr_options> options(sized<dr_options>());
  options.added[1] = 1;
  const std::vector<std::string> of_options{size_words(sizeof(dr_options)), added_byte(sizeof(dr_options))};
  expect_failure(dr_plan_create(&call.problem, &options.known, &plan), DR_INVALID, "options.size", of_options);
  options.added[1] = 0;

  Later<dr_device> device(cpu_facts());
  device.added[1] = 1;
  const std::vector<std::string> of_device{size_words(sizeof(dr_device)), added_byte(sizeof(dr_device))};
  options.known.device = &device.known;
  expect_failure(dr_plan_create(&call.problem, &options.known, &plan), DR_INVALID, "options.device.size", of_device);
  dr_costs unwritten = sized<dr_costs>();
  expect_failure(dr_device_costs(&device.known, "cpu", "", DR_KDA, DR_FORWARD, &unwritten), DR_INVALID, "device.size",
                 of_device);
  EXPECT_EQ(unwritten.emit_ns, 0) << "a failed call wrote";
  options.known.device = nullptr;

  Later<dr_costs> costs(cpu_costs(DR_KDA));
  costs.added[1] = 1;
  options.known.costs = &costs.known;
  options.known.num_costs = 1;
  expect_failure(dr_plan_create(&call.problem, &options.known, &plan), DR_INVALID, "options.costs[0].size",
                 {size_words(sizeof(dr_costs)), added_byte(sizeof(dr_costs))});
  EXPECT_EQ(plan, nullptr);

  Later<dr_tensors> tensors(call.tensors);
  tensors.added[1] = 1;
  const PlanOwner owner(call.problem);
  size_t bytes = 0;
  ASSERT_EQ(dr_plan_workspace_bytes(owner.plan, &bytes), DR_SUCCESS);
  expect_failure(dr_execute(owner.plan, &tensors.known, call.workspace(bytes), bytes, nullptr), DR_INVALID,
                 "tensors.size", {size_words(sizeof(dr_tensors)), added_byte(sizeof(dr_tensors))});
  EXPECT_TRUE(call.untouched());
}

// An array of costs of a later header: entries are as far apart as the size of the first entry.
TEST(Versions, CostsMayBeOfAnotherSize) {
  const SmallCall call;
  dr_costs slow = cpu_costs(DR_KDA);
  slow.emit_ns = slow.summarize_ns = 1'000'000'000;
  slow.local_ns = slow.summarize_local_ns = 0;
  const auto predicted = [&](const dr_costs* costs, int32_t count) {
    dr_options options = sized<dr_options>();
    options.costs = costs;
    options.num_costs = count;
    const PlanOwner owner(call.problem, &options);
    dr_plan_summary summary = sized<dr_plan_summary>();
    EXPECT_EQ(dr_plan_summarize(owner.plan, &summary), DR_SUCCESS) << dr_last_error();
    return summary.predicted_ns;
  };
  const dr_costs today[2] = {cpu_costs(DR_GDN), slow};
  const int64_t expected = predicted(today, 2);
  EXPECT_GT(expected, 100 * predicted(nullptr, 0)) << "the second entry was not used";

  // 4 bytes more, so that entries are no longer at multiples of 8; and 1 more, at odd addresses.
  for (const size_t step : {sizeof(dr_costs) + 4, sizeof(dr_costs) + 24, sizeof(dr_costs) + 1}) {
    std::vector<uint64_t> storage(2 * step / sizeof(uint64_t) + 2);
    auto* const bytes = reinterpret_cast<unsigned char*>(storage.data());
    for (size_t i = 0; i < 2; ++i) {
      dr_costs entry = today[i];
      entry.size = static_cast<uint32_t>(step);
      std::memcpy(bytes + i * step, &entry, sizeof entry);
    }
    const auto* costs = reinterpret_cast<const dr_costs*>(bytes);
    EXPECT_EQ(predicted(costs, 2), expected) << step;

    dr_options options = sized<dr_options>();
    options.costs = costs;
    options.num_costs = 2;
    dr_plan* plan = nullptr;
    const uint32_t other = sizeof(dr_costs);
    std::memcpy(bytes + step, &other, sizeof other);
    expect_failure(dr_plan_create(&call.problem, &options, &plan), DR_INVALID, "options.costs[1].size",
                   {"expected " + std::to_string(step) + ", as the first", "found " + std::to_string(other)});
    std::memcpy(bytes + step, &step, sizeof other);
    bytes[2 * step - 1] = 1;
    expect_failure(dr_plan_create(&call.problem, &options, &plan), DR_INVALID, "options.costs[1].size",
                   {size_words(sizeof(dr_costs))});
  }
}

TEST(Versions, StructuresOf01AreRefusedByVersion) {
  SmallCall call;
  dr_plan* plan = nullptr;
  const auto of_version = [](uint32_t size) -> std::vector<std::string> {
    return {"version 0.2 or later", "found " + std::to_string(size) + ", the size in version 0.1"};
  };
  // As large as the larger version, so that a library that trusts the size still reads existing memory.
  union {
    dr_problem problem;
    dr_options options;
    dr_device device;
    dr_plan_summary summary;
    unsigned char bytes[1024];
  } old;
  const auto reset = [&](uint32_t size) {
    std::memset(old.bytes, 0, sizeof old.bytes);
    std::memcpy(old.bytes, &size, sizeof size);
  };
  const auto unwritten = [&] {
    return std::all_of(old.bytes + 4, std::end(old.bytes), [](unsigned char byte) { return byte == 0; });
  };

  reset(440);
  expect_failure(dr_plan_create(&old.problem, nullptr, &plan), DR_INVALID, "problem.size", of_version(440));
  reset(96);
  expect_failure(dr_plan_create(&call.problem, &old.options, &plan), DR_INVALID, "options.size", of_version(96));
  reset(368);
  expect_failure(dr_device_get(0, &old.device), DR_INVALID, "device.size", of_version(368));
  expect_failure(dr_device_find("cpu", &old.device), DR_INVALID, "device.size", of_version(368));
  EXPECT_TRUE(unwritten());
  dr_options options = sized<dr_options>();
  options.device = &old.device;
  expect_failure(dr_plan_create(&call.problem, &options, &plan), DR_INVALID, "options.device.size", of_version(368));
  EXPECT_EQ(plan, nullptr);

  const PlanOwner owner(call.problem);
  reset(80);
  expect_failure(dr_plan_summarize(owner.plan, &old.summary), DR_INVALID, "summary.size", of_version(80));
  EXPECT_TRUE(unwritten());
  size_t bytes = 0;
  ASSERT_EQ(dr_plan_workspace_bytes(owner.plan, &bytes), DR_SUCCESS);
  call.tensors.size = 160;
  expect_failure(dr_execute(owner.plan, &call.tensors, call.workspace(bytes), bytes, nullptr), DR_INVALID,
                 "tensors.size", of_version(160));
  EXPECT_TRUE(call.untouched());
}

// Sizes below 0.2.0 other than 0.1: the library reads and writes nothing.
TEST(Versions, OutputsThatCannotBeWholeAreLeftAlone) {
  const SmallCall call;
  const PlanOwner owner(call.problem);
  struct {
    dr_plan_summary summary;
    dr_device device;
    dr_costs costs;
  } out;
  const dr_device cpu = cpu_facts();
  for (const uint32_t size : {0u, 4u, 79u, 4097u, 0xffffffffu}) {
    std::memset(&out, kGuard, sizeof out);
    out.summary.size = out.device.size = out.costs.size = size;
    const auto before = out;
    expect_failure(dr_plan_summarize(owner.plan, &out.summary), DR_INVALID, "summary.size",
                   {"found " + std::to_string(size)});
    expect_failure(dr_device_get(0, &out.device), DR_INVALID, "device.size", {"found " + std::to_string(size)});
    expect_failure(dr_device_costs(&cpu, "cpu", "", DR_KDA, DR_FORWARD, &out.costs), DR_INVALID, "costs.size",
                   {"found " + std::to_string(size)});
    EXPECT_EQ(std::memcmp(&out, &before, sizeof out), 0) << size;
  }
}

}  // namespace
}  // namespace contract
