// Decompression of deflate (RFC 1951), as np.savez_compressed writes it. Reads codes bit by bit: short code, but slow.
#include <algorithm>
#include <array>

#include "arrays/arrays.h"

namespace deltarelay::arrays {
namespace {

constexpr int kLongestCode = 15;

[[noreturn]] void damaged(const char* found) { fail("compressed data", "a stream of deflate", found); }

class Bits {
 public:
  explicit Bits(std::span<const std::byte> data) : data_(data) {}
  uint32_t take(int count) {
    while (held_ < count) {
      if (next_ == data_.size()) damaged("its end too early");
      bits_ |= static_cast<uint64_t>(data_[next_++]) << held_;
      held_ += 8;
    }
    const auto value = static_cast<uint32_t>(bits_ & ((uint64_t{1} << count) - 1));
    bits_ >>= count;
    held_ -= count;
    return value;
  }
  // Skips the rest of the current byte and takes whole bytes.
  std::span<const std::byte> take_bytes(size_t count) {
    next_ -= static_cast<size_t>(held_ / 8);
    bits_ = 0;
    held_ = 0;
    if (count > data_.size() - next_) damaged("its end too early");
    next_ += count;
    return data_.subspan(next_ - count, count);
  }

 private:
  std::span<const std::byte> data_;
  size_t next_ = 0;
  uint64_t bits_ = 0;
  int held_ = 0;
};

// A Huffman code. Symbols are in the order of their codes: those of one length are neighbours.
class Code {
 public:
  explicit Code(std::span<const uint8_t> lengths) {
    for (const uint8_t length : lengths) ++count_[length];
    count_[0] = 0;
    int left = 1;
    for (size_t length = 1; length <= kLongestCode; ++length) {
      left = 2 * left - count_[length];
      if (left < 0) damaged("more codes than there are");
    }
    std::array<uint16_t, kLongestCode + 2> begin{};
    for (size_t length = 1; length <= kLongestCode; ++length)
      begin[length + 1] = static_cast<uint16_t>(begin[length] + count_[length]);
    for (size_t symbol = 0; symbol < lengths.size(); ++symbol)
      if (lengths[symbol] != 0) symbols_[begin[lengths[symbol]]++] = static_cast<uint16_t>(symbol);
  }
  uint16_t take(Bits& bits) const {
    int code = 0;
    int first = 0;
    int index = 0;
    for (size_t length = 1; length <= kLongestCode; ++length) {
      code |= static_cast<int>(bits.take(1));
      const int count = count_[length];
      if (code - first < count) return symbols_[static_cast<size_t>(index + code - first)];
      index += count;
      first = 2 * (first + count);
      code *= 2;
    }
    damaged("a code that stands for nothing");
  }

 private:
  std::array<uint16_t, kLongestCode + 1> count_{};
  std::array<uint16_t, 288> symbols_{};
};

constexpr std::array<uint16_t, 29> kLengthBase = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                                  31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
constexpr std::array<uint8_t, 29> kLengthBits = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                                 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
constexpr std::array<uint16_t, 30> kDistanceBase = {1,    2,    3,    4,    5,    7,    9,    13,    17,    25,
                                                    33,   49,   65,   97,   129,  193,  257,  385,   513,   769,
                                                    1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
constexpr std::array<uint8_t, 30> kDistanceBits = {0, 0, 0, 0, 1, 1, 2, 2,  3,  3,  4,  4,  5,  5,  6,
                                                   6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13};

class Output {
 public:
  explicit Output(uint64_t size) : bytes_(size) {}
  void add(std::span<const std::byte> data) {
    room_for(data.size());
    std::copy(data.begin(), data.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(size_));
    size_ += data.size();
  }
  void add(std::byte byte) {
    room_for(1);
    bytes_[size_++] = byte;
  }
  void repeat(size_t distance, size_t count) {
    if (distance > size_) damaged("a reference to before its beginning");
    room_for(count);
    for (size_t i = 0; i < count; ++i, ++size_) bytes_[size_] = bytes_[size_ - distance];
  }
  std::vector<std::byte> finish() {
    if (size_ != bytes_.size()) damaged("fewer bytes than the archive says");
    return std::move(bytes_);
  }

 private:
  void room_for(size_t count) const {
    if (count > bytes_.size() - size_) damaged("more bytes than the archive says");
  }
  std::vector<std::byte> bytes_;
  size_t size_ = 0;
};

void inflate_coded(Bits& bits, Output& output, const Code& literals, const Code& distances) {
  for (;;) {
    const uint16_t symbol = literals.take(bits);
    if (symbol < 256) {
      output.add(static_cast<std::byte>(symbol));
      continue;
    }
    if (symbol == 256) return;
    const auto at = static_cast<size_t>(symbol - 257);
    if (at >= kLengthBase.size()) damaged("a length that there is not");
    const size_t length = kLengthBase[at] + bits.take(kLengthBits[at]);
    const size_t far = distances.take(bits);
    if (far >= kDistanceBase.size()) damaged("a distance that there is not");
    const size_t distance = kDistanceBase[far] + bits.take(kDistanceBits[far]);
    output.repeat(distance, length);
  }
}

void inflate_fixed(Bits& bits, Output& output) {
  std::array<uint8_t, 288> lengths{};
  std::fill(lengths.begin(), lengths.begin() + 144, uint8_t{8});
  std::fill(lengths.begin() + 144, lengths.begin() + 256, uint8_t{9});
  std::fill(lengths.begin() + 256, lengths.begin() + 280, uint8_t{7});
  std::fill(lengths.begin() + 280, lengths.end(), uint8_t{8});
  std::array<uint8_t, 30> distances{};
  distances.fill(5);
  inflate_coded(bits, output, Code(lengths), Code(distances));
}

void inflate_dynamic(Bits& bits, Output& output) {
  const size_t literals = bits.take(5) + 257;
  const size_t distances = bits.take(5) + 1;
  const size_t codes = bits.take(4) + 4;
  constexpr std::array<uint8_t, 19> kOrder = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
  if (literals > 286 || distances > 30) damaged("too many codes");
  std::array<uint8_t, 19> code_lengths{};
  for (size_t i = 0; i < codes; ++i) code_lengths[kOrder[i]] = static_cast<uint8_t>(bits.take(3));
  const Code lengths_code(code_lengths);
  std::array<uint8_t, 286 + 30> lengths{};
  for (size_t i = 0; i < literals + distances;) {
    const uint16_t symbol = lengths_code.take(bits);
    if (symbol < 16) {
      lengths[i++] = static_cast<uint8_t>(symbol);
      continue;
    }
    if (symbol == 16 && i == 0) damaged("a repetition of nothing");
    const uint8_t repeated = symbol == 16 ? lengths[i - 1] : uint8_t{0};
    const size_t count = symbol == 16 ? 3 + bits.take(2) : symbol == 17 ? 3 + bits.take(3) : 11 + bits.take(7);
    if (count > literals + distances - i) damaged("too many lengths");
    std::fill_n(lengths.begin() + static_cast<std::ptrdiff_t>(i), count, repeated);
    i += count;
  }
  const std::span<const uint8_t> all = lengths;
  inflate_coded(bits, output, Code(all.first(literals)), Code(all.subspan(literals, distances)));
}

}  // namespace

std::vector<std::byte> inflate(std::span<const std::byte> stream, uint64_t size) {
  // Two bits give at most 258 bytes. A larger size is false, so refuse it before allocating.
  if (size / 1032 > stream.size()) damaged("more bytes than it can hold");
  Bits bits(stream);
  Output output(size);
  for (bool last = false; !last;) {
    last = bits.take(1) != 0;
    const uint32_t kind = bits.take(2);
    if (kind == 0) {
      const std::span<const std::byte> head = bits.take_bytes(4);
      const auto length = number_at<uint16_t>(head, 0);
      if (length != static_cast<uint16_t>(~number_at<uint16_t>(head, 2))) damaged("two lengths that differ");
      output.add(bits.take_bytes(length));
    } else if (kind == 1) {
      inflate_fixed(bits, output);
    } else if (kind == 2) {
      inflate_dynamic(bits, output);
    } else {
      damaged("a block of no kind");
    }
  }
  return output.finish();
}

}  // namespace deltarelay::arrays
