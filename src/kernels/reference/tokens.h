// Reads the tokens of one value head in double, activated: normalised q and k, log-decays, write strengths.
#pragma once
#include <cstdint>

#include "kernels/reference/activation.h"
#include "kernels/stages.h"

namespace deltarelay::reference {

class TokenReader {
 public:
  explicit TokenReader(const StageArgs& args) : args_(args), p_(args.problem) {}

  // Selects the value head of a sequence that the functions below read. They count tokens from its start.
  void seek(int64_t sequence, int32_t head);

  void load_q(int64_t t, double* q) const;  // [DK]
  void load_k(int64_t t, double* k) const;  // [DK]
  // Value columns [first, first + count).
  void load_v(int64_t t, int32_t first, int32_t count, double* v) const;
  // Log-decays, natural logarithm: gates() of them.
  void load_log_decays(int64_t t, double* g) const;
  double load_beta(int64_t t) const;

  // Log-decays of a token: DK (KDA) or 1 (GDN).
  int32_t gates() const { return p_.rule == Rule::kKda ? p_.dk : 1; }
  // Element offset of token t of this head in v, o, g or beta.
  int64_t element(const Strides& s, int64_t t) const { return element(s, t, head_); }

 private:
  int64_t element(const Strides& s, int64_t t, int64_t head) const {
    return args_.sequences.start(sequence_, s) + t * s.token + head * s.head;
  }
  void load_key_row(const void* data, const Strides& s, int64_t t, double* row) const;

  const StageArgs& args_;
  const Problem& p_;
  int64_t sequence_ = 0;
  int32_t head_ = 0;
  Gate gate_;
};

}  // namespace deltarelay::reference
