// How tests check a refusal: the status, and a message of the form "argument: expected ..., found ...".
#pragma once
#include <gtest/gtest.h>

#include <concepts>
#include <string>

#include "problem/status.h"
#include "problem/validate.h"

namespace deltarelay::test {

// A small problem that is valid: two packed sequences, one of them empty at the end.
struct Request : dr_problem {
  int32_t offsets[4] = {0, 5, 12, 12};

  Request() : dr_problem() {
    size = sizeof(dr_problem);
    rule = DR_KDA;
    num_seqs = 3;
    num_tokens = 14;
    seq_offsets = offsets;
    heads_qk = 2;
    heads_v = 4;
    dk = 8;
    dv = 6;
  }
  Request(const Request&) = delete;

  void make_batched() {
    num_seqs = 3;
    num_tokens = 0;
    seq_len = 7;
    seq_offsets = nullptr;
  }
};

// Runs `call`. Expects DR_INVALID with this argument and with these words after "expected" and "found".
template <std::invocable Call>
void expect_refusal(Call&& call, const std::string& argument, const std::string& expected, const std::string& found) {
  std::string message;
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), DR_INVALID) << error.what();
    message = error.what();
  }
  ASSERT_FALSE(message.empty()) << argument << " was accepted; expected " << expected << ", found " << found;
  const std::string head = argument + ": expected ";
  const size_t at = message.rfind(", found ");
  ASSERT_EQ(message.compare(0, head.size(), head), 0) << message << "\n  does not start with " << head;
  ASSERT_NE(at, std::string::npos) << message;
  EXPECT_NE(message.substr(head.size(), at - head.size()).find(expected), std::string::npos)
      << message << "\n  does not expect " << expected;
  EXPECT_NE(message.substr(at + 8).find(found), std::string::npos) << message << "\n  did not find " << found;
}

inline void expect_refusal(const dr_problem& request, const std::string& argument, const std::string& expected,
                           const std::string& found) {
  expect_refusal([&] { validate(request); }, argument, expected, found);
}

}  // namespace deltarelay::test
