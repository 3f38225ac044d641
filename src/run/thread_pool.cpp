#include "run/thread_pool.h"

#include <pthread.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace deltarelay {
namespace {

// A call's outstanding workers; lives on the caller's stack until all are done.
struct Job {
  Executor::Body body;
  void* context;
  int32_t next;  // worker number to hand out; guarded by the pool's mutex
  int32_t workers;
  int32_t running;  // handed out and not yet done
};

class Pool {
 public:
  void run(int32_t workers, Executor::Body body, void* context) {
    Job job{body, context, 1, workers, 0};
    {
      std::lock_guard<std::mutex> lock(mutex_);
      grow(workers - 1);
      jobs_.push_back(&job);
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
    done_.wait(lock, [&] { return job.running == 0; });
  }

 private:
  void grow(int32_t threads) {
    while (static_cast<int32_t>(threads_.size()) < threads) {
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

  [[noreturn]] void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      Job* job = nullptr;
      for (Job* candidate : jobs_)
        if (candidate->next < candidate->workers) {
          job = candidate;
          break;
        }
      if (job == nullptr) {
        wake_.wait(lock);
        continue;
      }
      const int32_t worker = job->next++;
      ++job->running;
      lock.unlock();
      job->body(job->context, worker);
      lock.lock();
      if (--job->running == 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::vector<Job*> jobs_;
  std::vector<std::thread> threads_;
};

// Never destroyed: its threads sleep until the process ends, and a forked child, which has none of them, starts a new one.
Pool* g_pool = nullptr;
std::mutex g_mutex;

Pool& pool() {
  std::lock_guard<std::mutex> lock(g_mutex);
  if (g_pool == nullptr) {
    g_pool = std::make_unique<Pool>().release();
    static const int registered = pthread_atfork([] { g_mutex.lock(); }, [] { g_mutex.unlock(); },
                                                 [] {
                                                   g_pool = nullptr;
                                                   g_mutex.unlock();
                                                 });
    (void)registered;
  }
  return *g_pool;
}

}  // namespace

void PoolExecutor::run(int32_t workers, Body body, void* context) {
  if (workers <= 1) {
    body(context, 0);
    return;
  }
  pool().run(workers, body, context);
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
