// A user's arrays as a case: shapes, types and lengths come from a file, options from words of the command line.
#pragma once
#include <string>
#include <vector>

#include "arrays/arrays.h"
#include "case/case.h"
#include "check/tensors.h"

namespace deltarelay::command {

class OwnData {
 public:
  // `words`: words of a case, except those that the file determines. `bf16`: uint16 arrays hold bits of bf16. Throws
  // UsageError, cases::CaseError.
  OwnData(const arrays::File& file, const std::string& rule, const std::vector<std::string>& words, bool bf16);

  const cases::Case& of() const { return case_; }
  const std::vector<std::string>& unused() const { return unused_; }  // arrays that are not used

  void fill(check::TensorSet& tensors) const;
  // o and final in the layout of the input file. They point into `memory`.
  std::vector<arrays::Array> results(check::TensorSet& tensors, std::vector<std::vector<std::byte>>& memory) const;

 private:
  const arrays::Array* find(const std::vector<std::string>& names);
  const arrays::Array& require(const std::vector<std::string>& names);
  int32_t float_type(const arrays::Array& array) const;
  void read_sizes();
  void read_lengths(int64_t tokens, const arrays::Array* offsets);
  void read_parameters();
  void read_states(bool final_asked);
  void copy_rows(const arrays::Array& array, const check::TokenTensor& tensor) const;
  int64_t row_of(int64_t sequence, int64_t t, int64_t head, int64_t heads) const;

  const arrays::File& file_;
  bool bf16_;
  std::vector<const arrays::Array*> used_;
  std::vector<std::string> unused_;
  cases::Case case_;
  std::vector<int64_t> offsets_;
  int64_t rows_ = 0;  // tokens of one sequence (batched) or of all sequences
  const arrays::Array *q_ = nullptr, *k_ = nullptr, *v_ = nullptr, *g_ = nullptr, *beta_ = nullptr, *a_log_ = nullptr,
                      *dt_bias_ = nullptr, *initial_ = nullptr;
};

}  // namespace deltarelay::command
