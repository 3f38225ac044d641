// A caller's memory: exactly as many bytes as stated, with a check whether bytes beside it were touched.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

namespace fuzz {

// AddressSanitizer detects reads and writes beside a block. Without it, guard bytes detect writes.
#if defined(__has_feature)  // Clang; GCC defines __SANITIZE_ADDRESS__
#if __has_feature(address_sanitizer)
#define DR_FUZZ_ADDRESS_SANITIZER
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(DR_FUZZ_ADDRESS_SANITIZER)
inline constexpr size_t kGuardBytes = 0;
#else
inline constexpr size_t kGuardBytes = 256;
#endif

class Block {
 public:
  static constexpr size_t kAlignment = 256;
  static constexpr unsigned char kGuard = 0xa5;

  Block() = default;
  Block(size_t bytes, unsigned char fill)
      : bytes_(bytes),
        memory_(static_cast<unsigned char*>(
            ::operator new(bytes + 2 * kGuardBytes, static_cast<std::align_val_t>(kAlignment)))) {
    std::memset(memory_, kGuard, bytes + 2 * kGuardBytes);
    std::memset(data(), fill, bytes);
  }
  Block(Block&& other) noexcept { swap(other); }
  Block& operator=(Block&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Block() {
    if (memory_ != nullptr) ::operator delete(memory_, static_cast<std::align_val_t>(kAlignment));
  }

  unsigned char* data() const { return memory_ + kGuardBytes; }
  size_t size() const { return bytes_; }
  bool given() const { return memory_ != nullptr; }

  bool all(unsigned char byte) const {
    for (size_t i = 0; i < bytes_; ++i) {
      if (data()[i] != byte) return false;
    }
    return true;
  }
  bool guarded() const {
    for (size_t i = 0; memory_ != nullptr && i < kGuardBytes; ++i) {
      if (memory_[i] != kGuard || data()[bytes_ + i] != kGuard) return false;
    }
    return true;
  }
  uint64_t hash() const {  // FNV-1a
    uint64_t value = 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes_; ++i) value = (value ^ data()[i]) * 0x100000001b3u;
    return value;
  }

 private:
  void swap(Block& other) noexcept {
    const size_t bytes = bytes_;
    unsigned char* const memory = memory_;
    bytes_ = other.bytes_;
    memory_ = other.memory_;
    other.bytes_ = bytes;
    other.memory_ = memory;
  }

  size_t bytes_ = 0;
  unsigned char* memory_ = nullptr;
};

}  // namespace fuzz
