#include "problem/struct_size.h"

#include <cstring>

#include "refusal.h"

namespace deltarelay::test {
namespace {

TEST(StructSize, TooSmallIsRefused) {
  Request request;
  for (const uint32_t size : {0u, 4u, static_cast<uint32_t>(sizeof(dr_problem)) - 1}) {
    request.size = size;
    expect_refusal(request, "problem.size", std::to_string(sizeof(dr_problem)), std::to_string(size));
  }
}

TEST(StructSize, GarbageIsNotBelieved) {
  Request request;
  request.size = 0xcdcdcdcdu;
  expect_refusal(request, "problem.size", std::to_string(sizeof(dr_problem)), "3452816845");
}

// As a caller with a newer header would pass it: our structure with fields after it.
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

struct Output {
  uint32_t size;
  int32_t known;
  int32_t unknown[2];
};
constexpr size_t kKnown = 8;

TEST(StructSize, OutputsKeepTheirSizeAndLoseNothing) {
  const Output value{77, 5, {6, 7}};
  Output output{sizeof(Output), -1, {-1, -1}};
  check_output_size("output", &output, kKnown);
  write_output(&output, &value, kKnown);
  EXPECT_EQ(output.size, sizeof(Output));
  EXPECT_EQ(output.known, 5);
  EXPECT_EQ(output.unknown[0], 0);
  EXPECT_EQ(output.unknown[1], 0);

  output = {kKnown, -1, {-1, -1}};
  write_output(&output, &value, kKnown);
  EXPECT_EQ(output.known, 5);
  EXPECT_EQ(output.unknown[0], -1);  // outside what the caller owns

  output.size = 4;
  expect_refusal([&] { check_output_size("output", &output, kKnown); }, "output.size", "8", "4");
}

}  // namespace
}  // namespace deltarelay::test
