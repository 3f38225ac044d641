#include "check/parallel.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <vector>

namespace deltarelay::check {

void in_parallel(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body) {
  const auto cores = static_cast<int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  const int64_t workers = std::clamp<int64_t>(count / grain, 1, cores);
  std::vector<std::thread> threads;
  for (int64_t w = 1; w < workers; ++w) {
    const int64_t begin = count * w / workers, end = count * (w + 1) / workers;
    try {
      threads.emplace_back(body, begin, end);
    } catch (const std::system_error&) {  // the system gives no further thread
      body(begin, end);
    }
  }
  body(0, count / workers);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace deltarelay::check
