// Functions that need no plan: the library about itself, devices, backends.
#include <cstddef>
#include <cstring>
#include <set>
#include <thread>

#include "small_call.h"

namespace contract {
namespace {

TEST(Library, NamesItself) {
  EXPECT_EQ(dr_version(), DR_VERSION);
  const std::string info = dr_build_info();
  EXPECT_NE(info.find("deltarelay 0.2.0"), std::string::npos) << info;
  EXPECT_EQ(dr_build_info(), dr_build_info());
}

TEST(Library, NamesEveryStatus) {
  std::set<std::string> names;
  for (dr_status status = DR_SUCCESS; status <= DR_INTERNAL; ++status) names.insert(dr_status_string(status));
  EXPECT_EQ(names.size(), 6u);
  EXPECT_EQ(names.count(dr_status_string(99)), 0u);
  EXPECT_STREQ(dr_status_string(DR_INVALID), "invalid");
}

template <typename Structure, typename Init>
void expect_zero_but_size(Init init) {
  Structure structure;
  std::memset(static_cast<void*>(&structure), 0xab, sizeof structure);
  init(&structure);
  EXPECT_EQ(structure.size, sizeof structure);
  structure.size = 0;
  const auto* bytes = reinterpret_cast<const unsigned char*>(&structure);
  for (size_t i = 0; i < sizeof structure; ++i) ASSERT_EQ(bytes[i], 0) << "byte " << i;
}

TEST(Library, InitFunctionsZeroEverything) {
  expect_zero_but_size<dr_problem>(dr_problem_init);
  expect_zero_but_size<dr_options>(dr_options_init);
  expect_zero_but_size<dr_tensors>(dr_tensors_init);
  expect_zero_but_size<dr_device>(dr_device_init);
  expect_zero_but_size<dr_costs>(dr_costs_init);
  expect_zero_but_size<dr_plan_summary>(dr_plan_summary_init);
}

TEST(LastError, IsEmptyAfterSuccess) {
  dr_device device;
  dr_device_init(&device);
  EXPECT_EQ(dr_device_get(-1, &device), DR_INVALID);
  EXPECT_STRNE(dr_last_error(), "");
  EXPECT_EQ(dr_device_get(0, &device), DR_SUCCESS);
  EXPECT_STREQ(dr_last_error(), "");
}

TEST(LastError, BelongsToTheThread) {
  dr_device device;
  dr_device_init(&device);
  EXPECT_EQ(dr_device_get(-1, &device), DR_INVALID);
  const std::string mine = dr_last_error();
  std::thread([] {
    EXPECT_STREQ(dr_last_error(), "");
    dr_device other;
    dr_device_init(&other);
    EXPECT_EQ(dr_device_find("nonesuch", &other), DR_INVALID);
    EXPECT_NE(std::string(dr_last_error()).find("nonesuch"), std::string::npos);
  }).join();
  EXPECT_EQ(dr_last_error(), mine);
}

TEST(LastError, HoldsLongMessages) {
  dr_device device;
  dr_device_init(&device);
  const std::string name(100000, 'x');
  EXPECT_EQ(dr_device_find(name.c_str(), &device), DR_INVALID);
  const size_t length = std::strlen(dr_last_error());
  EXPECT_GT(length, 1000u);
  EXPECT_LT(length, name.size());
}

TEST(Devices, TheFirstIsThisMachine) {
  dr_device device;
  dr_device_init(&device);
  ASSERT_EQ(dr_device_get(0, &device), DR_SUCCESS) << dr_last_error();
  EXPECT_EQ(device.size, sizeof device);
  EXPECT_EQ(device.kind, DR_DEVICE_CPU);
  EXPECT_GE(device.units, 1);
  EXPECT_STREQ(device.name, "cpu");
}

TEST(Devices, EveryOneIsFoundByItsName) {
  ASSERT_GT(dr_device_count(), 4);
  for (int32_t i = 0; i < dr_device_count(); ++i) {
    dr_device by_index, by_name;
    dr_device_init(&by_index);
    dr_device_init(&by_name);
    ASSERT_EQ(dr_device_get(i, &by_index), DR_SUCCESS);
    ASSERT_EQ(dr_device_find(by_index.name, &by_name), DR_SUCCESS);
    EXPECT_EQ(std::memcmp(&by_index, &by_name, sizeof by_index), 0) << by_index.name;
  }
  dr_device device;
  dr_device_init(&device);
  ASSERT_EQ(dr_device_find("h200", &device), DR_SUCCESS);
  EXPECT_EQ(device.units, 132);
  EXPECT_EQ(device.kind, DR_DEVICE_CUDA);
}

TEST(Devices, BadInput) {
  dr_device device;
  dr_device_init(&device);
  const dr_device before = device;
  const std::string last = std::to_string(dr_device_count() - 1);
  expect_failure(dr_device_get(-1, &device), DR_INVALID, "index", {"expected 0 to " + last, "found -1"});
  expect_failure(dr_device_get(dr_device_count(), &device), DR_INVALID, "index", {"expected 0 to " + last});
  expect_failure(dr_device_get(0, nullptr), DR_INVALID, "device", {"expected a pointer", "found NULL"});
  expect_failure(dr_device_find(nullptr, &device), DR_INVALID, "name", {"expected a pointer", "found NULL"});
  expect_failure(dr_device_find("H2000", &device), DR_INVALID, "name",
                 {"expected one of cpu", "h200", "found 'H2000'"});
  expect_failure(dr_device_find("cuda:4096", &device), DR_INVALID, "name",
                 {"a GPU of this machine", "found 'cuda:4096'"});
  expect_failure(dr_device_find("cpu", nullptr), DR_INVALID, "device", {"expected a pointer", "found NULL"});
  EXPECT_EQ(std::memcmp(&device, &before, sizeof device), 0);
  device.size = 0;
  expect_failure(dr_device_get(0, &device), DR_INVALID, "device.size",
                 {"expected at least " + std::to_string(sizeof device), "found 0"});
  EXPECT_EQ(device.units, 0);
}

TEST(Devices, CostsAreAskedForByBackendVariantAndRule) {
  dr_device h200;
  dr_device_init(&h200);
  ASSERT_EQ(dr_device_find("h200", &h200), DR_SUCCESS);
  dr_costs fused, prepared;
  dr_costs_init(&fused);
  dr_costs_init(&prepared);
  ASSERT_EQ(dr_device_costs(&h200, "cuda-sm90", "fused", DR_KDA, DR_FORWARD, &fused), DR_SUCCESS) << dr_last_error();
  ASSERT_EQ(dr_device_costs(&h200, "cuda-sm90", "prepared", DR_KDA, DR_FORWARD, &prepared), DR_SUCCESS);
  EXPECT_EQ(fused.measured, 1);
  EXPECT_STREQ(fused.measured_on, "h200");
  EXPECT_EQ(fused.prepare_ns, 0);
  EXPECT_GT(prepared.prepare_ns, 0);
  dr_costs portable;
  dr_costs_init(&portable);
  EXPECT_EQ(dr_device_costs(&h200, "cuda-sm80", nullptr, DR_GDN, DR_FORWARD, &portable), DR_SUCCESS);
  EXPECT_EQ(portable.rule, DR_GDN);
  expect_failure(dr_device_costs(&h200, "cpu", "", DR_KDA, DR_FORWARD, &portable), DR_INVALID, "backend",
                 {"found 'cpu'"});
  expect_failure(dr_device_costs(&h200, "cuda-sm90", "", DR_KDA, DR_FORWARD, &portable), DR_INVALID, "backend",
                 {"variant ''"});
  expect_failure(dr_device_costs(&h200, "cuda-sm80", "", 7, DR_FORWARD, &portable), DR_INVALID, "rule", {"found 7"});
  expect_failure(dr_device_costs(&h200, "cuda-sm80", "", DR_KDA, DR_BACKWARD, &portable), DR_INVALID, "op",
                 {"found 1"});
  expect_failure(dr_device_costs(nullptr, "cpu", "", DR_KDA, DR_FORWARD, &portable), DR_INVALID, "device", {"NULL"});
  expect_failure(dr_device_costs(&h200, nullptr, "", DR_KDA, DR_FORWARD, &portable), DR_INVALID, "backend", {"NULL"});
  expect_failure(dr_device_costs(&h200, "cuda-sm80", "", DR_KDA, DR_FORWARD, nullptr), DR_INVALID, "costs", {"NULL"});
}

TEST(Backends, EndWithTheReference) {
  const int32_t count = dr_backend_count();
  ASSERT_GE(count, 2);
  EXPECT_STREQ(dr_backend_name(count - 1), "reference");
  std::set<std::string> names;
  for (int32_t i = 0; i < count; ++i) names.insert(dr_backend_name(i));
  EXPECT_EQ(names.size(), static_cast<size_t>(count));
  EXPECT_EQ(names.count("cpu"), 1u);
  EXPECT_EQ(dr_backend_name(-1), nullptr);
  EXPECT_EQ(dr_backend_name(count), nullptr);
}

TEST(Backends, SayWhetherTheyServeAProblem) {
  const SmallCall call;
  dr_device cpu;
  dr_device_init(&cpu);
  ASSERT_EQ(dr_device_get(0, &cpu), DR_SUCCESS) << dr_last_error();
  dr_options on_cpu;
  dr_options_init(&on_cpu);
  on_cpu.device = &cpu;
  for (int32_t i = 0; i < dr_backend_count(); ++i) {
    const std::string name = dr_backend_name(i);
    const dr_status status = dr_backend_check(i, &call.problem, &on_cpu);
    if (name == "reference" || name == "cpu") {
      EXPECT_EQ(status, DR_SUCCESS) << dr_last_error();
      // Also without options. On a machine with a GPU, a GPU backend may then serve the problem.
      EXPECT_EQ(dr_backend_check(i, &call.problem, nullptr), DR_SUCCESS) << dr_last_error();
    } else {
      expect_failure(status, DR_UNSUPPORTED, name, {"expected", "found"});
    }
  }
}

TEST(Backends, BadInput) {
  SmallCall call;
  expect_failure(dr_backend_check(-1, &call.problem, nullptr), DR_INVALID, "index", {"expected 0 to ", "found -1"});
  expect_failure(dr_backend_check(dr_backend_count(), &call.problem, nullptr), DR_INVALID, "index", {"expected 0 to "});
  expect_failure(dr_backend_check(0, nullptr, nullptr), DR_INVALID, "problem", {"expected a pointer", "found NULL"});
  dr_options options;
  dr_options_init(&options);
  options.threads = -1;
  expect_failure(dr_backend_check(0, &call.problem, &options), DR_INVALID, "options.threads", {"expected", "found -1"});
  call.problem.dk = 0;
  expect_failure(dr_backend_check(0, &call.problem, nullptr), DR_INVALID, "problem.dk",
                 {"expected 1 to 256", "found 0"});
}

TEST(InstructionSets, AreNamed) {
  ASSERT_GE(dr_isa_count(), 1);
  for (int32_t i = 0; i < dr_isa_count(); ++i) EXPECT_STRNE(dr_isa_name(i), "");
  EXPECT_EQ(dr_isa_name(-1), nullptr);
  EXPECT_EQ(dr_isa_name(dr_isa_count()), nullptr);
}

}  // namespace
}  // namespace contract
