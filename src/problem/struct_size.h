// Structures that start with their size: how the library serves a caller that was compiled with another header version.
//
// A structure that the caller filled is copied. Fields that a shorter structure (an older header) lacks are zero, the
// default of every field. A longer structure (a newer header) is accepted if the extra bytes are zero. Sizes of version
// 0.1 are refused by name, because that header had other fields at the same offsets.
#pragma once
#include <cstddef>

#include "deltarelay/deltarelay.h"

namespace deltarelay {

// The sizes of one structure in several versions.
struct Sizing {
  size_t known;   // in this version
  size_t in_0_2;  // in 0.2.0, the oldest version that is accepted
  size_t in_0_1;  // in 0.1, which is refused; 0: the structure did not exist
};

template <class Structure>
inline constexpr Sizing kSizing{};
template <>
inline constexpr Sizing kSizing<dr_problem>{sizeof(dr_problem), 616, 440};
template <>
inline constexpr Sizing kSizing<dr_options>{sizeof(dr_options), 120, 96};
template <>
inline constexpr Sizing kSizing<dr_tensors>{sizeof(dr_tensors), 200, 160};
template <>
inline constexpr Sizing kSizing<dr_chunks>{sizeof(dr_chunks), 32, 0};
template <>
inline constexpr Sizing kSizing<dr_intermediates>{sizeof(dr_intermediates), 96, 0};
template <>
inline constexpr Sizing kSizing<dr_device>{sizeof(dr_device), 136, 368};
template <>
inline constexpr Sizing kSizing<dr_costs>{sizeof(dr_costs), 152, 0};
template <>
inline constexpr Sizing kSizing<dr_plan_summary>{sizeof(dr_plan_summary), 88, 80};

// Copies a structure that the caller filled into `copy`, of sizing.known bytes. `argument` names it in messages. Throws
// Error(DR_INVALID).
void copy_input(const char* argument, const void* given, void* copy, const Sizing& sizing);

// Checks the size of a structure that the library fills. Throws Error(DR_INVALID).
void check_output_size(const char* argument, const void* structure, const Sizing& sizing);

// Fills a structure of the caller from `value`, of `known` bytes: as many bytes as the caller's size allows, and zero
// beyond. The caller's size field stays.
void write_output(void* structure, const void* value, size_t known);

template <class Structure>
Structure take_input(const char* argument, const Structure& given) {
  static_assert(kSizing<Structure>.in_0_1 != sizeof(Structure), "a size of 0.1 must stay recognisable");
  Structure copy;
  copy_input(argument, &given, &copy, kSizing<Structure>);
  return copy;
}

template <class Structure>
void give_output(const char* argument, Structure* structure, const Structure& value) {
  check_output_size(argument, structure, kSizing<Structure>);
  write_output(structure, &value, sizeof value);
}

}  // namespace deltarelay
