#include "deltarelay/fma_peak.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "deltarelay/fma_peak.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace deltarelay::command::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Independent chains: pipes times latency is 16 on cores with four FMA pipes (32 registers), 8 to 10 on x86 (two
// pipes), where AVX2 and older have only 16 registers.
constexpr size_t kChains = (HWY_TARGET & (HWY_AVX2 | HWY_SSE4 | HWY_SSSE3)) != 0 ? 12 : 24;

// Runs `rounds` rounds of kChains FMAs and adds the floating-point operations to *flops. The sum is overwritten, as in
// a matrix product (the only form of Arm's FMLA). The product is small, so sums stay finite and normal.
float run_fma(int64_t rounds, double* flops) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const V x = hn::Set(d, 1e-4f);
  const V y = hn::Set(d, 1e-3f);
  V a0 = hn::Iota(d, 1), a1 = hn::Iota(d, 2), a2 = hn::Iota(d, 3), a3 = hn::Iota(d, 4);
  V a4 = hn::Iota(d, 5), a5 = hn::Iota(d, 6), a6 = hn::Iota(d, 7), a7 = hn::Iota(d, 8);
  V a8 = hn::Iota(d, 9), a9 = hn::Iota(d, 10), a10 = hn::Iota(d, 11), a11 = hn::Iota(d, 12);
  V b0 = a0, b1 = a1, b2 = a2, b3 = a3, b4 = a4, b5 = a5, b6 = a6, b7 = a7, b8 = a8, b9 = a9, b10 = a10, b11 = a11;
  // The second half starts from other values. Otherwise the compiler may notice that it computes the same.
  const V shift = hn::Set(d, 0.5f);
  b0 = hn::Add(b0, shift), b1 = hn::Add(b1, shift), b2 = hn::Add(b2, shift), b3 = hn::Add(b3, shift);
  b4 = hn::Add(b4, shift), b5 = hn::Add(b5, shift), b6 = hn::Add(b6, shift), b7 = hn::Add(b7, shift);
  b8 = hn::Add(b8, shift), b9 = hn::Add(b9, shift), b10 = hn::Add(b10, shift), b11 = hn::Add(b11, shift);
  for (int64_t i = 0; i < rounds; ++i) {
    a0 = hn::MulAdd(x, y, a0), a1 = hn::MulAdd(x, y, a1), a2 = hn::MulAdd(x, y, a2);
    a3 = hn::MulAdd(x, y, a3), a4 = hn::MulAdd(x, y, a4), a5 = hn::MulAdd(x, y, a5);
    a6 = hn::MulAdd(x, y, a6), a7 = hn::MulAdd(x, y, a7), a8 = hn::MulAdd(x, y, a8);
    a9 = hn::MulAdd(x, y, a9), a10 = hn::MulAdd(x, y, a10), a11 = hn::MulAdd(x, y, a11);
    if constexpr (kChains == 24) {
      b0 = hn::MulAdd(x, y, b0), b1 = hn::MulAdd(x, y, b1), b2 = hn::MulAdd(x, y, b2);
      b3 = hn::MulAdd(x, y, b3), b4 = hn::MulAdd(x, y, b4), b5 = hn::MulAdd(x, y, b5);
      b6 = hn::MulAdd(x, y, b6), b7 = hn::MulAdd(x, y, b7), b8 = hn::MulAdd(x, y, b8);
      b9 = hn::MulAdd(x, y, b9), b10 = hn::MulAdd(x, y, b10), b11 = hn::MulAdd(x, y, b11);
    }
  }
  *flops += 2.0 * static_cast<double>(rounds) * static_cast<double>(kChains * hn::Lanes(d));
  V sum = hn::Add(hn::Add(hn::Add(a0, a1), hn::Add(a2, a3)), hn::Add(hn::Add(a4, a5), hn::Add(a6, a7)));
  sum = hn::Add(sum, hn::Add(hn::Add(a8, a9), hn::Add(a10, a11)));
  sum = hn::Add(sum, hn::Add(hn::Add(hn::Add(b0, b1), hn::Add(b2, b3)), hn::Add(hn::Add(b4, b5), hn::Add(b6, b7))));
  sum = hn::Add(sum, hn::Add(hn::Add(b8, b9), hn::Add(b10, b11)));
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace deltarelay::command::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltarelay::command {
HWY_EXPORT(run_fma);
HWY_EXPORT(target_name);

std::string fma_target() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

double measure_fma_gflops(int32_t threads, double seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kRounds = 20000;  // between two clock readings: a few hundred microseconds
  const auto run = HWY_DYNAMIC_DISPATCH(run_fma);
  const auto workers = static_cast<size_t>(std::max(1, threads));
  struct Share {
    double flops = 0;
    float sink = 0;
  };
  std::vector<Share> shares(workers);
  std::vector<double> rates(workers);
  std::atomic<size_t> ready{0};
  const auto work = [&](size_t index) {
    Share share;
    share.sink += run(kRounds, &share.flops);  // raises the clock frequency of the core
    share.flops = 0;
    ready.fetch_add(1);
    while (ready.load() < workers) std::this_thread::yield();
    const auto begin = Clock::now();
    double elapsed = 0;
    do {
      share.sink += run(kRounds, &share.flops);
      elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
    } while (elapsed < seconds);
    rates[index] = share.flops / elapsed * 1e-9;
    shares[index] = share;
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < workers; ++i) others.emplace_back(work, i);
  work(0);
  for (std::thread& other : others) other.join();
  double total = 0;
  for (const double rate : rates) total += rate;
  return total;
}

}  // namespace deltarelay::command
#endif  // HWY_ONCE
