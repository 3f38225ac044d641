// Structures filled by a careless caller.
#pragma once
#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "block.h"
#include "input.h"

namespace fuzz {

inline constexpr size_t kMostStructureBytes = 4096;  // the largest size that the library accepts

// Overwrites one 4- or 8-byte word of a structure, or one byte, with an odd number. Skips pointers, listed in
// `pointers`.
template <class Structure>
void spoil(Input& input, Structure& structure, std::initializer_list<size_t> pointers) {
  auto* const bytes = reinterpret_cast<unsigned char*>(&structure);
  const size_t at = 4 * input.below(sizeof structure / 4);
  const size_t word = at / 8 * 8;
  for (const size_t pointer : pointers) {
    if (pointer == word) return;
  }
  const int64_t number = input.odd_number();
  const auto half = static_cast<int32_t>(number);
  if (input.one_in(4)) {
    bytes[at + input.below(4)] = static_cast<unsigned char>(number);
  } else if (input.one_in(2)) {
    std::memcpy(bytes + word, &number, std::min(sizeof number, sizeof structure - word));
  } else {
    std::memcpy(bytes + at, &half, sizeof half);
  }
}

// Copies a structure to exactly as many bytes as its size says. A longer copy ends in zeros, or mostly zeros.
template <class Structure>
Block as_stated(Input& input, const Structure& structure) {
  const size_t bytes = std::clamp<size_t>(structure.size, sizeof structure.size, kMostStructureBytes);
  Block block(bytes, 0);
  std::memcpy(block.data(), &structure, std::min(bytes, sizeof structure));
  if (bytes > sizeof structure && input.one_in(4)) block.data()[bytes - 1] = 1;
  return block;
}

}  // namespace fuzz
