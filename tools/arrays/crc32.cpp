// The checksum of zip files, eight bytes at a time.
#include <array>

#include "arrays/arrays.h"

namespace deltarelay::arrays {
namespace {

using Tables = std::array<std::array<uint32_t, 256>, 8>;

// tables[k][b]: effect of byte b on the checksum if k more bytes follow.
constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0xedb88320u : 0u);
    tables[0][byte] = value;
  }
  for (size_t k = 1; k < tables.size(); ++k)
    for (size_t byte = 0; byte < 256; ++byte)
      tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 0xff];
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

uint32_t crc32(std::span<const std::byte> data) {
  uint32_t sum = 0xffffffffu;
  size_t i = 0;
  for (; i + 8 <= data.size(); i += 8) {
    const uint64_t word = number_at<uint64_t>(data, i) ^ sum;
    sum = 0;
    for (size_t k = 0; k < 8; ++k) sum ^= kTables[7 - k][(word >> (8 * k)) & 0xff];
  }
  for (; i < data.size(); ++i) sum = (sum >> 8) ^ kTables[0][(sum ^ static_cast<uint32_t>(data[i])) & 0xff];
  return ~sum;
}

}  // namespace deltarelay::arrays
