#include "kernels/reference/tokens.h"

#include <cmath>

#include "problem/number.h"

namespace deltarelay::reference {
namespace {

void normalise(int32_t dk, double* x) {
  double sum = 0.0;
  for (int32_t i = 0; i < dk; ++i) sum += x[i] * x[i];
  const double factor = 1.0 / std::sqrt(sum + static_cast<double>(kL2NormEpsilon));
  for (int32_t i = 0; i < dk; ++i) x[i] *= factor;
}

}  // namespace

void TokenReader::seek(int64_t sequence, int32_t head) {
  sequence_ = sequence;
  head_ = head;
  gate_ = Gate{};
  gate_.form = p_.gate_form;
  gate_.lower_bound = p_.lower_bound;
  if (p_.gate_floor < 0.0f) gate_.floor = p_.gate_floor;
  const bool given = p_.raw_gate() && args_.tensors.a_log != nullptr;  // other gate forms ignore a_log
  if (given) gate_.a = std::exp(load_as_double(args_.tensors.a_log, p_.dtype_a_log, head));
}

void TokenReader::load_key_row(const void* data, const Strides& s, int64_t t, double* row) const {
  load_as_double(data, p_.dtype, element(s, t, head_ / p_.group()), p_.dk, row);
  if (p_.l2norm) normalise(p_.dk, row);
}

void TokenReader::load_q(int64_t t, double* q) const { load_key_row(args_.tensors.q, p_.q, t, q); }

void TokenReader::load_k(int64_t t, double* k) const { load_key_row(args_.tensors.k, p_.k, t, k); }

void TokenReader::load_v(int64_t t, int32_t first, int32_t count, double* v) const {
  load_as_double(args_.tensors.v, p_.dtype, element(p_.v, t) + first, count, v);
}

void TokenReader::load_log_decays(int64_t t, double* g) const {
  const void* dt_bias = p_.raw_gate() ? args_.tensors.dt_bias : nullptr;
  const int32_t count = gates();
  load_as_double(args_.tensors.g, p_.dtype_gate, element(p_.g, t), count, g);
  for (int32_t i = 0; i < count; ++i) {
    const int64_t at = static_cast<int64_t>(head_) * count + i;
    g[i] = log_decay(gate_, g[i], dt_bias != nullptr ? load_as_double(dt_bias, p_.dtype_dt_bias, at) : 0.0);
  }
}

double TokenReader::load_beta(int64_t t) const {
  return write_strength(p_.beta_form, load_as_double(args_.tensors.beta, p_.dtype_beta, element(p_.beta, t)));
}

}  // namespace deltarelay::reference
