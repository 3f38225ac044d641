#include "run/thread_pool.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "run/float_environment.h"

namespace deltarelay {
namespace {

// How long a thread looks before it sleeps. The phases of a split plan follow each other at once, and waking a thread
// between them cost tens of microseconds (two segments on two threads: 1.0 % over unsplit without looking, 0.2 to 0.7 %
// with it).
constexpr std::chrono::microseconds kLook{50};

inline void pause() {
#if defined(__aarch64__)
  asm volatile("yield");
#elif defined(__x86_64__)
  asm volatile("pause");
#endif
}

// Looks for a while; returns early when `ready` holds.
template <class Ready>
void look_for(Ready ready) {
  const auto until = std::chrono::steady_clock::now() + kLook;
  while (!ready()) {
    for (int32_t i = 0; i < 32; ++i) pause();
    if (std::chrono::steady_clock::now() >= until) return;
  }
}

// The workers of a call, and the first exception that one of them threw. It reaches the caller when all are done: a
// worker must not unwind a thread that does not know it, nor the caller while others use what lies on its stack.
class Workers {
 public:
  Workers(Executor::Body body, void* context) : body_(body), context_(context) {}

  void run(int32_t worker) noexcept {
    try {
      body_(context_, worker);
    } catch (...) {
      if (!failed_.exchange(true)) failure_ = std::current_exception();
    }
  }
  void finish() const {
    if (failure_ != nullptr) std::rethrow_exception(failure_);
  }

 private:
  Executor::Body body_;
  void* context_;
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;
};

// A call's outstanding workers; lives on the caller's stack until all are done.
struct Job {
  Workers& call;
  int32_t workers;
  int32_t next = 1;                 // worker number to hand out; guarded by the pool's mutex
  std::atomic<int32_t> running{0};  // handed out and not yet done; changed under the mutex
  Job* later = nullptr;             // the pool's list: posting a job allocates nothing
};

// Blocks signals while an object lives: threads inherit what is blocked when they are made. A signal to the process is
// for a thread of the caller's. Signals of the thread itself stay: blocked ones would end the process without running
// the handler that reports the fault.
class BlockSignals {
 public:
  BlockSignals() {
    sigset_t signals;
    sigfillset(&signals);
    for (const int own : {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP}) sigdelset(&signals, own);
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
  }
  ~BlockSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockSignals(const BlockSignals&) = delete;
  BlockSignals& operator=(const BlockSignals&) = delete;

 private:
  sigset_t before_;
};

class Pool {
 public:
  // Allocates only for new threads. Without memory there are fewer of them.
  void run(int32_t workers, Workers& call) noexcept {
    Job job{call, workers};
    {
      std::lock_guard<std::mutex> lock(mutex_);
      grow(workers - 1);
      append(&job);
      posted_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    call.run(0);
    // Workers nobody took up yet are run here; then wait for those in flight.
    std::unique_lock<std::mutex> lock(mutex_);
    while (job.next < job.workers) {
      const int32_t worker = job.next++;
      lock.unlock();
      call.run(worker);
      lock.lock();
    }
    remove(&job);
    lock.unlock();
    look_for([&] { return job.running.load(std::memory_order_acquire) == 0; });
    lock.lock();  // whoever finished last has let go of the job by now
    done_.wait(lock, [&] { return job.running.load(std::memory_order_relaxed) == 0; });
  }

  // Ends and joins all threads, each after the worker it is running. Calls under way do the rest of their work
  // themselves.
  void stop() {
    std::vector<std::thread> threads;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopped_ = true;
      posted_.fetch_add(1, std::memory_order_release);
      threads.swap(threads_);
    }
    wake_.notify_all();
    for (std::thread& thread : threads) {
      if (thread.get_id() == std::this_thread::get_id()) {
        thread.detach();  // a handler of signals ends the process from here: it cannot wait for itself
      } else {
        thread.join();
      }
    }
  }

  // What the process knows of the pool; guarded by g_mutex.
  const pid_t owner = getpid();  // whose threads they are
  int64_t callers = 0;           // inside run
  Pool* next_forsaken = nullptr;

 private:
  void grow(int32_t threads) {
    if (stopped_ || static_cast<int32_t>(threads_.size()) >= threads) return;
    const BlockSignals for_new_threads;
    while (static_cast<int32_t>(threads_.size()) < threads) {
      try {
        threads_.emplace_back([this] { serve(); });
      } catch (const std::exception&) {
        return;  // no more threads, or no memory for them: the caller does their share
      }
    }
  }

  void append(Job* job) {
    Job** end = &jobs_;
    while (*end != nullptr) end = &(*end)->later;
    *end = job;
  }

  void remove(Job* job) {
    Job** link = &jobs_;
    while (*link != job) link = &(*link)->later;
    *link = job->later;
  }

  void serve() noexcept {
#if defined(__linux__)
    pthread_setname_np(pthread_self(), "deltarelay");
#endif
    cpu_run_anywhere();
    const FloatEnvironment not_that_of_whoever_made_the_thread;
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stopped_) {
      Job* job = jobs_;
      while (job != nullptr && job->next >= job->workers) job = job->later;
      if (job == nullptr) {
        const uint64_t seen = posted_.load(std::memory_order_relaxed);
        lock.unlock();
        look_for([&] { return posted_.load(std::memory_order_acquire) != seen; });
        lock.lock();
        wake_.wait(lock, [&] { return posted_.load(std::memory_order_relaxed) != seen; });
        continue;
      }
      const int32_t worker = job->next++;
      job->running.fetch_add(1, std::memory_order_relaxed);
      lock.unlock();
      job->call.run(worker);
      lock.lock();
      if (job->running.fetch_sub(1, std::memory_order_release) == 1) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  Job* jobs_ = nullptr;              // in the order in which they were posted
  std::atomic<uint64_t> posted_{0};  // jobs ever posted, and the stop
  std::vector<std::thread> threads_;
  bool stopped_ = false;
};

// Constant initialization and no destructors: calls may come before and after those of everything else.
std::mutex g_mutex;
Pool* g_pool = nullptr;  // of this process
// Pools nobody enters any more and nobody may free: of processes this one was forked from (their threads are not here,
// their locks may be held for ever), and the one that calls were still inside when this process ended.
Pool* g_forsaken = nullptr;
bool g_unloading = false;  // no more threads: a call does all its work itself

void forsake(Pool* pool) {
  pool->next_forsaken = g_forsaken;
  g_forsaken = pool;
}

void forsake_in_child() {  // of fork, which left g_mutex locked
  if (g_pool != nullptr) forsake(std::exchange(g_pool, nullptr));
  g_mutex.unlock();
}

bool g_fork_is_handled = false;

// nullptr: the library is being unloaded, or there is no memory for a pool.
Pool* enter_pool() {
  std::lock_guard<std::mutex> lock(g_mutex);
  if (g_unloading) return nullptr;
  if (!g_fork_is_handled) {
    if (pthread_atfork([] { g_mutex.lock(); }, [] { g_mutex.unlock(); }, forsake_in_child) != 0) return nullptr;
    g_fork_is_handled = true;
  }
  if (g_pool == nullptr) g_pool = new (std::nothrow) Pool();
  if (g_pool == nullptr) return nullptr;
  ++g_pool->callers;
  return g_pool;
}

struct LeavePool {
  void operator()(Pool* pool) const {
    std::lock_guard<std::mutex> lock(g_mutex);
    --pool->callers;
  }
};

// Threads must not outlive the code they run, so they are joined when the library goes: by dlclose, or when the process
// exits. At exit other threads may still be inside dr_execute: they finish on their own, and the pool stays for them.
struct Unloading {
  ~Unloading() {
    Pool* pool = nullptr;
    {
      std::lock_guard<std::mutex> lock(g_mutex);
      g_unloading = true;
      std::swap(pool, g_pool);
    }
    if (pool == nullptr || pool->owner != getpid())
      return;  // a process made without the handlers of fork has no threads
    pool->stop();
    std::unique_lock<std::mutex> lock(g_mutex);
    if (pool->callers != 0) {
      forsake(pool);
      return;
    }
    lock.unlock();
    delete pool;
  }
} g_unloading_guard;

}  // namespace

void PoolExecutor::run(int32_t workers, Body body, void* context) {
  if (workers <= 1) {
    body(context, 0);
    return;
  }
  Workers call(body, context);
  if (const std::unique_ptr<Pool, LeavePool> pool{enter_pool()}) {
    pool->run(workers, call);
  } else {
    for (int32_t worker = 0; worker < workers; ++worker) call.run(worker);
  }
  call.finish();
}

void CallerExecutor::run(int32_t workers, Body body, void* context) {
  Workers call(body, context);
  parallel_for_(
      pool_, workers,
      [](void* c, int64_t worker) {
        const FloatEnvironment not_that_of_the_callers_thread;
        static_cast<Workers*>(c)->run(static_cast<int32_t>(worker));
      },
      &call);
  call.finish();
}

}  // namespace deltarelay
