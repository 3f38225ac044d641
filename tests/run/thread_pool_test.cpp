// The pool behind dr_execute: every worker runs once, many threads may call at once, and a forked child gets a new
// pool.
#include "run/thread_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <csignal>
#include <functional>
#include <stdexcept>
#include <string>
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

// Runs `body` on worker 0, the caller, and on more threads than earlier tests have created, each on one of its own.
// Each use needs more of them.
void on_new_threads(const std::function<void(int32_t worker)>& body) {
  static int32_t more = 40;
  more += 4;
  struct Call {
    const std::function<void(int32_t)>& body;
    int32_t workers;
    std::atomic<int32_t> started{0};
  } call{body, more, {}};
  PoolExecutor executor;
  executor.run(
      more,
      [](void* context, int32_t worker) {
        auto& c = *static_cast<Call*>(context);
        c.started.fetch_add(1);
        while (c.started.load() < c.workers) std::this_thread::yield();
        c.body(worker);
      },
      &call);
}

TEST(ThreadPool, ThreadsHaveANameAndLeaveSignalsToTheCaller) {
  std::atomic<int32_t> seen{0}, named{0}, open{0}, faults_blocked{0};
  on_new_threads([&](int32_t worker) {
    if (worker == 0) return;
    ++seen;
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof name);
    named += std::string(name) == "deltarelay" ? 1 : 0;
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGALRM, SIGCHLD, SIGUSR1, SIGPROF, SIGRTMIN})
      open += sigismember(&blocked, signal) == 1 ? 0 : 1;
    for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT})
      faults_blocked += sigismember(&blocked, signal);
  });
  EXPECT_GT(seen, 0);
  EXPECT_EQ(named, seen);
  EXPECT_EQ(open, 0) << "signals that a thread of the pool may be interrupted by";
  EXPECT_EQ(faults_blocked, 0) << "a handler of faults must see those of the pool's threads";
  sigset_t own;
  pthread_sigmask(SIG_BLOCK, nullptr, &own);
  EXPECT_EQ(sigismember(&own, SIGINT), 0) << "the caller's signals are as they were";
}

// Threads outlive the call that made them, so what that caller's thread was set to must not stay.
TEST(ThreadPool, ThreadsRoundToNearestWhoeverMadeThem) {
  std::atomic<int32_t> seen{0}, nearest{0};
  std::thread([&] {
    std::fesetround(FE_TOWARDZERO);
    on_new_threads([&](int32_t worker) {
      if (worker == 0) return;
      ++seen;
      nearest += std::fegetround() == FE_TONEAREST ? 1 : 0;
    });
  }).join();
  EXPECT_GT(seen, 0);
  EXPECT_EQ(nearest, seen);
}

// What workers use lies on the caller's stack, which unwinds: none may be running then. Nor may one end the process.
TEST(ThreadPool, AnExceptionReachesTheCallerWhenAllWorkersAreDone) {
  struct Call {
    int32_t throwing;
    std::atomic<int32_t> begun{0}, ended{0};
  };
  for (int32_t throwing = 0; throwing <= kWorkers; ++throwing) {  // the last: every worker throws
    for (int32_t i = 0; i < 50; ++i) {
      Call call{throwing, {}, {}};
      PoolExecutor executor;
      try {
        executor.run(
            kWorkers,
            [](void* context, int32_t worker) {
              auto& c = *static_cast<Call*>(context);
              c.begun.fetch_add(1);
              if (worker == 1) std::this_thread::sleep_for(std::chrono::microseconds(200));
              c.ended.fetch_add(1);
              if (worker == c.throwing || c.throwing == kWorkers) throw std::runtime_error("of a worker");
            },
            &call);
        ADD_FAILURE() << "no exception";
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "of a worker");
      }
      ASSERT_EQ(call.ended, kWorkers) << "worker " << throwing << " throws, call " << i;
    }
  }
  EXPECT_TRUE(runs_every_worker_once()) << "the pool is as good as before";
}

// The caller's loop may be C, which an exception must not pass through, and its threads may round as they like.
TEST(CallerExecutor, KeepsExceptionsOutOfTheCallersLoop) {
  struct Loop {
    int32_t left = 0;
    int mode = 0;
  } loop;
  CallerExecutor executor(
      [](void* p, int64_t count, dr_parallel_body body, void* context) {
        auto& own = *static_cast<Loop*>(p);
        std::fesetround(FE_TOWARDZERO);
        try {
          for (int64_t i = 0; i < count; ++i) body(context, i);
        } catch (...) {
          ++own.left;
        }
        own.mode = std::fegetround();
        std::fesetround(FE_TONEAREST);
      },
      &loop);
  int32_t nearest = 0;
  EXPECT_THROW(executor.run(
                   kWorkers,
                   [](void* context, int32_t worker) {
                     *static_cast<int32_t*>(context) += std::fegetround() == FE_TONEAREST ? 1 : 0;
                     if (worker == 2) throw std::runtime_error("of a worker");
                   },
                   &nearest),
               std::runtime_error);
  EXPECT_EQ(loop.left, 0);
  EXPECT_EQ(nearest, kWorkers);
  EXPECT_EQ(loop.mode, FE_TOWARDZERO) << "the mode of the caller's thread is its own again";
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
