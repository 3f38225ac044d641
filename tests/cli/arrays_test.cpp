// Readers of .npz and .safetensors: files survive a round trip, and no damaged file causes a read outside its memory.
#include "arrays/arrays.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>

namespace deltarelay::arrays {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::vector<std::byte> bytes_of(const std::string& text) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> written(Format format, const std::vector<Array>& arrays) {
  const std::string path = testing::TempDir() + "deltarelay_arrays_test_" + std::to_string(::getpid());
  write(path, format, arrays);
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::remove(path.c_str());
  return bytes_of(text);
}

class Formats : public testing::TestWithParam<Format> {
 protected:
  std::vector<std::byte> sample() const {
    return written(GetParam(), {{"q", DR_FP32, "", {1, 2, 3}, std::span(data_).first(24)},
                                {"offsets", DR_INT64, "", {2}, std::span(data_).first(16)},
                                {"scalar", DR_FP16, "", {}, std::span(data_).first(2)},
                                {"none", DR_BF16, "", {0, 4}, {}}});
  }
  std::vector<std::byte> data_ = bytes_of("abcdefghijklmnopqrstuvwxyz");
};
INSTANTIATE_TEST_SUITE_P(All, Formats, testing::Values(Format::kNpz, Format::kSafetensors),
                         [](const auto& given) { return given.param == Format::kNpz ? "npz" : "safetensors"; });

TEST_P(Formats, RoundTrip) {
  const File file(sample());
  EXPECT_EQ(file.format(), GetParam());
  ASSERT_EQ(file.arrays().size(), 4u);
  for (const Array& array : file.arrays()) {
    if (array.name == "q") {
      EXPECT_EQ(array.dtype, DR_FP32);
      EXPECT_THAT(array.shape, ElementsAre(1, 2, 3));
      EXPECT_TRUE(std::equal(array.data.begin(), array.data.end(), data_.begin(), data_.begin() + 24));
    } else if (array.name == "offsets") {
      EXPECT_EQ(array.dtype, DR_INT64);
      EXPECT_THAT(array.shape, ElementsAre(2));
    } else if (array.name == "scalar") {
      EXPECT_EQ(array.dtype, DR_FP16);
      EXPECT_THAT(array.shape, ElementsAre());
    } else {
      EXPECT_EQ(array.name, "none");
      EXPECT_EQ(array.dtype, GetParam() == Format::kNpz ? kUint16 : DR_BF16);
      EXPECT_THAT(array.shape, ElementsAre(0, 4));
    }
  }
}

TEST_P(Formats, CutShort) {
  const std::vector<std::byte> whole = sample();
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_THROW(File({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)}), FileError) << size;
}

// Reads or refuses; sanitizers detect anything else.
void try_to_read(std::vector<std::byte> content) {
  try {
    const File file(std::move(content));
    for (const Array& array : file.arrays()) crc32(array.data);
  } catch (const FileError&) {
  }
}

TEST_P(Formats, EveryByteChanged) {
  const std::vector<std::byte> whole = sample();
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      std::vector<std::byte> changed = whole;
      changed[at] = static_cast<std::byte>(value);
      try_to_read(std::move(changed));
    }
  }
}

TEST_P(Formats, ManyBytesChanged) {
  const std::vector<std::byte> whole = sample();
  std::mt19937 random(7);  // NOLINT(cert-msc51-cpp): the same files every time
  for (int i = 0; i < 3000; ++i) {
    std::vector<std::byte> changed = whole;
    const int changes = 1 + static_cast<int>(random() % 8);
    for (int j = 0; j < changes; ++j) changed[random() % changed.size()] = static_cast<std::byte>(random());
    if (random() % 4 == 0) changed.resize(random() % changed.size());
    try_to_read(std::move(changed));
  }
}

TEST(Crc32, KnownValue) { EXPECT_EQ(crc32(bytes_of("123456789")), 0xcbf43926u); }

TEST(Inflate, NoiseIsRefusedOrFits) {
  std::mt19937 random(11);  // NOLINT(cert-msc51-cpp): the same streams every time
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> stream(1 + random() % 60);
    for (std::byte& byte : stream) byte = static_cast<std::byte>(random());
    stream[0] = (stream[0] & std::byte{0xf8}) | static_cast<std::byte>(1 + 2 * (random() % 3));
    try {
      const size_t size = random() % 300;
      EXPECT_EQ(inflate(stream, size).size(), size);
    } catch (const FileError&) {
    }
  }
}

TEST(Inflate, StoredBlock) {
  std::vector<std::byte> stream = {std::byte{1}, std::byte{3}, std::byte{0}, std::byte{0xfc}, std::byte{0xff}};
  for (const char c : {'a', 'b', 'c'}) stream.push_back(static_cast<std::byte>(c));
  EXPECT_EQ(inflate(stream, 3), bytes_of("abc"));
  EXPECT_THAT([&] { inflate(stream, 4); }, ThrowsMessage<FileError>(HasSubstr("fewer bytes")));
  EXPECT_THAT([&] { inflate(stream, 2); }, ThrowsMessage<FileError>(HasSubstr("more bytes")));
  EXPECT_THAT([&] { inflate(stream, uint64_t{1} << 60); }, ThrowsMessage<FileError>(HasSubstr("than it can hold")));
}

TEST(Files, OfAnotherKind) {
  EXPECT_THAT([] { File(bytes_of("hello, this is text")); }, ThrowsMessage<FileError>(HasSubstr(".safetensors")));
  EXPECT_THAT([] { File({}); }, ThrowsMessage<FileError>(HasSubstr("something else")));
  EXPECT_THAT([] { File::read("/nowhere/at/all.npz"); }, ThrowsMessage<FileError>(HasSubstr("/nowhere/at/all.npz")));
}

}  // namespace
}  // namespace deltarelay::arrays
