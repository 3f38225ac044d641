// A counter-based hash (the finaliser of splitmix64): the same numbers on every machine and in any order.
#pragma once
#include <cstdint>

namespace deltarelay::cases {

constexpr uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace deltarelay::cases
