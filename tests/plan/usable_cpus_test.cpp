// How many CPUs the process may use: whichever thread asks, and however its cgroups limit it.
#include "kernels/cpu/usable_cpus.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "plan/plan.h"
#include "plan_cases.h"

namespace deltarelay::cpu {
namespace {

// A machine's files, as far as they are looked at.
class Root {
 public:
  Root() : path_(::testing::TempDir() + "usable_cpus_test") { std::filesystem::remove_all(path_); }
  ~Root() { std::filesystem::remove_all(path_); }
  Root(const Root&) = delete;
  Root& operator=(const Root&) = delete;

  Root& file(const std::string& name, const std::string& text) {
    const std::filesystem::path whole = path_ + name;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
    return *this;
  }
  int32_t quota() const { return quota_cpus(path_); }

 private:
  std::string path_;
};

constexpr const char* kUnified =
    "24 30 0:22 / /proc rw,nosuid - proc proc rw\n"
    "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr const char* kVersion1 =
    "33 24 0:29 / /sys/fs/cgroup/cpuset rw shared:15 - cgroup cgroup rw,cpuset\n"
    "36 24 0:31 / /sys/fs/cgroup/cpu,cpuacct rw shared:17 - cgroup cgroup rw,cpu,cpuacct\n";

TEST(Quota, WithoutCgroupsThereIsNone) { EXPECT_EQ(Root().quota(), 0); }

TEST(Quota, UnifiedIsRoundedUp) {
  Root root;
  root.file("/proc/self/mountinfo", kUnified).file("/proc/self/cgroup", "0::/\n");
  EXPECT_EQ(root.quota(), 0);
  const struct {
    const char* text;
    int32_t cpus;
  } rows[] = {{"max 100000\n", 0},  {"100000 100000\n", 1}, {"150000 100000\n", 2},
              {"5000 100000\n", 1}, {"800000 100000\n", 8}, {"800001 100000\n", 9},
              {"nonsense\n", 0},    {"100000 0\n", 0},      {"9000000000000000000 1\n", 2147483647}};
  for (const auto& [text, cpus] : rows) EXPECT_EQ(root.file("/sys/fs/cgroup/cpu.max", text).quota(), cpus) << text;
}

TEST(Quota, TheLeastOfAllGroupsAboveCounts) {
  Root root;
  root.file("/proc/self/mountinfo", kUnified).file("/proc/self/cgroup", "0::/pods/engine/worker\n");
  root.file("/sys/fs/cgroup/pods/engine/worker/cpu.max", "max 100000\n");
  EXPECT_EQ(root.quota(), 0);
  EXPECT_EQ(root.file("/sys/fs/cgroup/pods/cpu.max", "600000 100000\n").quota(), 6);
  EXPECT_EQ(root.file("/sys/fs/cgroup/pods/engine/cpu.max", "250000 100000\n").quota(), 3);
  EXPECT_EQ(root.file("/sys/fs/cgroup/pods/engine/worker/cpu.max", "400000 100000\n").quota(), 3);
  EXPECT_EQ(root.file("/sys/fs/cgroup/other/cpu.max", "100000 100000\n").quota(), 3);
}

TEST(Quota, Version1) {
  Root root;
  root.file("/proc/self/mountinfo", kVersion1);
  root.file("/proc/self/cgroup", "9:cpuset:/\n4:cpu,cpuacct:/user/me\n1:name=systemd:/elsewhere\n");
  const std::string folder = "/sys/fs/cgroup/cpu,cpuacct/user/me/";
  root.file(folder + "cpu.cfs_period_us", "50000\n").file(folder + "cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(root.quota(), 0);
  EXPECT_EQ(root.file(folder + "cpu.cfs_quota_us", "175000\n").quota(), 4);
}

// Without a namespace of its own a container sees its group's path, but its group is what is mounted.
TEST(Quota, AContainerSeesItsGroupAtTheMount) {
  Root root;
  root.file("/proc/self/mountinfo", "36 24 0:31 /docker/f00 /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n");
  root.file("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n").file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n");
  EXPECT_EQ(root.file("/proc/self/cgroup", "4:cpu:/docker/f00\n").quota(), 2);
  EXPECT_EQ(root.file("/proc/self/cgroup", "4:cpu:/elsewhere\n").quota(), 2);
  root.file("/sys/fs/cgroup/cpu/inner/cpu.cfs_period_us", "100000\n");
  root.file("/sys/fs/cgroup/cpu/inner/cpu.cfs_quota_us", "100000\n");
  EXPECT_EQ(root.file("/proc/self/cgroup", "4:cpu:/docker/f00/inner\n").quota(), 1);
}

// The affinity of a thread while this lives.
class Affinity {
 public:
  explicit Affinity(int32_t cpus) {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t fewer;
    CPU_ZERO(&fewer);
    for (int32_t cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&fewer) < cpus; ++cpu)
      if (CPU_ISSET(cpu, &before_)) CPU_SET(cpu, &fewer);
    sched_setaffinity(0, sizeof fewer, &fewer);
  }
  ~Affinity() { sched_setaffinity(0, sizeof before_, &before_); }
  Affinity(const Affinity&) = delete;
  Affinity& operator=(const Affinity&) = delete;

 private:
  cpu_set_t before_;
};

struct Facts {
  int32_t units, threads;
  int64_t grain;
};

Facts facts_now() {
  dr_options request{};
  request.size = sizeof request;
  request.invariant = 1;
  const Problem problem = test::problem_of(Rule::kKda, {100000}, 1);
  Options options = validate_options(&request, problem);
  const int32_t threads = options.threads;
  const auto plan = make_plan(problem, std::move(options));
  return {device_at(0).units, threads, plan->grain};
}

TEST(UsableCpus, APinnedThreadSeesTheProcess) {
  const Facts here = facts_now();
  if (here.units < 2) GTEST_SKIP() << "needs two CPUs";
  Facts pinned{};
  std::thread([&] {
    const Affinity one(1);
    pinned = facts_now();
  }).join();
  EXPECT_EQ(pinned.units, here.units);
  EXPECT_EQ(pinned.threads, here.units);
  EXPECT_EQ(pinned.grain, here.grain);
}

TEST(UsableCpus, TheAffinityOfTheProcessIsAskedAfresh) {
  const Facts before = facts_now();
  if (before.units < 2) GTEST_SKIP() << "needs two CPUs";
  {
    const Affinity one(1);  // of the main thread
    const Facts fewer = facts_now();
    EXPECT_EQ(fewer.units, 1);
    EXPECT_EQ(fewer.threads, 1);
  }
  EXPECT_EQ(facts_now().units, before.units);
}

}  // namespace
}  // namespace deltarelay::cpu
