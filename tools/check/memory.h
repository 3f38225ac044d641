// Memory that detects stray accesses: canaries on both sides of every buffer, and fill patterns that are NaN in every
// floating type. So a read outside shows in the results, and a write outside shows in the canaries.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace deltarelay::check {

constexpr uint16_t kPoison = 0xffff;  // NaN in fp32, bf16 and fp16
constexpr uint16_t kCanary = 0xffa5;  // NaN in all three too, and different from poison

constexpr int64_t kGuardBytes = 512;  // on each side

// Alignment of tensors. Checks use the library's default promise and no more. Timings use what GPU allocators
// guarantee: on an H200 rows that start inside a 32-byte sector cost 2 to 11 %.
constexpr int64_t kLeastAlignment = 16, kAllocatorAlignment = 256;

// Position of a buffer in its block: aligned to `alignment` and no more, with a guard on each side.
struct GuardLayout {
  int64_t lead;   // from the start of the block to the data
  int64_t total;  // bytes of the block, a multiple of block_alignment
  int64_t block_alignment;
};
GuardLayout guard_layout(int64_t bytes, int64_t alignment);

class GuardedBuffer {
 public:
  GuardedBuffer() = default;
  // `bytes` of poison, aligned to `alignment` and no more.
  GuardedBuffer(int64_t bytes, int64_t alignment);

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  int64_t alignment() const { return alignment_; }
  bool empty() const { return bytes_ == 0; }

  void poison();
  bool intact() const;  // canaries

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  void write_canaries();

  std::unique_ptr<std::byte, Free> memory_;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t alignment_ = 1;
};

// The contents of a guard.
std::vector<std::byte> guard_bytes();

// Whether `bytes` (even) from `data` on are still poison.
bool is_poison(const std::byte* data, int64_t bytes);

}  // namespace deltarelay::check
