// From lengths to a table by one of the rules, in memory that someone else owns: the same path for lengths that the
// plan knows and for lengths that come with the tensors.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/rows.h"
#include "plan/search/costs.h"
#include "plan/search/cut_rules.h"
#include "plan/search/grain.h"
#include "plan/search/rows.h"
#include "problem/problem.h"

namespace deltarelay {

struct Plan;

// Scratch of a table for so many sequences.
size_t space_bytes(int64_t num_seqs);
TableSpace space_in(std::byte* memory, int64_t num_seqs);

// Reads the lengths, at most `num_tokens` tokens in all, and orders them.
TableInput order_sequences(const Sequences& sequences, int64_t num_tokens, int32_t chunk, const TableSpace& space);

// Whole sequences that ride in phase 1.
int32_t riders_of(const TableInput& input, const plan::Costs& costs);
plan::TableSize table_size_of(const TableInput& input, int32_t riders);

// The runs of a phase and the folds by the rule of `input` (rows.h, grain.h).
template <class Take>
void take_runs_of(const TableInput& input, int32_t riders, const plan::Costs& costs, bool third, const Take& take) {
  const plan::Key* keys = input.space.keys;
  const int32_t count = input.lengths.count;
  if (input.rule == CutRule::kGrain) {
    plan::take_grain_runs(third, keys, count, input.value, FullChunks{input}, riders, costs, input.space.runs, take);
  } else {
    plan::take_runs(third, keys, count, CutBy(input), riders, costs, input.space.runs, take);
  }
}
template <class Take>
int64_t take_folds_of(const TableInput& input, const Take& take) {
  const plan::Key* keys = input.space.keys;
  const int32_t count = input.lengths.count;
  if (input.rule == CutRule::kGrain) {
    return plan::take_grain_folds(keys, count, input.value, FullChunks{input}, take);
  }
  return plan::take_folds(keys, count, CutBy(input), take);
}

plan::TableSize write_table_of(const TableInput& input, int32_t riders, const plan::Costs& costs,
                               const plan::Table& table);

// Upper bounds of a table for any lengths of `num_seqs` sequences with `num_tokens` tokens in all; grows with both.
struct CapacityRequest {
  CutRule rule;
  int32_t value;
  int64_t num_tokens, num_seqs;
  int32_t chunk;
  int64_t heads;  // strips, where a head has several
  int32_t units;
};
plan::TableSize capacity_of(const CapacityRequest& request, const plan::Limits& limits);

// Bytes of the booked table: scratch and rows.
size_t table_bytes(int64_t num_seqs, const plan::TableSize& capacity);

// The table of a batch whose lengths come with the tensors, written into booked memory without allocating.
TableView fill_table(const Plan& plan, const Sequences& sequences, std::byte* memory, size_t bytes);

}  // namespace deltarelay
