#include "plan/table.h"

#include <algorithm>
#include <utility>

#include "plan/plan.h"
#include "plan/search/grain.h"
#include "plan/search/search.h"
#include "problem/status.h"
#include "problem/types.h"

namespace deltarelay {
namespace {

constexpr size_t kArrayAlignment = 16;  // of every array in a table's memory
constexpr size_t aligned(size_t bytes) { return round_up(bytes, kArrayAlignment); }

template <class T>
T* take_array(std::byte*& memory, int64_t count) {
  T* array = reinterpret_cast<T*>(memory);
  memory += aligned(sizeof(T) * static_cast<size_t>(count));
  return array;
}

// Longest first, the order of the caller among equals, as KeyOrder has it: keys come in that order, and a sort digit by
// digit keeps it. Takes a fifth of the time of one by comparisons. `other` is scratch.
void order_keys(plan::Key* keys, int32_t n, plan::Key* other) {
  constexpr int32_t kFewest = 64, kBits = 8, kDigits = 1 << kBits;
  if (n < kFewest) return;  // left to order_lengths
  int32_t longest = 0;
  bool ordered = true;
  for (int32_t i = 0; i < n; ++i) {
    ordered = ordered && (i == 0 || keys[i].chunks <= keys[i - 1].chunks);
    longest = std::max(longest, keys[i].chunks);
  }
  if (ordered) return;
  plan::Key *from = keys, *to = other;
  for (int32_t shift = 0; shift < 32 && longest >> shift > 0; shift += kBits) {
    auto digit = [&](const plan::Key& key) {
      return static_cast<size_t>((longest - key.chunks) >> shift & (kDigits - 1));
    };
    int32_t begin[kDigits] = {};
    for (int32_t i = 0; i < n; ++i) ++begin[digit(from[i])];
    int32_t before = 0;
    for (int32_t& b : begin) before += std::exchange(b, before);
    for (int32_t i = 0; i < n; ++i) to[begin[digit(from[i])]++] = from[i];
    std::swap(from, to);
  }
  if (from != keys) std::copy(from, from + n, keys);
}

bool cuts_nothing(const TableInput& input) {
  return input.rule == CutRule::kWhole || (input.rule == CutRule::kSearch && input.decision.segment == 0);
}

}  // namespace

size_t space_bytes(int64_t num_seqs) {
  const size_t n = static_cast<size_t>(num_seqs);
  return aligned(sizeof(int64_t) * (n + 1)) + aligned(sizeof(plan::Run) * plan::kRunsPerSequence * n) +
         aligned(sizeof(plan::Key) * n) + aligned(sizeof(int32_t) * n);
}

TableSpace space_in(std::byte* memory, int64_t num_seqs) {
  TableSpace space;
  space.tail = take_array<int64_t>(memory, num_seqs + 1);
  space.runs = take_array<plan::Run>(memory, plan::kRunsPerSequence * num_seqs);
  space.keys = take_array<plan::Key>(memory, num_seqs);
  space.sorted = take_array<int32_t>(memory, num_seqs);
  return space;
}

TableInput order_sequences(const Sequences& sequences, int64_t num_tokens, int32_t chunk, const TableSpace& space) {
  const int32_t n = static_cast<int32_t>(sequences.num_seqs);
  const plan::ChunkCount chunks_in(chunk);
  int64_t left = num_tokens;  // lengths that come at execution must not outgrow what was booked
  for (int32_t i = 0; i < n; ++i) {
    const int64_t length = std::clamp<int64_t>(sequences.length(i), 0, left);
    left -= length;
    space.keys[i] = {static_cast<int32_t>(chunks_in(length)), i};
  }
  static_assert(sizeof(plan::Key) <= plan::kRunsPerSequence * sizeof(plan::Run));  // runs are written later
  order_keys(space.keys, n, reinterpret_cast<plan::Key*>(space.runs));
  TableInput input;
  input.sequences = sequences;
  input.chunk = chunk;
  input.space = space;
  input.lengths = plan::order_lengths(space.keys, n, space.sorted, space.tail);
  return input;
}

int32_t riders_of(const TableInput& input, const plan::Costs& costs) {
  const int32_t count = input.lengths.count;
  if (input.rule == CutRule::kSearch) return input.decision.in_phase1;
  if (input.rule == CutRule::kWhole) return count;
  if (input.rule == CutRule::kGrain) {
    return plan::grain_riders_for(input.space.keys, count, input.value, FullChunks{input}, costs);
  }
  return plan::riders_for(input.space.keys, count, CutBy(input), costs);
}

plan::TableSize table_size_of(const TableInput& input, int32_t riders) {
  if (cuts_nothing(input)) return {.rows1 = input.lengths.count};
  if (input.rule == CutRule::kGrain) {
    return plan::grain_table_size(input.space.keys, input.lengths.count, input.value, FullChunks{input}, riders);
  }
  return plan::table_size(input.space.keys, input.lengths.count, CutBy(input), riders);
}

plan::TableSize write_table_of(const TableInput& input, int32_t riders, const plan::Costs& costs,
                               const plan::Table& table) {
  if (cuts_nothing(input)) return plan::write_whole_table(input.space.keys, input.lengths.count, table);
  auto write_phase = [&](bool third, Row* row) {
    const Row* const begin = row;
    take_runs_of(input, riders, costs, third, [&](const plan::Run& run, const auto& row_at) {
      for (int32_t j = run.from; j < run.from + run.count; ++j) *row++ = row_at(j);
    });
    return row - begin;
  };
  plan::TableSize size;
  size.rows1 = write_phase(false, table.rows1);
  size.slots = take_folds_of(input, [&](const Fold& fold) { table.folds[size.folds++] = fold; });
  size.rows3 = write_phase(true, table.rows3);
  return size;
}

plan::TableSize capacity_of(const CapacityRequest& r, const plan::Limits& limits) {
  const int64_t chunks = r.num_tokens / r.chunk + r.num_seqs;  // every sequence may end in a ragged chunk
  int64_t pieces = 0;                                          // segments after the first, of all sequences
  switch (r.rule) {
    case CutRule::kSearch:
      pieces = std::min<int64_t>(limits.max_rows, plan::ceil_div(int64_t{limits.max_waves} * r.units, r.heads));
      break;
    case CutRule::kCount:
      pieces = std::min(r.num_seqs * std::min<int64_t>(r.value - 1, chunks), chunks);
      break;
    case CutRule::kLength:
      pieces = r.num_tokens / (int64_t{r.value} * r.chunk) + 1;
      break;
    case CutRule::kGrain: {
      const int64_t grains = r.num_tokens / (int64_t{r.value} * r.chunk);
      const int64_t cut_seqs = std::min(grains, r.num_seqs);
      return {grains + r.num_seqs, cut_seqs, grains + r.num_seqs, grains + cut_seqs};
    }
    case CutRule::kWhole:
    case CutRule::kPolicy:
      break;
  }
  pieces = std::min(pieces, chunks);
  return {pieces + r.num_seqs, std::min(r.num_seqs, pieces), pieces + r.num_seqs, pieces};
}

size_t table_bytes(int64_t num_seqs, const plan::TableSize& capacity) {
  return space_bytes(num_seqs) + aligned(sizeof(Row) * static_cast<size_t>(capacity.rows1)) +
         aligned(sizeof(Fold) * static_cast<size_t>(capacity.folds)) +
         aligned(sizeof(Row) * static_cast<size_t>(capacity.rows3));
}

TableView fill_table(const Plan& plan, const Sequences& sequences, std::byte* memory, size_t bytes) {
  const int64_t num_seqs = plan.problem.num_seqs;
  if (bytes < table_bytes(num_seqs, plan.capacity) || sequences.num_seqs > num_seqs) {
    throw Error(DR_INTERNAL, "segment table: expected the memory that the plan booked, found less");
  }
  TableInput input = order_sequences(sequences, plan.problem.num_tokens, plan.chunk(), space_in(memory, num_seqs));
  input.rule = plan.rule;
  input.value = plan.cut_value;
  if (plan.rule == CutRule::kSearch) input.decision = plan::decide(input.lengths, &plan.costs, 1, plan.limits);
  memory += space_bytes(num_seqs);
  plan::Table table;
  table.rows1 = take_array<Row>(memory, plan.capacity.rows1);
  table.folds = take_array<Fold>(memory, plan.capacity.folds);
  table.rows3 = take_array<Row>(memory, plan.capacity.rows3);
  const plan::TableSize size = write_table_of(input, riders_of(input, plan.costs), plan.costs, table);
  return {table.rows1, size.rows1, table.folds, size.folds, table.rows3, size.rows3};
}

}  // namespace deltarelay
