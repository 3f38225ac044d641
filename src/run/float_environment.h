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
// A pair of reads and writes takes some 30 cycles.
class FloatEnvironment {
 public:
  FloatEnvironment() : before_(read()) { write(kStart); }
  ~FloatEnvironment() { write(before_); }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
#if defined(__x86_64__)
  struct Register {
    uint32_t sse;  // all arithmetic of the library
    uint16_t x87;  // printf and fegetround of the C library ask this one how to round
  };
  static constexpr Register kStart{0x1f80, 0x037f};
  static uint16_t read_x87() {
    uint16_t word;
    asm volatile("fnstcw %0" : "=m"(word));
    return word;
  }
  static Register read() { return {_mm_getcsr(), read_x87()}; }
  static void write(Register value) {
    _mm_setcsr(value.sse);
    if (read_x87() != value.x87) asm volatile("fldcw %0" : : "m"(value.x87));
  }
#elif defined(__aarch64__)
  using Register = uint64_t;
  static constexpr Register kStart = 0;
  static Register read() {
    Register value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void write(Register value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#else
  using Register = std::fenv_t;
  static inline const Register kStart = *FE_DFL_ENV;
  static Register read() {
    Register value;
    std::fegetenv(&value);
    return value;
  }
  static void write(const Register& value) { std::fesetenv(&value); }
#endif
  Register before_;
};

}  // namespace deltarelay
