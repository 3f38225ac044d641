// Spreads the stages over workers.
#include "kernels/cpu/stages/stages.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/spread.h"
#include "kernels/written_rows.h"

namespace deltarelay::cpu {
namespace {

const Kernels& kernels_of(int32_t isa) { return *available_isas()[static_cast<size_t>(isa)].fp32; }

int64_t chunks_of(const StageArgs& args, int64_t sequence) {
  const int64_t chunk = args.problem.chunks.chunk;
  return (args.sequences.length(sequence) + chunk - 1) / chunk;
}

// Finds the sequence of a chunk, and the first chunk of a sequence. Remembers where it was, because a worker asks in
// increasing order.
class ChunkCursor {
 public:
  // First chunk of a sequence, counted over all sequences.
  int64_t first(const StageArgs& args, int64_t sequence) {
    if (sequence < sequence_) sequence_ = base_ = 0;
    while (sequence_ < sequence) base_ += chunks_of(args, sequence_++);
    return base_;
  }
  StageChunk find(const StageArgs& args, int64_t chunk, int32_t head) {
    if (chunk < base_) sequence_ = base_ = 0;
    for (int64_t count; chunk >= base_ + (count = chunks_of(args, sequence_)); ++sequence_) base_ += count;
    return {sequence_, (chunk - base_) * args.problem.chunks.chunk, chunk, head};
  }

 private:
  int64_t sequence_ = 0;
  int64_t base_ = 0;
};

// Panels of a segment or a chain: those of DV columns, and those of DK.
struct Panels {
  int32_t value, key;
};
Panels panels_of(const Problem& problem, const Kernels& kernels) {
  return {panels_for(problem.dv, kernels.panel_columns), panels_for(problem.dk, kernels.panel_columns)};
}

// Panels of one chain. Columns are independent; each item loads every transition, so heads are spread first.
struct ChainTiles {
  PanelRange panels;
  int32_t tiles;
};
ChainTiles chain_tiles(const Problem& problem, const Kernels& kernels, int32_t threads) {
  const Panels panels = panels_of(problem, kernels);
  PanelRange range{0, panels.value};
  if (!problem.chunks.wants(DR_STATES) && !problem.final.used()) range = {panels.value, 0};
  if (problem.chunks.wants(DR_COMPOSED)) range.count += panels.value + panels.key;
  const int64_t items = std::max<int64_t>(1, problem.num_seqs * problem.heads_v);
  return {range, static_cast<int32_t>(std::clamp<int64_t>((threads + items - 1) / items, 1, range.count))};
}

void clear_rows(const StageArgs& args, Executor& executor) {
  const Problem& problem = args.problem;
  const int64_t last = args.sequences.offsets[args.sequences.num_seqs];
  const WrittenTensors written = written_tensors(problem, args.tensors);
  for_each<NoMemory>(args, executor, problem.num_tokens - last, [&](NoMemory, int32_t, int64_t i) {
    for (const WrittenRows& rows : written)
      for (int32_t head = 0; head < problem.heads_v; ++head)
        std::memset(static_cast<std::byte*>(rows.data) + (last + i) * rows.token_bytes + head * rows.head_bytes, 0,
                    static_cast<size_t>(rows.width_bytes));
  });
}

}  // namespace

size_t stage_scratch_bytes(const Problem& problem, int32_t isa, int32_t value_tiles) {
  const Kernels& kernels = kernels_of(isa);
  const Panels panels = panels_of(problem, kernels);
  int32_t most = 1;  // chunks: one panel at a time
  if (problem.op == Op::kCarry) {
    most = chain_tiles(problem, kernels, 1).panels.count;
  } else if (problem.op == Op::kStatePass || problem.op == Op::kSummary) {
    most = panels_for(panels.value + panels.key, value_tiles);
  }
  const size_t bytes = kernels.stages->scratch_bytes(problem, most);
  return round_up(bytes, kWorkspaceAlignment);
}

void run_stage_chunks(const StageArgs& args, Executor& executor) {
  const StageKernels& kernels = *kernels_of(args.isa).stages;
  const int64_t heads = args.problem.heads_v;
  int64_t chunks = 0;
  for (int64_t n = 0; n < args.sequences.num_seqs; ++n) chunks += chunks_of(args, n);
  for_each<ChunkCursor>(args, executor, chunks * heads, [&](ChunkCursor& cursor, int32_t worker, int64_t i) {
    kernels.run_chunk(args, cursor.find(args, i / heads, static_cast<int32_t>(i % heads)),
                      args.scratch + worker * args.scratch_bytes);
  });
}

void run_stage_rows(const StageArgs& args, const Row* rows, int64_t count, Executor& executor) {
  const Kernels& kernels = kernels_of(args.isa);
  const Panels panels = panels_of(args.problem, kernels);
  const int32_t tiles = args.tiling.value_tiles;
  const int64_t heads = args.problem.heads_v;
  for_each<ChunkCursor>(args, executor, count * heads * tiles, [&](ChunkCursor& cursor, int32_t worker, int64_t i) {
    Row row = rows[i / (heads * tiles)];
    if (args.problem.op == Op::kSummary) row.work = Work::kSummarize;
    const int32_t all = row.work == Work::kSummarize ? panels.value + panels.key : panels.value;
    const PanelRange range = tile_range(all, tiles, static_cast<int32_t>(i % tiles));
    if (range.count == 0) return;
    kernels.stages->run_segment(args,
                                {row, static_cast<int32_t>(i / tiles % heads), range, cursor.first(args, row.sequence)},
                                args.scratch + worker * args.scratch_bytes);
  });
}

void run_stage_chains(const StageArgs& args, Executor& executor) {
  const Kernels& kernels = kernels_of(args.isa);
  const auto [panels, tiles] = chain_tiles(args.problem, kernels, args.tiling.threads);
  const int64_t heads = args.problem.heads_v;
  for_each<NoMemory>(args, executor, args.sequences.num_seqs * heads * tiles,
                     [&, panels = panels, tiles = tiles](NoMemory, int32_t worker, int64_t i) {
                       const PanelRange range = tile_range(panels.count, tiles, static_cast<int32_t>(i % tiles));
                       kernels.stages->run_chain(args, i / (heads * tiles), static_cast<int32_t>(i / tiles % heads),
                                                 {panels.first + range.first, range.count},
                                                 args.scratch + worker * args.scratch_bytes);
                     });
}

void finish_stage(const StageArgs& args, Executor& executor) {
  const Problem& problem = args.problem;
  if (args.sequences.seq_len == 0) clear_rows(args, executor);
  const bool summary = problem.op == Op::kSummary;
  if (!summary && (problem.op != Op::kStatePass || !problem.final.used())) return;
  const Kernels& kernels = kernels_of(args.isa);
  const Panels panels = panels_of(problem, kernels);
  const int32_t all = summary ? panels.value + panels.key : panels.value;
  for_each<NoMemory>(args, executor, args.sequences.num_seqs, [&](NoMemory, int32_t worker, int64_t n) {
    if (args.sequences.length(n) != 0) return;
    const Row row{static_cast<int32_t>(n), 0, 0, summary ? Work::kSummarize : Work::kEmit, -1, -1, -1};
    for (int32_t head = 0; head < problem.heads_v; ++head)
      for (int32_t p = 0; p < all; ++p)  // one panel at a time: scratch is sized for one tile
        kernels.stages->run_segment(args, {row, head, {p, 1}, 0}, args.scratch + worker * args.scratch_bytes);
  });
}

}  // namespace deltarelay::cpu
