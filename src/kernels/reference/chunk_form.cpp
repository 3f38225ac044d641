#include "kernels/reference/chunk_form.h"

#include <cmath>

namespace deltarelay::reference {
namespace {

Matrix multiply(const Matrix& a, const Matrix& b) {
  Matrix c(a.rows(), b.columns());
  for (int64_t i = 0; i < a.rows(); ++i) {
    for (int64_t l = 0; l < a.columns(); ++l) {
      for (int64_t j = 0; j < b.columns(); ++j) c(i, j) += a(i, l) * b(l, j);
    }
  }
  return c;
}

// state <- diag(decay) state + keys^T values
void advance(const std::vector<double>& decay, const Matrix& keys, const Matrix& values, Matrix& state) {
  for (int64_t i = 0; i < state.rows(); ++i) {
    for (int64_t j = 0; j < state.columns(); ++j) {
      double sum = decay[static_cast<size_t>(i)] * state(i, j);
      for (int64_t t = 0; t < keys.rows(); ++t) sum += keys(t, i) * values(t, j);
      state(i, j) = sum;
    }
  }
}

// V_new = U - W S
Matrix corrected(const Matrix& u, const Matrix& w, const Matrix& state) {
  Matrix result = multiply(w, state);
  for (int64_t i = 0; i < result.rows(); ++i) {
    for (int64_t j = 0; j < result.columns(); ++j) result(i, j) = u(i, j) - result(i, j);
  }
  return result;
}

double gate(const HeadTokens& tokens, int64_t t, int64_t i) { return tokens.g(t, tokens.g.columns() == 1 ? 0 : i); }

// E_ij with j = after, i = t: exp of the sum of the gates of the tokens in (after, t].
double decay_between(const HeadTokens& tokens, int64_t after, int64_t t, int64_t i) {
  double sum = 0.0;
  for (int64_t s = after + 1; s <= t; ++s) sum += gate(tokens, s, i);
  return std::exp(sum);
}

// inverse = (I + Akk)^-1 for a strictly lower Akk, by forward substitution.
Matrix invert_unit_lower(const Matrix& akk) {
  Matrix inverse = Matrix::identity(akk.rows());
  for (int64_t i = 0; i < akk.rows(); ++i) {
    for (int64_t j = 0; j < i; ++j) {
      double sum = 0.0;
      for (int64_t l = j; l < i; ++l) sum += akk(i, l) * inverse(l, j);
      inverse(i, j) = -sum;
    }
  }
  return inverse;
}

}  // namespace

Matrix Matrix::identity(int64_t size) {
  Matrix result(size, size);
  for (int64_t i = 0; i < size; ++i) result(i, i) = 1.0;
  return result;
}

Prepared prepare(const HeadTokens& tokens, int64_t begin, int64_t count) {
  const int64_t dk = tokens.dk();
  const int64_t dv = tokens.dv();
  Prepared p;
  p.gate_sum = Matrix(count, dk);
  p.akk = Matrix(count, count);
  p.aqk = Matrix(count, count);
  p.q_from_start = Matrix(count, dk);
  p.k_to_end = Matrix(count, dk);
  p.decay_chunk.assign(static_cast<size_t>(dk), 1.0);

  Matrix beta_k(count, dk);  // beta * k_from_start
  Matrix beta_v(count, dv);  // beta * v
  for (int64_t i = 0; i < count; ++i) {
    const int64_t t = begin + i;
    const double beta = tokens.beta[static_cast<size_t>(t)];
    for (int64_t c = 0; c < dk; ++c) {
      p.gate_sum(i, c) = gate(tokens, t, c) + (i > 0 ? p.gate_sum(i - 1, c) : 0.0);
      const double from_start = std::exp(p.gate_sum(i, c));
      p.q_from_start(i, c) = tokens.scale * tokens.q(t, c) * from_start;
      beta_k(i, c) = beta * tokens.k(t, c) * from_start;
      p.k_to_end(i, c) = tokens.k(t, c) * decay_between(tokens, t, begin + count - 1, c);
    }
    for (int64_t c = 0; c < dv; ++c) beta_v(i, c) = beta * tokens.v(t, c);
    for (int64_t j = 0; j <= i; ++j) {
      double kk = 0.0;
      double qk = 0.0;
      for (int64_t c = 0; c < dk; ++c) {
        const double decayed = tokens.k(begin + j, c) * decay_between(tokens, begin + j, t, c);
        kk += tokens.k(t, c) * decayed;
        qk += tokens.q(t, c) * decayed;
      }
      if (j < i) p.akk(i, j) = beta * kk;
      p.aqk(i, j) = tokens.scale * qk;
    }
  }
  if (count > 0) {
    for (int64_t c = 0; c < dk; ++c) p.decay_chunk[static_cast<size_t>(c)] = std::exp(p.gate_sum(count - 1, c));
  }
  p.inverse = invert_unit_lower(p.akk);
  p.w = multiply(p.inverse, beta_k);
  p.u = multiply(p.inverse, beta_v);
  return p;
}

// Runs the recurrence on the columns [I | 0]: the first become M, with U = 0; the others become B, with the chunk's U.
Transition summarize(std::span<const Prepared> chunks) {
  Transition result;
  if (chunks.empty()) return result;
  const int64_t dk = chunks[0].w.columns();
  result.m = Matrix::identity(dk);
  result.b = Matrix(dk, chunks[0].u.columns());
  for (const Prepared& chunk : chunks) {
    const Matrix no_u(chunk.w.rows(), dk);
    advance(chunk.decay_chunk, chunk.k_to_end, corrected(no_u, chunk.w, result.m), result.m);
    advance(chunk.decay_chunk, chunk.k_to_end, corrected(chunk.u, chunk.w, result.b), result.b);
  }
  return result;
}

Matrix carry(const Transition& segment, const Matrix& state_in) {
  Matrix state = multiply(segment.m, state_in);
  for (int64_t i = 0; i < state.rows(); ++i) {
    for (int64_t j = 0; j < state.columns(); ++j) state(i, j) += segment.b(i, j);
  }
  return state;
}

void emit(std::span<const Prepared> chunks, Matrix& state, Matrix& o, int64_t first_row) {
  for (const Prepared& chunk : chunks) {
    const Matrix v_new = corrected(chunk.u, chunk.w, state);
    const Matrix from_state = multiply(chunk.q_from_start, state);
    const Matrix from_chunk = multiply(chunk.aqk, v_new);
    for (int64_t i = 0; i < v_new.rows(); ++i) {
      for (int64_t j = 0; j < v_new.columns(); ++j) o(first_row + i, j) = from_state(i, j) + from_chunk(i, j);
    }
    advance(chunk.decay_chunk, chunk.k_to_end, v_new, state);
    first_row += v_new.rows();
  }
}

void recur(const HeadTokens& tokens, Matrix& state, Matrix& o) {
  for (int64_t t = 0; t < tokens.tokens(); ++t) {
    for (int64_t j = 0; j < tokens.dv(); ++j) {
      double predicted = 0.0;
      for (int64_t i = 0; i < tokens.dk(); ++i) {
        state(i, j) *= std::exp(gate(tokens, t, i));
        predicted += state(i, j) * tokens.k(t, i);
      }
      const double write = tokens.beta[static_cast<size_t>(t)] * (tokens.v(t, j) - predicted);
      double read = 0.0;
      for (int64_t i = 0; i < tokens.dk(); ++i) {
        state(i, j) += tokens.k(t, i) * write;
        read += state(i, j) * tokens.q(t, i);
      }
      o(t, j) = tokens.scale * read;
    }
  }
}

}  // namespace deltarelay::reference
