// The definition: the token recurrence in double precision, in the symbols of docs/math.md. Every other backend is
// measured against it, so clarity comes before speed. Its one optimisation is that columns of S lie side by side.
#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/backend.h"
#include "kernels/reference/items.h"
#include "kernels/reference/panels.h"
#include "kernels/reference/stages.h"
#include "kernels/reference/states.h"
#include "kernels/reference/tokens.h"
#include "problem/number.h"
#include "problem/status.h"

namespace deltarelay {
namespace reference {
namespace {

constexpr int32_t kChunk = 64;
// Tokens activated at a time. Checkpoints lie at multiples of kTokens, so none falls between two of these groups.
constexpr int32_t kTokens = static_cast<int32_t>(kCheckpointAlignment);
// Value columns that advance together are a panel. This narrow one serves calls that ask for a few columns only.
constexpr int32_t kNarrowPanel = 8;

// One token of one head on W value columns. S is [DK, W].
//   S <- diag(exp(g)) S;   r = v - S^T k;   S <- S + beta k r^T;   o = scale * S^T q
template <int W>
void step(int32_t dk, double* __restrict S, const double* __restrict decay, const double* __restrict k,
          const double* __restrict q, const double* v, double beta, double scale, double* o) {
  double predicted[W] = {};
  for (int32_t i = 0; i < dk; ++i) {
    for (int32_t c = 0; c < W; ++c) {
      S[i * W + c] *= decay[i];
      predicted[c] += S[i * W + c] * k[i];
    }
  }
  double write[W];
  for (int32_t c = 0; c < W; ++c) write[c] = beta * (v[c] - predicted[c]);
  double read[W] = {};
  for (int32_t i = 0; i < dk; ++i) {
    for (int32_t c = 0; c < W; ++c) {
      S[i * W + c] += k[i] * write[c];
      read[c] += S[i * W + c] * q[i];
    }
  }
  for (int32_t c = 0; c < W; ++c) o[c] = scale * read[c];
}

// Up to kTokens activated tokens of one head.
struct Tokens {
  double* q;      // [kTokens, DK]
  double* k;      // [kTokens, DK]
  double* decay;  // [kTokens, DK]
  double beta[kTokens];
};

// Value columns [first, first + count) of the requested ones, for one head of one sequence.
struct Item {
  int64_t sequence;
  int32_t head;
  int32_t first;
  int32_t count;
};

class Worker {
 public:
  Worker(const StageArgs& args, int32_t worker)
      : args_(args),
        p_(args.problem),
        reader_(args),
        checkpoints_(args.problem, args.tensors, args.sequences),
        all_columns_(args.columns == nullptr) {
    auto* memory = reinterpret_cast<double*>(args.scratch + static_cast<size_t>(worker) * args.scratch_bytes);
    tokens_.q = memory;
    tokens_.k = tokens_.q + kTokens * p_.dk;
    tokens_.decay = tokens_.k + kTokens * p_.dk;
    state_ = tokens_.decay + kTokens * p_.dk;
  }

  void run(const Item& item) {
    if (item.count <= kNarrowPanel) {
      run<kNarrowPanel>(item);
    } else {
      run<kPanel>(item);
    }
  }

  static size_t scratch_doubles(const Problem& p) {
    const int32_t panels = (p.dv + kPanel - 1) / kPanel;
    return static_cast<size_t>(p.dk) * static_cast<size_t>(3 * kTokens + panels * kPanel);
  }

 private:
  template <int W>
  void run(const Item& item) {
    const int64_t length = args_.sequences.length(item.sequence);
    reader_.seek(item.sequence, item.head);
    load_initial<W>(item);
    if (p_.checkpoints != Checkpoints::kNone) checkpoints_.seek(item.sequence);
    int64_t next_checkpoint = 0;
    for (int64_t t = 0;; t += kTokens) {
      for (; next_checkpoint < checkpoints_.count() && checkpoints_.position(next_checkpoint) <= t; ++next_checkpoint) {
        const int64_t row = checkpoints_.first() + next_checkpoint;
        store_state<W>(item, p_.checkpoint, args_.tensors.checkpoint,
                       slot_of(p_.checkpoint, args_.tensors.checkpoint_index, row));
      }
      if (t >= length) break;
      const auto count = static_cast<int32_t>(std::min<int64_t>(kTokens, length - t));
      activate(t, count);
      for (int32_t panel = 0; panel * W < item.count; ++panel) advance<W>(item, panel, t, count);
    }
    store_state<W>(item, p_.final, args_.tensors.final, slot_of(p_.final, args_.tensors.final_index, item.sequence));
  }

  int32_t column(int32_t chosen) const { return all_columns_ ? chosen : args_.columns[chosen]; }

  // Fills tokens_ with q, k, decays and write strengths of `count` tokens, the first at `t`.
  void activate(int64_t t, int32_t count) {
    const int32_t dk = p_.dk;
    const int32_t gates = reader_.gates();
    for (int32_t j = 0; j < count; ++j) {
      double* decay = tokens_.decay + j * dk;
      reader_.load_q(t + j, tokens_.q + j * dk);
      reader_.load_k(t + j, tokens_.k + j * dk);
      reader_.load_log_decays(t + j, decay);
      for (int32_t i = 0; i < gates; ++i) decay[i] = std::exp(decay[i]);
      if (gates == 1) std::fill(decay + 1, decay + dk, decay[0]);
      tokens_.beta[j] = reader_.load_beta(t + j);
    }
  }

  // Advances one panel of columns by the activated tokens.
  template <int W>
  void advance(const Item& item, int32_t panel, int64_t t, int32_t count) {
    const int32_t used = std::min<int32_t>(W, item.count - panel * W);
    const int32_t first = item.first + panel * W;
    const auto scale = static_cast<double>(p_.scale);
    double* S = state_ + static_cast<int64_t>(panel) * p_.dk * W;
    double v[W] = {};
    double o[W];
    for (int32_t j = 0; j < count; ++j) {
      const int64_t at_v = reader_.element(p_.v, t + j);
      const int64_t at_o = reader_.element(p_.o, t + j);
      for (int32_t c = 0; c < used; ++c) v[c] = load_as_double(args_.tensors.v, p_.dtype, at_v + column(first + c));
      const int64_t row = static_cast<int64_t>(j) * p_.dk;
      step<W>(p_.dk, S, tokens_.decay + row, tokens_.k + row, tokens_.q + row, v, tokens_.beta[j], scale, o);
      for (int32_t c = 0; c < used; ++c) store_double(args_.tensors.o, p_.dtype_o, at_o + column(first + c), o[c]);
    }
  }

  template <int W>
  void load_initial(const Item& item) {
    const int32_t panels = (item.count + W - 1) / W;
    std::fill(state_, state_ + static_cast<int64_t>(panels) * p_.dk * W, 0.0);
    const int64_t slot = slot_of(p_.initial, args_.tensors.initial_index, item.sequence);
    if (slot < 0 || (p_.initial_mask && args_.tensors.has_initial[item.sequence] == 0)) return;
    for (int32_t c = 0; c < item.count; ++c) {
      for (int32_t i = 0; i < p_.dk; ++i) {
        const int64_t at = element_of(p_.initial, slot, item.head, p_.dk, p_.dv, i, column(item.first + c));
        state<W>(i, c) = load_as_double(args_.tensors.initial, p_.initial.dtype, at);
      }
    }
  }

  template <int W>
  void store_state(const Item& item, const StatePool& pool, void* data, int64_t slot) {
    if (slot < 0) return;
    for (int32_t c = 0; c < item.count; ++c) {
      for (int32_t i = 0; i < p_.dk; ++i) {
        const int64_t at = element_of(pool, slot, item.head, p_.dk, p_.dv, i, column(item.first + c));
        store_double(data, pool.dtype, at, state<W>(i, c));
      }
    }
  }

  template <int W>
  double& state(int32_t i, int32_t c) {
    return state_[(static_cast<int64_t>(c / W) * p_.dk + i) * W + c % W];
  }

  const StageArgs& args_;
  const Problem& p_;
  TokenReader reader_;
  CheckpointRows checkpoints_;
  bool all_columns_;
  Tokens tokens_;
  double* state_;  // [panel, DK, W]
};

int32_t chosen_columns(const StageArgs& args) { return args.columns != nullptr ? args.num_columns : args.problem.dv; }

// Takes whole sequences only. A cut would round the state to fp32 in a slot, and the result would no longer be the
// definition. The planner does not cut for this backend.
void run_rows(const StageArgs& args, const Row* rows, int64_t count, Executor& executor) {
  for (const Row* row = rows; row != rows + count; ++row) {
    if (row->work != Work::kEmit || row->begin != 0 || row->slot_in >= 0 || row->slot_out >= 0) {
      throw Error(DR_INTERNAL,
                  "reference backend: expected rows that are whole sequences, found a segment of sequence " +
                      std::to_string(row->sequence));
    }
  }
  const int64_t heads = args.problem.heads_v;
  const int64_t tiles = std::max(1, args.tiling.value_tiles);
  const int64_t panels = (chosen_columns(args) + kPanel - 1) / kPanel;
  for_each<Worker>(args, count * heads * tiles, executor, [&](Worker& worker, int64_t i) {
    const int64_t tile = i % tiles;
    const auto head = static_cast<int32_t>(i / tiles % heads);
    const auto first = static_cast<int32_t>(panels * tile / tiles * kPanel);
    const auto last =
        static_cast<int32_t>(std::min<int64_t>(panels * (tile + 1) / tiles * kPanel, chosen_columns(args)));
    if (first < last) worker.run(Item{rows[i / tiles / heads].sequence, head, first, last - first});
  });
}

void run_folds(const StageArgs&, const Fold*, int64_t count, Executor&) {
  if (count != 0) throw Error(DR_INTERNAL, "reference backend: expected no folds, found " + std::to_string(count));
}

// Sets the rows of o that belong to no sequence to zero. Copies the initial state of an empty sequence to its final
// state.
void finish(const StageArgs& args, Executor& executor) {
  const Problem& p = args.problem;
  const int32_t columns = chosen_columns(args);
  const int64_t heads = p.heads_v;
  for_each<Worker>(args, args.sequences.num_seqs * heads, executor, [&](Worker& worker, int64_t i) {
    const int64_t sequence = i / heads;
    if (args.sequences.length(sequence) == 0) worker.run(Item{sequence, static_cast<int32_t>(i % heads), 0, columns});
  });
  if (args.sequences.seq_len > 0) return;
  const int64_t end = args.sequences.num_seqs > 0 ? args.sequences.offsets[args.sequences.num_seqs] : 0;
  for_each<Worker>(args, p.num_tokens - end, executor, [&](Worker&, int64_t i) {
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t at = (end + i) * p.o.token + head * p.o.head;
      for (int32_t c = 0; c < columns; ++c) {
        store_double(args.tensors.o, p.dtype_o, at + (args.columns != nullptr ? args.columns[c] : c), 0.0);
      }
    }
  });
}

std::string decline(const Problem& problem, const Request& request) {
  if (problem.op != Op::kForward && request.num_columns > 0)
    return std::string("columns: a stage computes all value columns, found a list of ") +
           std::to_string(request.num_columns);
  if (request.device_kind != DR_DEVICE_CPU) return "device: the reference runs on a CPU, found another kind of device";
  if (request.cut) return "segments: the reference computes every sequence whole, found a forced cut";
  if (request.isa != nullptr) return std::string("isa: the reference has no instruction sets, found ") + request.isa;
  if (request.variant != nullptr) return std::string("variant: the reference has none, found ") + request.variant;
  if (request.math != DR_MATH_DEFAULT) return "math: the reference computes in double, found tf32";
  return {};
}

// The token recurrence in double against the chunk form in fp32 on the same core: 76,000 and 527,000 token-heads/s at
// 128. No part of a token's time is shared by value columns. Without transitions no sequence is cut.
Variants variants(const Problem& problem, const Request&) {
  Variant v;
  v.chunk = is_stage(problem.op) ? std::max(1, problem.chunks.chunk) : kChunk;  // in a carry a summary
  v.panel_columns = kPanel;
  v.costs = {.walk = 7, .has_local = false};
  Variants list;
  list.add(v);
  return list;
}

size_t scratch_bytes(const Problem& problem, const Variant&, int32_t) {
  if (is_stage(problem.op)) return stage_scratch_bytes(problem);
  const size_t bytes = Worker::scratch_doubles(problem) * sizeof(double);
  return round_up(bytes, kWorkspaceAlignment);
}

void run(const StageArgs& args, const TableView& table, const Step& step, Executor& executor) {
  switch (step.stage) {
    case Stage::kWalk:
      if (step.phase == 1)
        run_rows(args, table.rows1, table.num_rows1, executor);
      else
        run_rows(args, table.rows3, table.num_rows3, executor);
      break;
    case Stage::kCarry:
      run_folds(args, table.folds, table.num_folds, executor);
      break;
    case Stage::kFinish:
      finish(args, executor);
      break;
    default:
      run_stage(args, executor);
  }
}

}  // namespace
}  // namespace reference

const Backend kReferenceBackend{.name = "reference",
                                .decline = reference::decline,
                                .variants = reference::variants,
                                .scratch_bytes = reference::scratch_bytes,
                                .run = reference::run};

}  // namespace deltarelay
