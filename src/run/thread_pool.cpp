#include "run/thread_pool.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/backend.h"

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

// A call's outstanding workers; lives on the caller's stack until all are done.
struct Job {
  Executor::Body body;
  void* context;
  int32_t next;  // worker number to hand out; guarded by the pool's mutex
  int32_t workers;
  std::atomic<int32_t> running;  // handed out and not yet done; changed under the mutex
};

class Pool {
 public:
  void run(int32_t workers, Executor::Body body, void* context) {
    Job job{body, context, 1, workers, {0}};
    {
      std::lock_guard<std::mutex> lock(mutex_);
      grow(workers - 1);
      jobs_.push_back(&job);
      posted_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    body(context, 0);
    // Workers nobody took up yet are run here; then wait for those in flight.
    std::unique_lock<std::mutex> lock(mutex_);
    while (job.next < job.workers) {
      const int32_t worker = job.next++;
      lock.unlock();
      body(context, worker);
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
    while (!stopped_ && static_cast<int32_t>(threads_.size()) < threads) {
      try {
        threads_.emplace_back([this] { serve(); });
      } catch (const std::system_error&) {
        return;  // no more threads to be had: the caller does their share
      }
    }
  }

  void remove(Job* job) {
    for (size_t i = 0; i < jobs_.size(); ++i) {
      if (jobs_[i] != job) continue;
      jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    }
  }

  void serve() {
    cpu_run_anywhere();
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stopped_) {
      Job* job = nullptr;
      for (Job* candidate : jobs_)
        if (candidate->next < candidate->workers) {
          job = candidate;
          break;
        }
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
      job->body(job->context, worker);
      lock.lock();
      if (job->running.fetch_sub(1, std::memory_order_release) == 1) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::vector<Job*> jobs_;
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

// nullptr: the library is being unloaded.
Pool* enter_pool() {
  std::lock_guard<std::mutex> lock(g_mutex);
  if (g_unloading) return nullptr;
  if (g_pool == nullptr) {
    g_pool = std::make_unique<Pool>().release();
    static const int registered = pthread_atfork([] { g_mutex.lock(); }, [] { g_mutex.unlock(); }, forsake_in_child);
    (void)registered;
  }
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
  if (const std::unique_ptr<Pool, LeavePool> pool{enter_pool()}) {
    pool->run(workers, body, context);
    return;
  }
  for (int32_t worker = 0; worker < workers; ++worker) body(context, worker);
}

void CallerExecutor::run(int32_t workers, Body body, void* context) {
  struct Call {
    Body body;
    void* context;
  } call{body, context};
  parallel_for_(
      pool_, workers,
      [](void* c, int64_t worker) {
        const auto& forward = *static_cast<const Call*>(c);
        forward.body(forward.context, static_cast<int32_t>(worker));
      },
      &call);
}

}  // namespace deltarelay
