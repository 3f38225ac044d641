#include "launches/kernel_images.h"

#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace deltarelay::launches {
namespace {

template <class T>
T read(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// The structure that nvcc's text hands over, and what it points to: a header, then images, each with a header.
struct Wrapper {
  uint32_t magic, version;
  const uint8_t* data;
};
constexpr uint32_t kWrapperMagic = 0x466243b1, kBinaryMagic = 0xba55ed50;

// Records of .nv.info.<kernel>, as in the comments of `cuobjdump -elf`.
constexpr uint8_t kParameterInfo = 0x17, kMostThreads = 0x05;
constexpr uint8_t kHasPayload = 0x04;  // format with a length; the others have two bytes

// Bytes of a block's shared memory that the system keeps. Images of CUDA 13 count them; the limits of a GPU do not.
constexpr int kReserved = 1024;

void read_info(const uint8_t* at, const uint8_t* end, KernelFacts& facts) {
  while (at + 4 <= end) {
    const uint8_t format = at[0], attribute = at[1];
    const auto bytes = read<uint16_t>(at + 2);
    at += 4;
    if (format != kHasPayload) continue;
    if (attribute == kParameterInfo) {  // u32 index, u16 number, u16 offset, u32 with the size above bit 18
      const auto number = read<uint16_t>(at + 4);
      if (facts.parameter_bytes.size() <= number) facts.parameter_bytes.resize(size_t{number} + 1);
      facts.parameter_bytes[number] = read<uint32_t>(at + 8) >> 18;
    } else if (attribute == kMostThreads) {
      facts.most_threads = static_cast<int>(read<uint32_t>(at) * read<uint32_t>(at + 4) * read<uint32_t>(at + 8));
    }
    at += bytes;
  }
}

void read_image(const uint8_t* image, std::map<std::string, KernelFacts>& kernels) {
  const auto header = read<Elf64_Ehdr>(image);
  auto section = [&](size_t i) { return read<Elf64_Shdr>(image + header.e_shoff + i * header.e_shentsize); };
  const uint8_t* const names = image + section(header.e_shstrndx).sh_offset;
  constexpr std::string_view kInfo = ".nv.info.", kShared = ".nv.shared.";
  std::map<std::string, KernelFacts> found;  // functions too
  for (size_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr one = section(i);
    const std::string_view name(reinterpret_cast<const char*>(names + one.sh_name));
    const uint8_t* const at = image + one.sh_offset;
    if (name.starts_with(kInfo)) read_info(at, at + one.sh_size, found[std::string(name.substr(kInfo.size()))]);
    if (name.starts_with(kShared))
      found[std::string(name.substr(kShared.size()))].static_shared_bytes =
          std::max(0, static_cast<int>(one.sh_size) - kReserved);
  }
  for (auto& [name, facts] : found)
    if (!facts.parameter_bytes.empty()) kernels[name] = facts;
}

}  // namespace

std::map<std::string, KernelFacts> kernels_in(const void* binary) {
  std::map<std::string, KernelFacts> kernels;
  const auto wrapper = read<Wrapper>(static_cast<const uint8_t*>(binary));
  if (wrapper.magic != kWrapperMagic || read<uint32_t>(wrapper.data) != kBinaryMagic) return kernels;
  const uint8_t* image = wrapper.data + read<uint16_t>(wrapper.data + 6);
  const uint8_t* const end = image + read<uint64_t>(wrapper.data + 8);
  while (image < end) {
    const uint8_t* const content = image + read<uint32_t>(image + 4);
    if (std::memcmp(content, ELFMAG, SELFMAG) == 0) read_image(content, kernels);
    image = content + read<uint64_t>(image + 8);
  }
  return kernels;
}

}  // namespace deltarelay::launches
