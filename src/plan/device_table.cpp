#include "plan/device_table.h"

#include <cstring>

#include "plan/plan.h"
#include "problem/types.h"

namespace deltarelay {
namespace {

constexpr size_t kCopyAlignment = 16;  // of every array, and what a thread copies at once

template <class T>
size_t place(size_t& end, int64_t count) {
  const size_t begin = end;
  end = round_up(end + sizeof(T) * static_cast<size_t>(count), kCopyAlignment);
  return begin;
}

template <class T>
void put(std::vector<std::byte>& image, size_t offset, size_t i, T value) {
  std::memcpy(image.data() + offset + i * sizeof(T), &value, sizeof(T));
}

}  // namespace

DeviceTableLayout device_table_layout(int64_t num_seqs, const plan::TableSize& capacity, bool scratch) {
  DeviceTableLayout layout;
  size_t end = 0;
  layout.counts = place<int32_t>(end, 4);
  layout.token_begin = place<int64_t>(end, num_seqs + 1);
  layout.chunk_begin = place<int32_t>(end, num_seqs + 1);
  layout.rows1 = place<Row>(end, capacity.rows1);
  layout.folds = place<Fold>(end, capacity.folds);
  layout.rows3 = place<Row>(end, capacity.rows3);
  layout.scratch = end;
  if (scratch) place<std::byte>(end, plan::kTeamSpaceAlone + num_seqs * plan::kTeamSpacePerSequence);
  layout.bytes = end;
  return layout;
}

std::vector<std::byte> device_table_image(const DeviceTableLayout& layout, const Sequences& sequences, int32_t chunk,
                                          const SegmentTable& table) {
  std::vector<std::byte> image(layout.scratch);  // zeros, so that padding has a value too
  const int32_t counts[] = {static_cast<int32_t>(table.rows1.size()), static_cast<int32_t>(table.folds.size()),
                            static_cast<int32_t>(table.rows3.size()), static_cast<int32_t>(table.num_slots)};
  std::memcpy(image.data() + layout.counts, counts, sizeof counts);
  const plan::ChunkCount chunks_in(chunk);
  int64_t tokens = 0, chunks = 0;
  const auto num_seqs = static_cast<size_t>(sequences.num_seqs);
  for (size_t n = 0; n <= num_seqs; ++n) {
    put(image, layout.token_begin, n, tokens);
    put(image, layout.chunk_begin, n, static_cast<int32_t>(chunks));
    if (n == num_seqs) break;
    const int64_t length = sequences.length(static_cast<int64_t>(n));
    tokens += length;
    chunks += chunks_in(length);
  }
  static_assert(sizeof(Row) == 7 * sizeof(int32_t), "no padding");
  if (!table.rows1.empty())
    std::memcpy(image.data() + layout.rows1, table.rows1.data(), table.rows1.size() * sizeof(Row));
  if (!table.rows3.empty())
    std::memcpy(image.data() + layout.rows3, table.rows3.data(), table.rows3.size() * sizeof(Row));
  for (size_t i = 0; i < table.folds.size(); ++i) {  // field by field: the bytes after from_initial stay zero
    const Fold& fold = table.folds[i];
    const size_t at = layout.folds + i * sizeof(Fold);
    put(image, at + offsetof(Fold, sequence), 0, fold.sequence);
    put(image, at + offsetof(Fold, slot), 0, fold.slot);
    put(image, at + offsetof(Fold, count), 0, fold.count);
    put(image, at + offsetof(Fold, from_initial), 0, fold.from_initial);
  }
  return image;
}

plan::TeamTable device_tables_in(std::byte* memory, const DeviceTableLayout& layout) {
  auto at = [&](size_t offset) { return static_cast<void*>(memory + offset); };
  return {
      static_cast<int32_t*>(at(layout.counts)),
      static_cast<int64_t*>(at(layout.token_begin)),
      static_cast<int32_t*>(at(layout.chunk_begin)),
      {static_cast<Row*>(at(layout.rows1)), static_cast<Fold*>(at(layout.folds)), static_cast<Row*>(at(layout.rows3))}};
}

plan::TableRequest table_request(const Plan& plan) {
  return table_request(plan, {plan.problem.num_tokens, plan.problem.num_seqs});
}

plan::TableRequest table_request(const Plan& plan, const CallCounts& counts) {
  return {counts.num_tokens, static_cast<int32_t>(counts.num_seqs), plan.chunk(), plan.rule, plan.cut_value, plan.costs,
          plan.limits};
}

}  // namespace deltarelay
