#include "check/memory.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace deltarelay::check {
namespace {

constexpr int64_t kGuardBytes = 512;

void fill(std::byte* data, int64_t bytes, uint16_t pattern) {
  for (int64_t i = 0; i + 1 < bytes; i += 2) std::memcpy(data + i, &pattern, 2);
  if (bytes % 2 != 0) std::memcpy(data + bytes - 1, &pattern, 1);
}

bool holds(const std::byte* data, int64_t bytes, uint16_t pattern) {
  for (int64_t i = 0; i + 1 < bytes; i += 2) {
    uint16_t found = 0;
    std::memcpy(&found, data + i, 2);
    if (found != pattern) return false;
  }
  return true;
}

}  // namespace

void GuardedBuffer::Free::operator()(std::byte* memory) const { std::free(memory); }

GuardedBuffer::GuardedBuffer(int64_t bytes, int64_t alignment) : bytes_(bytes) {
  // Twice the alignment for the block, once for the offset in it: the start is then an odd multiple.
  const int64_t lead = (kGuardBytes + 2 * alignment - 1) / (2 * alignment) * (2 * alignment) + alignment;
  const int64_t total = (lead + bytes + kGuardBytes + 2 * alignment - 1) / (2 * alignment) * (2 * alignment);
  const auto block = static_cast<size_t>(alignment * 2 < 16 ? 16 : alignment * 2);
  memory_.reset(
      static_cast<std::byte*>(std::aligned_alloc(block, (static_cast<size_t>(total) + block - 1) / block * block)));
  if (memory_ == nullptr) throw std::bad_alloc();
  data_ = memory_.get() + lead;
  write_canaries();
  poison();
}

void GuardedBuffer::write_canaries() {
  fill(data_ - kGuardBytes, kGuardBytes, kCanary);
  fill(data_ + bytes_, kGuardBytes, kCanary);
}

void GuardedBuffer::poison() {
  if (bytes_ > 0) std::memset(data_, 0xff, static_cast<size_t>(bytes_));
}

bool GuardedBuffer::intact() const {
  return data_ == nullptr ||
         (holds(data_ - kGuardBytes, kGuardBytes, kCanary) && holds(data_ + bytes_, kGuardBytes, kCanary));
}

bool is_poison(const std::byte* data, int64_t bytes) { return holds(data, bytes, kPoison); }

}  // namespace deltarelay::check
