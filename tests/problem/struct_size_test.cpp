#include "problem/struct_size.h"

#include <cstring>

#include "abi/frozen_0_2_0.h"
#include "refusal.h"

namespace deltarelay::test {
namespace {

// The oldest accepted sizes are those of the frozen header.
static_assert(kSizing<dr_problem>.in_0_2 == sizeof(frozen_dr_problem));
static_assert(kSizing<dr_options>.in_0_2 == sizeof(frozen_dr_options));
static_assert(kSizing<dr_tensors>.in_0_2 == sizeof(frozen_dr_tensors));
static_assert(kSizing<dr_chunks>.in_0_2 == sizeof(frozen_dr_chunks));
static_assert(kSizing<dr_intermediates>.in_0_2 == sizeof(frozen_dr_intermediates));
static_assert(kSizing<dr_device>.in_0_2 == sizeof(frozen_dr_device));
static_assert(kSizing<dr_costs>.in_0_2 == sizeof(frozen_dr_costs));
static_assert(kSizing<dr_plan_summary>.in_0_2 == sizeof(frozen_dr_plan_summary));

TEST(StructSize, TooSmallIsRefused) {
  Request request;
  for (const uint32_t size : {0u, 4u, static_cast<uint32_t>(kSizing<dr_problem>.in_0_2) - 1}) {
    request.size = size;
    expect_refusal(request, "problem.size", "at least 616 (version 0.2 or later", std::to_string(size));
  }
}

TEST(StructSize, SizesOfTheFirstHeaderAreRefusedByVersion) {
  Request request;
  request.size = 440;
  expect_refusal(request, "problem.size", "version 0.2 or later", "440, the size in version 0.1");
}

TEST(StructSize, GarbageIsNotBelieved) {
  Request request;
  request.size = 0xcdcdcdcdu;
  expect_refusal(request, "problem.size", "at least 616", "3452816845");
}

// As a caller with a newer header passes it: our structure with fields after it.
struct Newer {
  dr_problem problem;
  uint64_t unknown[2];
};

TEST(StructSize, LargerIsAcceptedWhileTheRestIsZero) {
  const Request known;
  Newer newer{};
  std::memcpy(&newer.problem, static_cast<const dr_problem*>(&known), sizeof newer.problem);
  newer.problem.size = sizeof newer;
  EXPECT_NO_THROW(validate(newer.problem));
  newer.unknown[1] = 1;
  expect_refusal([&] { validate(newer.problem); }, "problem.size", "or zeros in the fields after it",
                 std::to_string(sizeof newer) + " with byte ");
}

// A structure as a later version may define it, beside its form in 0.2.0.
struct First {
  uint32_t size;
  int32_t kept;
};
struct Later {
  uint32_t size;
  int32_t kept;
  int64_t added;
};
constexpr Sizing kLater{sizeof(Later), sizeof(First), 12};

TEST(StructSize, WhatAnOlderHeaderLacksIsZero) {
  const First given{sizeof(First), 5};
  Later copy{77, 77, 77};
  copy_input("structure", &given, &copy, kLater);
  EXPECT_EQ(copy.kept, 5);
  EXPECT_EQ(copy.added, 0);

  Later whole{sizeof(Later), 6, 7};
  copy_input("structure", &whole, &copy, kLater);
  EXPECT_EQ(copy.kept, 6);
  EXPECT_EQ(copy.added, 7);
  whole.size = 12;
  expect_refusal([&] { copy_input("structure", &whole, &copy, kLater); }, "structure.size", "at least 8",
                 "12, the size in version 0.1");
}

TEST(StructSize, OutputsKeepTheirSizeAndNothingBeyondItIsWritten) {
  const Later value{99, 5, 6};
  struct {
    First first;
    int64_t not_the_librarys = -1;
  } older{{sizeof(First), -1}};
  check_output_size("output", &older.first, kLater);
  write_output(&older.first, &value, sizeof value);
  EXPECT_EQ(older.first.size, sizeof(First));
  EXPECT_EQ(older.first.kept, 5);
  EXPECT_EQ(older.not_the_librarys, -1);

  struct {
    Later later;
    int64_t unknown = -1;
  } newer{{sizeof(Later) + 8, -1, -1}};
  write_output(&newer, &value, sizeof value);
  EXPECT_EQ(newer.later.size, sizeof(Later) + 8);
  EXPECT_EQ(newer.later.added, 6);
  EXPECT_EQ(newer.unknown, 0) << "what this version does not know is zero";

  newer.later.size = 4;
  expect_refusal([&] { check_output_size("output", &newer, kLater); }, "output.size", "at least 8", "4");
}

}  // namespace
}  // namespace deltarelay::test
