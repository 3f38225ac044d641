// Memory that notices: canaries on both sides of every buffer, and fillings that are NaN in every floating type, so that
// a read outside turns up in the results and a write outside turns up here.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace deltarelay::check {

constexpr uint16_t kPoison = 0xffff;  // NaN in fp32, bf16 and fp16
constexpr uint16_t kCanary = 0xffa5;  // NaN in all three too, and told apart from poison

constexpr int64_t kGuardBytes = 512;  // on each side

// Of tensors: what the library asks for when nothing is promised, so that it is checked with no more; and what allocators of GPU memory give at
// least, for timings. On an H200 rows that begin in the middle of a 32-byte sector cost 2 to 11 %.
constexpr int64_t kLeastAlignment = 16, kAllocatorAlignment = 256;

// Where a buffer lies in its block: aligned to `alignment` and to no more than that, with a guard before and behind.
struct GuardLayout {
  int64_t lead;   // from the start of the block to the data
  int64_t total;  // bytes of the block, a multiple of block_alignment
  int64_t block_alignment;
};
GuardLayout guard_layout(int64_t bytes, int64_t alignment);

class GuardedBuffer {
 public:
  GuardedBuffer() = default;
  // `bytes` of poison, aligned to `alignment` and to no more than that.
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

// What a guard holds, before and after a run.
std::vector<std::byte> guard_bytes();

// Whether `bytes` (even) from `data` on are still poison.
bool is_poison(const std::byte* data, int64_t bytes);

}  // namespace deltarelay::check
