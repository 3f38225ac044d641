#include "check/tolerance.h"

namespace deltarelay::check {
namespace {

double of_data(const cases::Case& c) {
  switch (c.dtype) {
    case DR_BF16:
      return c.hostile() ? 5e-2 : c.strained() ? 1e-2 : 5e-3;
    case DR_FP16:
      return c.hostile() ? 5e-3 : 2e-3;
    default:
      if (c.math == DR_MATH_TF32) return c.hostile() ? 1e-2 : 2e-3;
      return c.hostile() ? 5e-5 : 2e-5;
  }
}

// What storing in 16 bits adds.
double of_storage(int32_t dtype) { return dtype == DR_BF16 ? 2e-3 : dtype == DR_FP16 ? 3e-4 : 0.0; }

}  // namespace

double storage_of_output(const cases::Case& c) {
  const int32_t dtype = c.output_dtype();
  return dtype == c.dtype ? 0.0 : of_storage(dtype);
}
double storage_of_state(int32_t dtype) { return of_storage(dtype); }

double tolerance_of_output(const cases::Case& c) { return of_data(c) + storage_of_output(c); }
double tolerance_of_state(const cases::Case& c, int32_t dtype) { return of_data(c) + storage_of_state(dtype); }

}  // namespace deltarelay::check
