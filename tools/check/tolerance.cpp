#include "check/tolerance.h"

namespace deltarelay::check {
namespace {

double of_data(const cases::Case& c, int32_t dtype) {
  switch (dtype) {
    case DR_BF16:
      return c.hostile() ? 5e-2 : c.strained() ? 1e-2 : 5e-3;
    case DR_FP16:
      return c.hostile() ? 5e-3 : 2e-3;
    default:
      if (c.math == DR_MATH_TF32) return c.hostile() ? 1e-2 : 2e-3;
      return c.hostile() ? 5e-5 : 2e-5;
  }
}

// The coarsest type among the numbers that a stage multiplies: those of q, k, v, and those of intermediates that it is
// given.
int32_t arithmetic_dtype(const cases::Case& c) {
  const auto coarser = [](int32_t a, int32_t b) {
    return a == DR_BF16 || b == DR_BF16 ? DR_BF16 : a == DR_FP16 || b == DR_FP16 ? DR_FP16 : DR_FP32;
  };
  constexpr int32_t kRounded = DR_AQK | DR_INVERSE | DR_W | DR_U | DR_K_TO_END | DR_Q_FROM_START | DR_V_NEW;
  int32_t dtype = c.op == DR_CARRY ? DR_FP32 : c.dtype;
  if ((c.stage.given & kRounded) != 0) dtype = coarser(dtype, c.intermediate_dtype());
  if ((c.stage.given & DR_STATES) != 0) dtype = coarser(dtype, c.states_dtype());
  return dtype;
}

// The column of the stages, which has one entry for every kind of case.
double of_stage(const cases::Case& c) {
  switch (arithmetic_dtype(c)) {
    case DR_BF16:
      return 5e-3;
    case DR_FP16:
      return 2e-3;
    default:
      return c.math == DR_MATH_TF32 ? 2e-3 : 2e-5;
  }
}

// What storing in 16 bits adds.
double of_storage(int32_t dtype) { return dtype == DR_BF16 ? 2e-3 : dtype == DR_FP16 ? 3e-4 : 0.0; }

}  // namespace

double storage_of_output(const cases::Case& c) {
  const int32_t dtype = c.output_dtype();
  return dtype == arithmetic_dtype(c) ? 0.0 : of_storage(dtype);
}
double storage_of_state(int32_t dtype) { return of_storage(dtype); }

double tolerance_of_output(const cases::Case& c) { return of_data(c, arithmetic_dtype(c)) + storage_of_output(c); }
double tolerance_of_state(const cases::Case& c, int32_t dtype) {
  return of_data(c, arithmetic_dtype(c)) + storage_of_state(dtype);
}

double storage_of_intermediate(const cases::Case& c, const TensorEntry& entry) {
  const int32_t dtype = cases::dtype_of_intermediate(c, entry);
  return dtype == arithmetic_dtype(c) ? 0.0 : of_storage(dtype);
}
double tolerance_of_intermediate(const cases::Case& c, const TensorEntry& entry) {
  if (entry.tensor == Tensor::kGateSums) return 2e-5;  // fp32 sums of gates, for data of every type
  return of_stage(c) + storage_of_intermediate(c, entry);
}

}  // namespace deltarelay::check
