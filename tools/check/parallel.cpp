#include "check/parallel.h"

#include <algorithm>
#include <thread>
#include <vector>

namespace deltarelay::check {

void in_parallel(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body) {
  const auto cores = static_cast<int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  const int64_t workers = std::clamp<int64_t>(count / grain, 1, cores);
  std::vector<std::thread> threads;
  for (int64_t w = 1; w < workers; ++w) threads.emplace_back(body, count * w / workers, count * (w + 1) / workers);
  body(0, count / workers);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace deltarelay::check
