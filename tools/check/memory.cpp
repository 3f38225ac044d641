#include "check/memory.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace deltarelay::check {
namespace {

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

GuardLayout guard_layout(int64_t bytes, int64_t alignment) {
  // Align the block to twice the alignment and add one alignment, so that the start is an odd multiple.
  const int64_t lead = (kGuardBytes + 2 * alignment - 1) / (2 * alignment) * (2 * alignment) + alignment;
  const int64_t block = alignment * 2 < 16 ? 16 : alignment * 2;
  return {lead, (lead + bytes + kGuardBytes + block - 1) / block * block, block};
}

std::vector<std::byte> guard_bytes() {
  std::vector<std::byte> guard(static_cast<size_t>(kGuardBytes));
  fill(guard.data(), kGuardBytes, kCanary);
  return guard;
}

GuardedBuffer::GuardedBuffer(int64_t bytes, int64_t alignment) : bytes_(bytes), alignment_(alignment) {
  const GuardLayout layout = guard_layout(bytes, alignment);
  memory_.reset(static_cast<std::byte*>(
      std::aligned_alloc(static_cast<size_t>(layout.block_alignment), static_cast<size_t>(layout.total))));
  if (memory_ == nullptr) throw std::bad_alloc();
  data_ = memory_.get() + layout.lead;
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
