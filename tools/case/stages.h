// What a stage takes, writes and reads, as deltarelay/stages.h says it. The tools keep these rules on their own: a test
// holds them against the library's.
#pragma once
#include <cstdint>

#include "deltarelay/tensor_list.hpp"

namespace deltarelay::cases {

constexpr bool is_stage(int32_t op) { return op >= DR_CHUNK_LOCAL && op <= DR_CARRY; }

// Intermediates of an operation, as bits of dr_chunks. `must`: those without which it has nothing to work on.
struct StageBits {
  int32_t must = 0;
  int32_t may_give = 0;
  int32_t may_want = 0;
};

constexpr StageBits stage_bits(int32_t op) {
  switch (op) {
    case DR_CHUNK_LOCAL:
      return {0, DR_INVERSE | DR_GATE_SUMS,
              DR_AQK | DR_INVERSE | DR_W | DR_U | DR_K_TO_END | DR_Q_FROM_START | DR_GATE_SUMS};
    case DR_STATE_PASS:
      return {DR_W | DR_U, DR_K_TO_END | DR_GATE_SUMS, DR_STATES | DR_V_NEW};
    case DR_OUTPUTS:
      return {DR_V_NEW | DR_STATES, DR_AQK | DR_Q_FROM_START | DR_GATE_SUMS, 0};
    case DR_SUMMARY:
      return {0, DR_W | DR_U | DR_K_TO_END | DR_GATE_SUMS, DR_SUMMARIES};
    case DR_CARRY:
      return {DR_SUMMARIES, 0, DR_STATES | DR_COMPOSED};
    default:
      return {};
  }
}

constexpr int32_t kDefaultChunk = 64;
constexpr int32_t default_chunk(int32_t op) { return is_stage(op) && op != DR_CARRY ? kDefaultChunk : 0; }

// Does the operation read this tensor of tokens? Every one is read by the forward.
constexpr bool reads_rows(int32_t op, int32_t given, int32_t wanted, Tensor tensor) {
  const auto wants = [wanted](int32_t bits) { return (wanted & bits) != 0; };
  const auto gives = [given](int32_t bits) { return (given & bits) == bits; };
  if (op == DR_CARRY) return false;
  if (!is_stage(op)) return true;
  // The products with V: chunk-local forms them for U, a summary where it has no W and U.
  const bool solves = op == DR_SUMMARY && !gives(DR_W);
  const bool local = op == DR_CHUNK_LOCAL, u_only = wants(DR_U) && !gives(DR_INVERSE);
  switch (tensor) {
    case Tensor::kQ:
      return local ? wants(DR_AQK | DR_Q_FROM_START) : op == DR_OUTPUTS && !gives(DR_AQK | DR_Q_FROM_START);
    case Tensor::kK:
      if (local) return wants(DR_AQK | DR_INVERSE | DR_W | DR_K_TO_END) || u_only;
      return op == DR_OUTPUTS ? !gives(DR_AQK) : !gives(DR_K_TO_END);
    case Tensor::kV:
      return local ? wants(DR_U) : solves;
    case Tensor::kG:
      if (gives(DR_GATE_SUMS)) return false;
      // U of a given inverse is the only result of a chunk without a decay.
      if (local) return (wanted & ~DR_U) != 0 || !gives(DR_INVERSE);
      return op != DR_OUTPUTS || !gives(DR_AQK | DR_Q_FROM_START);
    case Tensor::kBeta:
      return local ? wants(DR_INVERSE | DR_W | DR_U) : solves;
    default:
      return false;
  }
}

constexpr bool writes_o(int32_t op) { return !is_stage(op) || op == DR_OUTPUTS; }

}  // namespace deltarelay::cases
