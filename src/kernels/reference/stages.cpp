#include "kernels/reference/stages.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/reference/items.h"
#include "kernels/reference/operands.h"
#include "kernels/reference/state_panels.h"
#include "kernels/written_rows.h"
#include "problem/status.h"

namespace deltarelay::reference {
namespace {

// Panels of the state of one head of one sequence.
struct Panels {
  int64_t sequence;
  int32_t head;
  int32_t first_panel;
  int32_t num_panels;
};

class StageWorker {
 public:
  StageWorker(const StageArgs& args, int32_t worker)
      : args_(args),
        p_(args.problem),
        tensors_(*args.tensors.intermediates),
        x_(args.problem, args.scratch + static_cast<size_t>(worker) * args.scratch_bytes),
        rows_(args.sequences, args.problem.chunks.chunk),
        operands_(args, x_),
        state_(x_.state, args.problem.dk) {}

  void chunk_local(int64_t row, int32_t head);
  void outputs(int64_t row, int32_t head);
  void pass_state(const Panels& item);
  void summarize(const Panels& item);
  void carry(const Panels& item);
  void compose(const Panels& item);

 private:
  void walk(const Panels& item);
  void fold(int64_t row, int32_t head);

  const StageArgs& args_;
  const Problem& p_;
  const dr_intermediates& tensors_;
  const StageScratch x_;
  ChunkRows rows_;
  Operands operands_;
  StatePanels state_;
};

void StageWorker::chunk_local(int64_t row, int32_t head) {
  const Chunks& c = p_.chunks;
  const int32_t dk = p_.dk;
  operands_.load(rows_.at(row), head);
  if (c.wants(DR_GATE_SUMS)) operands_.store_gate_sums();
  if (c.wants(DR_AQK)) {
    operands_.find_aqk();
    operands_.store_lower(tensors_.aqk, x_.aqk);
  }
  if (c.wants(DR_INVERSE | DR_W | DR_U)) operands_.find_inverse();
  if (c.wants(DR_INVERSE)) operands_.store_lower(tensors_.inverse, x_.inverse);
  if (c.wants(DR_W)) {
    operands_.find_w();
    operands_.store_rows(tensors_.w, dk, 0, dk, x_.w, dk);
  }
  if (c.wants(DR_U)) {
    for (int32_t first = 0; first < p_.dv; first += kPanel) {
      const int32_t used = std::min(kPanel, p_.dv - first);
      operands_.find_u(first, used, x_.values);
      operands_.store_rows(tensors_.u, p_.dv, first, used, x_.values, kPanel);
    }
  }
  if (c.wants(DR_K_TO_END)) {
    operands_.find_k_to_end();
    operands_.store_rows(tensors_.k_to_end, dk, 0, dk, x_.k_to_end, dk);
  }
  if (c.wants(DR_Q_FROM_START)) {
    operands_.find_q_from_start();
    operands_.store_rows(tensors_.q_from_start, dk, 0, dk, x_.q_from_start, dk);
  }
}

// o = scale q_from_start S + Aqk V_new
void StageWorker::outputs(int64_t row, int32_t head) {
  const Chunk chunk = rows_.at(row);
  const int32_t dk = p_.dk;
  operands_.load(chunk, head);
  operands_.find_aqk();
  operands_.find_q_from_start();
  double* v_new = x_.rows;
  double* o = x_.values;
  for (int32_t panel = 0; panel < panels_of(p_.dv); ++panel) {
    const int32_t first = panel * kPanel;
    const int32_t used = std::min(kPanel, p_.dv - first);
    state_.reset(p_.dv, panel, 1);
    state_.load(tensors_.states, state_row(p_, row, head));
    std::fill(v_new, v_new + chunk.count * kPanel, 0.0);
    std::fill(o, o + chunk.count * kPanel, 0.0);
    operands_.load_rows(tensors_.v_new, p_.dv, first, used, v_new, kPanel);
    multiply_add(chunk.count, dk, static_cast<double>(p_.scale), x_.q_from_start, dk, state_.panel(0), o);
    multiply_add_lower(chunk.count, 1.0, x_.aqk, p_.chunks.chunk, v_new, o);
    for (int32_t i = 0; i < chunk.count; ++i) {
      const int64_t at = operands_.reader().element(p_.o, chunk.begin + i) + first;
      for (int32_t c = 0; c < used; ++c) store_double(args_.tensors.o, p_.dtype_o, at + c, o[i * kPanel + c]);
    }
  }
}

void StageWorker::pass_state(const Panels& item) {
  state_.reset(p_.dv, item.first_panel, item.num_panels);
  state_.load(args_.tensors.initial, initial_of(args_, item.sequence, item.head));
  walk(item);
  state_.store(args_.tensors.final, final_of(args_, item.sequence, item.head));
}

// The recurrence on the columns [0 | I] with values [U | 0]: they end as [B | M].
void StageWorker::summarize(const Panels& item) {
  state_.reset(p_.dv + p_.dk, item.first_panel, item.num_panels);
  state_.set_unit(p_.dv);
  walk(item);
  state_.store(tensors_.summaries, summary_row(p_, item.sequence, item.head));
}

// Chunk after chunk: V_new = U - W S;   S <- diag(exp(G_last)) S + k_to_end^T V_new
void StageWorker::walk(const Panels& item) {
  const int32_t dk = p_.dk;
  const int64_t first_row = rows_.first(item.sequence);
  for (int64_t i = 0; i < rows_.chunks(item.sequence); ++i) {
    const Chunk chunk = rows_.chunk(i);
    if (p_.chunks.wants(DR_STATES)) state_.store(tensors_.states, state_row(p_, first_row + i, item.head));
    operands_.load(chunk, item.head);
    if (!p_.chunks.gives(DR_W | DR_U)) operands_.find_inverse();
    operands_.find_w();
    operands_.find_k_to_end();
    operands_.find_chunk_decay();
    for (int32_t t = 0; t < chunk.count; ++t) {
      for (int32_t c = 0; c < dk; ++c) x_.keys[c * p_.chunks.chunk + t] = x_.k_to_end[t * dk + c];
    }
    double* v_new = x_.values;
    for (int32_t panel = 0; panel < state_.count(); ++panel) {
      const int32_t first = state_.column(panel);
      const int32_t used = std::clamp(p_.dv - first, 0, kPanel);
      double* state = state_.panel(panel);
      operands_.find_u(first, used, v_new);
      multiply_add(chunk.count, dk, -1.0, x_.w, dk, state, v_new);
      if (p_.chunks.wants(DR_V_NEW)) operands_.store_rows(tensors_.v_new, p_.dv, first, used, v_new, kPanel);
      for (int32_t c = 0; c < dk; ++c) {
        for (int32_t j = 0; j < kPanel; ++j) state[c * kPanel + j] *= x_.decay[c];
      }
      multiply_add(dk, chunk.count, 1.0, x_.keys, p_.chunks.chunk, v_new, state);
    }
  }
}

void StageWorker::carry(const Panels& item) {
  state_.reset(p_.dv, item.first_panel, item.num_panels);
  state_.load(args_.tensors.initial, initial_of(args_, item.sequence, item.head));
  const int64_t end = first_token(args_.sequences, item.sequence + 1);
  for (int64_t row = first_token(args_.sequences, item.sequence); row < end; ++row) {
    if (p_.chunks.wants(DR_STATES)) state_.store(tensors_.states, state_row(p_, row, item.head));
    fold(row, item.head);
  }
  state_.store(args_.tensors.final, final_of(args_, item.sequence, item.head));
}

// The same fold on the columns [0 | I]: they end as the summary of the chain.
void StageWorker::compose(const Panels& item) {
  state_.reset(p_.dv + p_.dk, item.first_panel, item.num_panels);
  state_.set_unit(p_.dv);
  const int64_t end = first_token(args_.sequences, item.sequence + 1);
  for (int64_t row = first_token(args_.sequences, item.sequence); row < end; ++row) fold(row, item.head);
  state_.store(tensors_.composed, summary_row(p_, item.sequence, item.head));
}

// S <- M S + B with the summary in row `row`; columns from DV on have no B.
void StageWorker::fold(int64_t row, int32_t head) {
  const int32_t dk = p_.dk;
  const float* b = static_cast<const float*>(tensors_.summaries) + summary_row(p_, row, head).base;  // [DV, DK]
  const float* m = b + int64_t{p_.dv} * dk;                                                          // [DK, DK]
  for (int32_t i = 0; i < dk; ++i) {
    for (int32_t j = 0; j < dk; ++j) x_.transition[i * dk + j] = static_cast<double>(m[j * dk + i]);
  }
  for (int32_t panel = 0; panel < state_.count(); ++panel) {
    const int32_t first = state_.column(panel);
    const int32_t used = std::clamp(p_.dv - first, 0, kPanel);
    double* state = state_.panel(panel);
    std::fill(x_.next, x_.next + dk * kPanel, 0.0);
    for (int32_t c = 0; c < used; ++c) {
      for (int32_t i = 0; i < dk; ++i) x_.next[i * kPanel + c] = static_cast<double>(b[(first + c) * dk + i]);
    }
    multiply_add(dk, dk, 1.0, x_.transition, dk, state, x_.next);
    std::copy(x_.next, x_.next + dk * kPanel, state);
  }
}

// Runs `stage` on every chunk and head.
void for_chunks(const StageArgs& args, Executor& executor, void (StageWorker::*stage)(int64_t, int32_t)) {
  const int64_t heads = args.problem.heads_v;
  const int64_t rows = ChunkRows::count(args.sequences, args.problem.chunks.chunk);
  for_each<StageWorker>(args, rows * heads, executor, [heads, stage](StageWorker& worker, int64_t i) {
    (worker.*stage)(i / heads, static_cast<int32_t>(i % heads));
  });
}

// Runs `stage` on every sequence and head, and on every tile of a state of that many columns.
void for_states(const StageArgs& args, Executor& executor, int32_t columns, void (StageWorker::*stage)(const Panels&)) {
  const int64_t heads = args.problem.heads_v;
  const int32_t panels = panels_of(columns);
  const int32_t tiles = std::clamp(args.tiling.value_tiles, 1, panels);
  for_each<StageWorker>(args, args.sequences.num_seqs * heads * tiles, executor, [&](StageWorker& worker, int64_t i) {
    const auto tile = static_cast<int32_t>(i % tiles);
    const int32_t first = panels * tile / tiles;
    const int32_t count = panels * (tile + 1) / tiles - first;
    (worker.*stage)(Panels{i / tiles / heads, static_cast<int32_t>(i / tiles % heads), first, count});
  });
}

// Sets what the call writes for tokens behind the last sequence to zero, whose bits are zero in every type.
void zero_rest(const StageArgs& args) {
  const Problem& p = args.problem;
  if (args.sequences.seq_len > 0) return;
  const WrittenTensors written = written_tensors(p, args.tensors);
  for (int64_t t = first_token(args.sequences, args.sequences.num_seqs); t < p.num_tokens; ++t) {
    for (const WrittenRows& rows : written)
      for (int64_t head = 0; head < p.heads_v; ++head)
        std::memset(static_cast<std::byte*>(rows.data) + t * rows.token_bytes + head * rows.head_bytes, 0,
                    static_cast<size_t>(rows.width_bytes));
  }
}

}  // namespace

void run_stage(const StageArgs& args, Executor& executor) {
  const Problem& p = args.problem;
  switch (p.op) {
    case Op::kChunkLocal:
      for_chunks(args, executor, &StageWorker::chunk_local);
      break;
    case Op::kStatePass:
      for_states(args, executor, p.dv, &StageWorker::pass_state);
      break;
    case Op::kOutputs:
      for_chunks(args, executor, &StageWorker::outputs);
      break;
    case Op::kSummary:
      for_states(args, executor, p.dv + p.dk, &StageWorker::summarize);
      break;
    case Op::kCarry:
      if (p.chunks.wants(DR_STATES) || p.final.used()) for_states(args, executor, p.dv, &StageWorker::carry);
      if (p.chunks.wants(DR_COMPOSED)) for_states(args, executor, p.dv + p.dk, &StageWorker::compose);
      break;
    default:
      throw Error(DR_INTERNAL, std::string("reference backend: expected a stage, found ") + name_of(p.op));
  }
  zero_rest(args);
}

size_t stage_scratch_bytes(const Problem& problem) { return StageScratch(problem, nullptr).bytes; }

}  // namespace deltarelay::reference
