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

class GuardedBuffer {
 public:
  GuardedBuffer() = default;
  // `bytes` of poison, aligned to `alignment` and to no more than that.
  GuardedBuffer(int64_t bytes, int64_t alignment);

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
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
};

// Whether `bytes` (even) from `data` on are still poison.
bool is_poison(const std::byte* data, int64_t bytes);

}  // namespace deltarelay::check
