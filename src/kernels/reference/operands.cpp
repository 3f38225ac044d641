#include "kernels/reference/operands.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/reference/panels.h"
#include "problem/number.h"

namespace deltarelay::reference {
namespace {

// inverse = (I + Akk)^-1 by forward substitution. Reads Akk below its diagonal, writes the inverse up to its diagonal.
void invert_unit_lower(int32_t count, int32_t stride, const double* akk, double* inverse) {
  for (int32_t i = 0; i < count; ++i) {
    double* row = inverse + i * stride;
    std::fill(row, row + i, 0.0);
    row[i] = 1.0;
    for (int32_t l = 0; l < i; ++l) {
      for (int32_t j = 0; j <= l; ++j) row[j] -= akk[i * stride + l] * inverse[l * stride + j];
    }
  }
}

}  // namespace

int64_t Operands::element(int32_t i, int32_t width) const {
  const int64_t token = first_token(args_.sequences, chunk_.sequence) + chunk_.begin + i;
  return (token * p_.heads_v + head_) * width;
}

void Operands::exponentials(const double* logs, double* decays) const {
  const int32_t gates = reader_.gates();
  for (int32_t c = 0; c < gates; ++c) decays[c] = std::exp(logs[c]);
  if (gates == 1) std::fill(decays + 1, decays + p_.dk, decays[0]);
}

void Operands::load(const Chunk& chunk, int32_t head) {
  chunk_ = chunk;
  head_ = head;
  reader_.seek(chunk.sequence, head);
  for (int32_t i = 0; i < chunk.count; ++i) {
    const int64_t t = chunk.begin + i;
    if (reads_.q) reader_.load_q(t, x_.q + i * p_.dk);
    if (reads_.k) reader_.load_k(t, x_.k + i * p_.dk);
    if (reads_.beta) x_.beta[i] = reader_.load_beta(t);
  }
  if (reads_.g || p_.chunks.gives(DR_GATE_SUMS)) load_logs();
}

// From gates every logarithm is a sum of gates, which is at most 0 and may be -infinity. Given sums are finite, so
// differences of them are safe. A step between two of them may be above 0 by their rounding. It is not limited to 0:
// steps then add up to the difference between any two tokens, while limited ones would drift from it.
void Operands::load_logs() {
  const int32_t gates = reader_.gates();
  const int32_t count = chunk_.count;
  const bool given = p_.chunks.gives(DR_GATE_SUMS);
  const double unit = p_.chunks.sums_base_2 ? std::numbers::ln2 : 1.0;
  for (int32_t i = 0; i < count; ++i) {
    double* sum = x_.sum + i * gates;
    double* step = x_.step + i * gates;
    if (given) {
      load_as_double(args_.tensors.intermediates->gate_sums, DType::kFp32, element(i, gates), gates, sum);
    } else {
      reader_.load_log_decays(chunk_.begin + i, step);
    }
    for (int32_t c = 0; c < gates; ++c) {
      const double before = i > 0 ? sum[c - gates] : 0.0;
      if (given) {
        sum[c] *= unit;
        step[c] = sum[c] - before;
      } else {
        sum[c] = before + step[c];
      }
    }
  }
  const double* last = x_.sum + (count - 1) * gates;
  for (int32_t i = count - 1; i >= 0; --i) {
    double* rest = x_.rest + i * gates;
    for (int32_t c = 0; c < gates; ++c) {
      if (i == count - 1) {
        rest[c] = 0.0;
      } else if (given) {
        rest[c] = last[c] - x_.sum[i * gates + c];
      } else {
        rest[c] = rest[c + gates] + x_.step[(i + 1) * gates + c];
      }
    }
  }
}

// Keys are decayed from token to token, by exp of one gate at a time. A product of them is the exp of the sum of these
// gates, and a gate of -infinity makes it 0.
void Operands::find_scores(const double* rows, double* scores) {
  const int32_t dk = p_.dk;
  const int32_t stride = p_.chunks.chunk;
  for (int32_t i = 0; i < chunk_.count; ++i) {
    double* score = scores + i * stride;
    std::fill(score, score + i + 1, 0.0);
    exponentials(x_.step + i * reader_.gates(), x_.decay);
    for (int32_t c = 0; c < dk; ++c) {
      double* keys = x_.keys + c * stride;
      const double factor = rows[i * dk + c];
      for (int32_t j = 0; j < i; ++j) {
        keys[j] *= x_.decay[c];
        score[j] += factor * keys[j];
      }
      keys[i] = x_.k[i * dk + c];
      score[i] += factor * keys[i];
    }
  }
}

void Operands::find_inverse() {
  const int32_t stride = p_.chunks.chunk;
  if (p_.chunks.gives(DR_INVERSE)) {
    for (int32_t i = 0; i < chunk_.count; ++i) {
      load_as_double(args_.tensors.intermediates->inverse, p_.chunks.dtype, element(i, stride), i + 1,
                     x_.inverse + i * stride);
    }
    return;
  }
  find_scores(x_.k, x_.kk);
  for (int32_t i = 0; i < chunk_.count; ++i) {
    for (int32_t j = 0; j < i; ++j) x_.kk[i * stride + j] *= x_.beta[i];
  }
  invert_unit_lower(chunk_.count, stride, x_.kk, x_.inverse);
}

void Operands::find_aqk() {
  const int32_t stride = p_.chunks.chunk;
  if (p_.chunks.gives(DR_AQK)) {
    for (int32_t i = 0; i < chunk_.count; ++i) {
      load_as_double(args_.tensors.intermediates->aqk, p_.chunks.dtype, element(i, stride), i + 1, x_.aqk + i * stride);
    }
    return;
  }
  find_scores(x_.q, x_.aqk);
  for (int32_t i = 0; i < chunk_.count; ++i) {
    for (int32_t j = 0; j <= i; ++j) x_.aqk[i * stride + j] *= static_cast<double>(p_.scale);
  }
}

void Operands::find_w() {
  const int32_t dk = p_.dk;
  if (p_.chunks.gives(DR_W)) {
    load_rows(args_.tensors.intermediates->w, dk, 0, dk, x_.w, dk);
    return;
  }
  for (int32_t i = 0; i < chunk_.count; ++i) {
    double* from_start = x_.rows + i * dk;
    exponentials(x_.sum + i * reader_.gates(), from_start);
    for (int32_t c = 0; c < dk; ++c) from_start[c] *= x_.beta[i] * x_.k[i * dk + c];
    double* w = x_.w + i * dk;
    std::fill(w, w + dk, 0.0);
    for (int32_t j = 0; j <= i; ++j) {
      const double factor = x_.inverse[i * p_.chunks.chunk + j];
      for (int32_t c = 0; c < dk; ++c) w[c] += factor * x_.rows[j * dk + c];
    }
  }
}

void Operands::find_u(int32_t first, int32_t used, double* panel) {
  std::fill(panel, panel + chunk_.count * kPanel, 0.0);
  if (used <= 0) return;
  if (p_.chunks.gives(DR_U)) {
    load_rows(args_.tensors.intermediates->u, p_.dv, first, used, panel, kPanel);
    return;
  }
  std::fill(x_.rows, x_.rows + chunk_.count * kPanel, 0.0);
  for (int32_t i = 0; i < chunk_.count; ++i) {
    double* row = x_.rows + i * kPanel;
    reader_.load_v(chunk_.begin + i, first, used, row);
    for (int32_t c = 0; c < used; ++c) row[c] *= x_.beta[i];
  }
  multiply_add_lower(chunk_.count, 1.0, x_.inverse, p_.chunks.chunk, x_.rows, panel);
}

void Operands::find_k_to_end() {
  const int32_t dk = p_.dk;
  if (p_.chunks.gives(DR_K_TO_END)) {
    load_rows(args_.tensors.intermediates->k_to_end, dk, 0, dk, x_.k_to_end, dk);
    return;
  }
  for (int32_t i = 0; i < chunk_.count; ++i) {
    double* row = x_.k_to_end + i * dk;
    exponentials(x_.rest + i * reader_.gates(), row);
    for (int32_t c = 0; c < dk; ++c) row[c] *= x_.k[i * dk + c];
  }
}

void Operands::find_q_from_start() {
  const int32_t dk = p_.dk;
  if (p_.chunks.gives(DR_Q_FROM_START)) {
    load_rows(args_.tensors.intermediates->q_from_start, dk, 0, dk, x_.q_from_start, dk);
    return;
  }
  for (int32_t i = 0; i < chunk_.count; ++i) {
    double* row = x_.q_from_start + i * dk;
    exponentials(x_.sum + i * reader_.gates(), row);
    for (int32_t c = 0; c < dk; ++c) row[c] *= x_.q[i * dk + c];
  }
}

void Operands::find_chunk_decay() { exponentials(x_.sum + (chunk_.count - 1) * reader_.gates(), x_.decay); }

void Operands::load_rows(const void* data, int32_t width, int32_t first, int32_t count, double* rows,
                         int32_t stride) const {
  for (int32_t i = 0; i < chunk_.count; ++i)
    load_as_double(data, p_.chunks.dtype, element(i, width) + first, count, rows + i * stride);
}

void Operands::store_rows(void* data, int32_t width, int32_t first, int32_t count, const double* rows,
                          int32_t stride) const {
  for (int32_t i = 0; i < chunk_.count; ++i) {
    const int64_t at = element(i, width) + first;
    for (int32_t c = 0; c < count; ++c) store_double(data, p_.chunks.dtype, at + c, rows[i * stride + c]);
  }
}

void Operands::store_gate_sums() const {
  const int32_t gates = reader_.gates();
  const double unit = p_.chunks.sums_base_2 ? std::numbers::log2e : 1.0;
  float* sums = static_cast<float*>(args_.tensors.intermediates->gate_sums);
  for (int32_t i = 0; i < chunk_.count; ++i) {
    for (int32_t c = 0; c < gates; ++c) sums[element(i, gates) + c] = static_cast<float>(unit * x_.sum[i * gates + c]);
  }
}

void Operands::store_lower(void* data, const double* rows) const {
  const int32_t width = p_.chunks.chunk;
  for (int32_t i = 0; i < chunk_.count; ++i) {
    for (int32_t j = 0; j < width; ++j)
      store_double(data, p_.chunks.dtype, element(i, width) + j, j <= i ? rows[i * width + j] : 0.0);
  }
}

}  // namespace deltarelay::reference
