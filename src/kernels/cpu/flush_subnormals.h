// Subnormal numbers (below 2^-126 in fp32) as zero, while an object of this class lives.
#pragma once
#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace deltarelay::cpu {

// A transition that decays passes through them on its way to 0, and x86 takes 150 cycles for an operation that meets
// one: cut calls whose gates forget within a segment took 3.5 times as long. What they would add to a result is below
// 2^-100 of any state. The setting is the thread's, which may be the caller's, so it is put back.
class FlushSubnormals {
 public:
  FlushSubnormals() : before_(read()) { write(before_ | kFlush); }
  ~FlushSubnormals() { write(before_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
#if defined(__x86_64__)
  using Register = uint32_t;
  static constexpr Register kFlush = 0x8040;  // flush to zero, denormals are zero
  static Register read() { return _mm_getcsr(); }
  static void write(Register value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
  using Register = uint64_t;
  static constexpr Register kFlush = Register{1} << 24;  // FZ
  static Register read() {
    Register value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void write(Register value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#else
  using Register = uint32_t;
  static constexpr Register kFlush = 0;
  static Register read() { return 0; }
  static void write(Register) {}
#endif
  Register before_;
};

}  // namespace deltarelay::cpu
