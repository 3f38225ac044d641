// The pool behind dr_execute: every worker runs once, many threads may call at once, and a forked child gets a new
// pool.
#include "run/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

namespace deltarelay {
namespace {

constexpr int32_t kWorkers = 5;

// Each worker writes its own number without synchronisation: the pool must make the writes visible before run returns.
bool runs_every_worker_once() {
  struct Call {
    std::array<int32_t, kWorkers> seen{};
    std::atomic<int32_t> bodies{0};
  } call;
  PoolExecutor executor;
  executor.run(
      kWorkers,
      [](void* context, int32_t worker) {
        auto& c = *static_cast<Call*>(context);
        c.seen[static_cast<size_t>(worker)] = worker + 1;
        c.bodies.fetch_add(1);
      },
      &call);
  for (int32_t worker = 0; worker < kWorkers; ++worker)
    if (call.seen[static_cast<size_t>(worker)] != worker + 1) return false;
  return call.bodies == kWorkers;
}

TEST(ThreadPool, RunsEveryWorkerOnce) {
  for (int32_t i = 0; i < 500; ++i) ASSERT_TRUE(runs_every_worker_once()) << "call " << i;
}

TEST(ThreadPool, SleepsBetweenCallsAndWakes) {
  for (int32_t i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // much longer than idle threads look for work
    ASSERT_TRUE(runs_every_worker_once());
  }
}

TEST(ThreadPool, ServesManyCallersAtOnce) {
  std::atomic<int32_t> wrong{0};
  std::vector<std::thread> callers;
  for (int32_t c = 0; c < 4; ++c)
    callers.emplace_back([&] {
      for (int32_t i = 0; i < 500; ++i) wrong += runs_every_worker_once() ? 0 : 1;
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST(ThreadPool, NestedCallsFinish) {
  std::atomic<int32_t> wrong{0};
  PoolExecutor executor;
  executor.run(
      3,
      [](void* context, int32_t) { *static_cast<std::atomic<int32_t>*>(context) += runs_every_worker_once() ? 0 : 1; },
      &wrong);
  EXPECT_EQ(wrong, 0);
}

// Threads of the pool serve all callers, so they must not stay on the core of the first caller.
TEST(ThreadPool, ThreadsRunWhereTheProcessMay) {
  cpu_set_t process;
  ASSERT_EQ(sched_getaffinity(getpid(), sizeof process, &process), 0);
  if (CPU_COUNT(&process) < 2) GTEST_SKIP() << "needs two CPUs";
  static constexpr int32_t kMore = kWorkers + 20;  // more threads than earlier tests have created
  struct Call {
    cpu_set_t process;
    std::array<std::atomic<bool>, kMore> elsewhere{};
    std::atomic<int32_t> started{0};
  } call{process, {}, {}};
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int32_t cpu = 0; CPU_COUNT(&one) == 0; ++cpu)
      if (CPU_ISSET(cpu, &process)) CPU_SET(cpu, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    PoolExecutor executor;
    executor.run(
        kMore,
        [](void* context, int32_t worker) {
          auto& c = *static_cast<Call*>(context);
          c.started.fetch_add(1);
          while (c.started.load() < kMore) std::this_thread::yield();  // so that each item has its own thread
          cpu_set_t own;
          sched_getaffinity(0, sizeof own, &own);
          c.elsewhere[static_cast<size_t>(worker)] = worker > 0 && !CPU_EQUAL(&own, &c.process);
        },
        &call);
  }).join();
  for (int32_t worker = 1; worker < kMore; ++worker)
    EXPECT_FALSE(call.elsewhere[static_cast<size_t>(worker)]) << worker;
}

TEST(ThreadPool, AForkedChildHasAPool) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer ends a forked child that starts threads";
#endif
  ASSERT_TRUE(runs_every_worker_once());  // the parent's threads exist now; the child will not have them
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(runs_every_worker_once() ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(CallerExecutor, HandsWorkersToTheCallersLoop) {
  struct Pool {
    int64_t asked = 0;
  } pool;
  CallerExecutor executor(
      [](void* p, int64_t count, dr_parallel_body body, void* context) {
        static_cast<Pool*>(p)->asked = count;
        for (int64_t i = count; i-- > 0;) body(context, i);  // any order, one thread
      },
      &pool);
  std::array<int32_t, kWorkers> seen{};
  executor.run(
      kWorkers,
      [](void* context, int32_t worker) {
        ++(*static_cast<std::array<int32_t, kWorkers>*>(context))[static_cast<size_t>(worker)];
      },
      &seen);
  EXPECT_EQ(pool.asked, kWorkers);
  for (const int32_t times : seen) EXPECT_EQ(times, 1);
}

}  // namespace
}  // namespace deltarelay
