// Zip archives as Python's zipfile writes them: stored or deflated, with 64-bit sizes if needed.
#include <algorithm>

#include "arrays/arrays.h"

namespace deltarelay::arrays {
namespace {

constexpr uint32_t kLocalMagic = 0x04034b50, kCentralMagic = 0x02014b50, kEndMagic = 0x06054b50;
constexpr uint32_t kEnd64Magic = 0x06064b50, kLocator64Magic = 0x07064b50;
constexpr size_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56, kLocator64Bytes = 20;
constexpr uint32_t kIn64 = 0xffffffffu;  // the number is in the extra field

[[noreturn]] void damaged(const std::string& found) { fail("archive", "a zip file as np.savez writes it", found); }

bool is_at(std::span<const std::byte> file, uint64_t at, size_t bytes, uint32_t magic) {
  return at <= file.size() && bytes <= file.size() - at && number_at<uint32_t>(file, at) == magic;
}

struct Directory {
  uint64_t begin;
  uint64_t entries;
};

Directory find_directory(std::span<const std::byte> file) {
  if (file.size() < kEndBytes) damaged("a file of " + std::to_string(file.size()) + " bytes");
  const size_t last = file.size() - kEndBytes;
  for (size_t back = 0; back <= std::min<size_t>(last, 0xffff); ++back) {  // a comment may follow
    const size_t at = last - back;
    if (!is_at(file, at, kEndBytes, kEndMagic)) continue;
    if (at >= kLocator64Bytes && is_at(file, at - kLocator64Bytes, kLocator64Bytes, kLocator64Magic)) {
      const auto end = number_at<uint64_t>(file, at - kLocator64Bytes + 8);
      if (!is_at(file, end, kEnd64Bytes, kEnd64Magic)) damaged("no directory where its end says");
      return {number_at<uint64_t>(file, end + 48), number_at<uint64_t>(file, end + 32)};
    }
    return {number_at<uint32_t>(file, at + 16), number_at<uint16_t>(file, at + 10)};
  }
  damaged("no directory at its end: was it cut short?");
}

struct Entry {
  std::string name;
  uint16_t flags = 0, method = 0;
  uint32_t sum = 0;
  uint64_t packed = 0, size = 0, begin = 0;
};

// Reads the numbers that did not fit 32 bits, in the order in which the entry omits them.
void read_extra(std::span<const std::byte> extra, Entry& entry) {
  while (extra.size() >= 4) {
    const auto kind = number_at<uint16_t>(extra, 0);
    const size_t bytes = number_at<uint16_t>(extra, 2);
    if (bytes > extra.size() - 4) damaged("an extra field that ends behind its entry");
    if (kind == 1) {
      size_t at = 4;
      for (uint64_t* value : {&entry.size, &entry.packed, &entry.begin}) {
        if (*value != kIn64) continue;
        if (at + 8 > bytes + 4) damaged("an extra field without a size of 64 bits");
        *value = number_at<uint64_t>(extra, at);
        at += 8;
      }
    }
    extra = extra.subspan(4 + bytes);
  }
}

std::span<const std::byte> data_of(std::span<const std::byte> file, const Entry& entry,
                                   std::list<std::vector<std::byte>>& unpacked) {
  if ((entry.flags & 1) != 0) fail(entry.name, "an entry without a password", "an encrypted one");
  if (!is_at(file, entry.begin, kLocalBytes, kLocalMagic)) damaged("no entry '" + entry.name + "' where it should be");
  const uint64_t begin = entry.begin + kLocalBytes + number_at<uint16_t>(file, entry.begin + 26) +
                         number_at<uint16_t>(file, entry.begin + 28);
  if (begin > file.size() || entry.packed > file.size() - begin)
    damaged("an entry '" + entry.name + "' that ends behind the file: was it cut short?");
  std::span<const std::byte> data = file.subspan(begin, entry.packed);
  if (entry.method == 8) {
    data = unpacked.emplace_back(inflate(data, entry.size));
  } else if (entry.method != 0) {
    fail(entry.name, "an entry that is stored or deflated (np.savez, np.savez_compressed)",
         "method " + std::to_string(entry.method));
  }
  if (data.size() != entry.size) damaged("an entry '" + entry.name + "' with two sizes");
  if (crc32(data) != entry.sum) fail(entry.name, "the checksum that the archive has of it", "another");
  return data;
}

void put(std::string& text, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
}

uint64_t at_most_32(uint64_t value) { return std::min<uint64_t>(value, kIn64); }

// Writes the fields that a local header and an entry of the directory share, with an extra field for 64-bit numbers.
void put_facts(std::string& text, const Entry& entry, bool central) {
  const bool wide = entry.size >= kIn64;
  const bool far = central && entry.begin >= kIn64;
  put(text, wide || far ? 45 : 20, 2);  // version needed to read
  put(text, 0, 2), put(text, 0, 2);     // flags, stored
  put(text, 0, 2), put(text, 0x21, 2);  // midnight, 1 January 1980
  put(text, entry.sum, 4);
  put(text, at_most_32(entry.size), 4), put(text, at_most_32(entry.size), 4);
  put(text, entry.name.size(), 2);
  std::string extra;
  if (wide) put(extra, entry.size, 8), put(extra, entry.size, 8);
  if (far) put(extra, entry.begin, 8);
  const size_t extra_bytes = extra.empty() ? 0 : extra.size() + 4;
  put(text, extra_bytes, 2);
  if (central) {
    put(text, 0, 2), put(text, 0, 2), put(text, 0, 2);  // comment, disk, attributes
    put(text, 0600u << 16, 4);
    put(text, at_most_32(entry.begin), 4);
  }
  text += entry.name;
  if (!extra.empty()) put(text, 1, 2), put(text, extra.size(), 2);
  text += extra;
}

}  // namespace

std::vector<ZipEntry> read_zip(std::span<const std::byte> file, std::list<std::vector<std::byte>>& unpacked) {
  const Directory directory = find_directory(file);
  std::vector<ZipEntry> all;
  uint64_t at = directory.begin;
  for (uint64_t i = 0; i < directory.entries; ++i) {
    if (!is_at(file, at, kCentralBytes, kCentralMagic)) damaged("a directory of fewer entries than it says");
    Entry entry;
    entry.flags = number_at<uint16_t>(file, at + 8);
    entry.method = number_at<uint16_t>(file, at + 10);
    entry.sum = number_at<uint32_t>(file, at + 16);
    entry.packed = number_at<uint32_t>(file, at + 20);
    entry.size = number_at<uint32_t>(file, at + 24);
    entry.begin = number_at<uint32_t>(file, at + 42);
    const size_t name = number_at<uint16_t>(file, at + 28), extra = number_at<uint16_t>(file, at + 30);
    const size_t whole = kCentralBytes + name + extra + number_at<uint16_t>(file, at + 32);
    if (whole > file.size() - at) damaged("a directory that ends behind the file");
    for (const std::byte byte : file.subspan(at + kCentralBytes, name)) entry.name += static_cast<char>(byte);
    read_extra(file.subspan(at + kCentralBytes + name, extra), entry);
    all.push_back({entry.name, data_of(file, entry, unpacked)});
    at += whole;
  }
  return all;
}

void write_zip(Writer& writer, const std::vector<Array>& arrays) {
  std::string directory;
  for (const Array& array : arrays) {
    // The checksum covers header and elements.
    const std::string header = npy_header(array);
    std::vector<std::byte> data(header.size() + array.data.size());
    const std::span<const std::byte> head = std::as_bytes(std::span(header));
    std::copy(head.begin(), head.end(), data.begin());
    std::copy(array.data.begin(), array.data.end(), data.begin() + static_cast<std::ptrdiff_t>(header.size()));
    Entry entry;
    entry.name = array.name + ".npy";
    entry.sum = crc32(data);
    entry.size = data.size();
    entry.begin = writer.written();
    std::string local;
    put(local, kLocalMagic, 4);
    put_facts(local, entry, false);
    writer.add(local);
    writer.add(data);
    put(directory, kCentralMagic, 4);
    put(directory, 45, 2);
    put_facts(directory, entry, true);
  }
  const uint64_t begin = writer.written(), bytes = directory.size(), end = begin + bytes;
  if (begin >= kIn64) {
    put(directory, kEnd64Magic, 4), put(directory, kEnd64Bytes - 12, 8), put(directory, 45, 2), put(directory, 45, 2);
    put(directory, 0, 4), put(directory, 0, 4), put(directory, arrays.size(), 8), put(directory, arrays.size(), 8);
    put(directory, bytes, 8), put(directory, begin, 8);
    put(directory, kLocator64Magic, 4), put(directory, 0, 4), put(directory, end, 8), put(directory, 1, 4);
  }
  put(directory, kEndMagic, 4), put(directory, 0, 4);
  put(directory, arrays.size(), 2), put(directory, arrays.size(), 2);
  put(directory, bytes, 4), put(directory, at_most_32(begin), 4), put(directory, 0, 2);
  writer.add(directory);
}

}  // namespace deltarelay::arrays
