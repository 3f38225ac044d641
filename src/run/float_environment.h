// How the library's arithmetic rounds: to nearest, subnormals kept, no traps, whatever the thread came with.
#pragma once
#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#elif !defined(__aarch64__)
#include <cfenv>
#endif

namespace deltarelay {

// While an object lives, its thread has the environment in which programs start. Then the thread gets its own back,
// with the exception flags that it had: a caller's rounding mode changes no bit of a result, and its traps do not fire.
// Registers are written only where they differ, which is rare: reading them takes some 5 ns.
class FloatEnvironment {
 public:
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

#if defined(__x86_64__)
  FloatEnvironment() : sse_(_mm_getcsr()), x87_(read_x87()) {
    if ((sse_ & ~kFlags) != kSse) _mm_setcsr(kSse);
    if (x87_ != kX87) write_x87(kX87);
  }
  ~FloatEnvironment() {
    if (_mm_getcsr() != sse_) _mm_setcsr(sse_);
    if (x87_ != kX87) write_x87(x87_);
  }

 private:
  static constexpr uint32_t kSse = 0x1f80, kFlags = 0x3f;
  static constexpr uint16_t kX87 = 0x037f;
  static uint16_t read_x87() {
    uint16_t word;
    asm volatile("fnstcw %0" : "=m"(word));
    return word;
  }
  static void write_x87(uint16_t word) { asm volatile("fldcw %0" : : "m"(word)); }

  uint32_t sse_;  // all arithmetic of the library
  uint16_t x87_;  // printf and fegetround of the C library ask this one how to round
#elif defined(__aarch64__)
  FloatEnvironment() {
    asm volatile("mrs %0, fpcr" : "=r"(control_));
    asm volatile("mrs %0, fpsr" : "=r"(flags_));
    if (control_ != 0) asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
  }
  ~FloatEnvironment() {
    if (control_ != 0) asm volatile("msr fpcr, %0" : : "r"(control_));
    asm volatile("msr fpsr, %0" : : "r"(flags_));
  }

 private:
  uint64_t control_, flags_;
#else
  FloatEnvironment() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~FloatEnvironment() { std::fesetenv(&before_); }

 private:
  std::fenv_t before_;
#endif
};

}  // namespace deltarelay
