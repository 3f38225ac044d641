// What a stage needs of one chunk of one value head: intermediates that are given, and those that it computes from the
// tokens. docs/math.md, "Chunk form", has the equations.
#pragma once
#include <cstdint>

#include "kernels/reference/chunk_rows.h"
#include "kernels/reference/stage_scratch.h"
#include "kernels/reference/tokens.h"

namespace deltarelay::reference {

class Operands {
 public:
  Operands(const StageArgs& args, const StageScratch& scratch)
      : args_(args), p_(args.problem), reads_(args.problem.reads()), reader_(args), x_(scratch) {}

  // Loads what the problem reads of the chunk: q, k, write strengths, log-decays. The functions below need it.
  void load(const Chunk& chunk, int32_t head);

  // Akk and its inverse, or the given inverse.
  void find_inverse();
  void find_aqk();
  void find_w();
  void find_k_to_end();
  void find_q_from_start();
  // exp(G_last), the decay of the whole chunk, in scratch.decay.
  void find_chunk_decay();
  // U of value columns [first, first + used) as a panel [C, kPanel] with zeros behind them. Unless U is given, it needs
  // the inverse.
  void find_u(int32_t first, int32_t used, double* panel);

  // Rows of the chunk in a contiguous tensor of tokens, [T, HV, width]: columns [first, first + count) of each.
  void load_rows(const void* data, int32_t width, int32_t first, int32_t count, double* rows, int32_t stride) const;
  void store_rows(void* data, int32_t width, int32_t first, int32_t count, const double* rows, int32_t stride) const;
  // Stores a lower triangular [C, C], with zeros above its diagonal and in columns that the chunk does not have.
  void store_lower(void* data, const double* rows) const;
  void store_gate_sums() const;

  const TokenReader& reader() const { return reader_; }

 private:
  void load_logs();
  // scores_ij = sum(rows_i k_j E_ij) for j <= i.
  void find_scores(const double* rows, double* scores);
  // Element of token i in a contiguous tensor [T, HV, width].
  int64_t element(int32_t i, int32_t width) const;
  // Decays of DK channels from the log-decays of one token.
  void exponentials(const double* logs, double* decays) const;

  const StageArgs& args_;
  const Problem& p_;
  const Reads reads_;
  TokenReader reader_;
  const StageScratch& x_;
  Chunk chunk_{};
  int32_t head_ = 0;
};

}  // namespace deltarelay::reference
