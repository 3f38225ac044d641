// The chunk form in double precision, one function per stage, for one head of one sequence. Tests compare the stages of
// fast backends with these functions, and these functions with the token recurrence. docs/math.md, "Chunk form", has
// the equations in the same symbols.
//
// Every gate is safe, -infinity included: a decay between two tokens is exp of the sum of the gates between them. That
// sum is never positive and is never formed as a difference of two sums.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace deltarelay::reference {

class Matrix {
 public:
  Matrix() = default;
  Matrix(int64_t rows, int64_t columns)
      : rows_(rows), columns_(columns), data_(static_cast<size_t>(rows * columns), 0.0) {}

  double& operator()(int64_t row, int64_t column) { return data_[static_cast<size_t>(row * columns_ + column)]; }
  double operator()(int64_t row, int64_t column) const { return data_[static_cast<size_t>(row * columns_ + column)]; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  std::span<const double> data() const { return data_; }

  static Matrix identity(int64_t size);

 private:
  int64_t rows_ = 0;
  int64_t columns_ = 0;
  std::vector<double> data_;
};

// One head of one sequence after activation: gates are log-decays, one column for GDN and DK for KDA.
struct HeadTokens {
  Matrix q, k;  // [T, DK]
  Matrix v;     // [T, DV]
  Matrix g;     // [T, DK] or [T, 1]
  std::vector<double> beta;
  double scale = 1.0;

  int64_t tokens() const { return v.rows(); }
  int64_t dk() const { return k.columns(); }
  int64_t dv() const { return v.columns(); }
};

// What `prepare` computes for one chunk of C tokens.
struct Prepared {
  Matrix gate_sum;                  // G [C, DK]: sum of the gates from the chunk's first token to this one, inclusive
  Matrix akk;                       // [C, C], strictly lower
  Matrix inverse;                   // [C, C] = (I + Akk)^-1, unit lower
  Matrix aqk;                       // [C, C], lower, with scale
  Matrix w;                         // [C, DK]
  Matrix u;                         // [C, DV]
  Matrix q_from_start;              // [C, DK], with scale
  Matrix k_to_end;                  // [C, DK]
  std::vector<double> decay_chunk;  // [DK]
};

// S_out = M S_in + B.
struct Transition {
  Matrix m;  // [DK, DK]
  Matrix b;  // [DK, DV]
};

// Prepares tokens [begin, begin + count) as one chunk.
Prepared prepare(const HeadTokens& tokens, int64_t begin, int64_t count);
// The transition of a run of chunks.
Transition summarize(std::span<const Prepared> chunks);
// Returns the state after a segment from the state before it.
Matrix carry(const Transition& segment, const Matrix& state_in);
// Replays chunks from `state` and leaves the state after the last chunk there. Output starts at row `first_row` of o.
void emit(std::span<const Prepared> chunks, Matrix& state, Matrix& o, int64_t first_row);

// The token recurrence on the same input. Writes o [T, DV] and advances `state`.
void recur(const HeadTokens& tokens, Matrix& state, Matrix& o);

}  // namespace deltarelay::reference
