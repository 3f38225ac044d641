// exp, log and softplus with the same bits on every machine: only additions, multiplications and divisions in a fixed
// order, compiled without fused multiply-add. The relative error is below 1e-14.
#pragma once

namespace deltarelay::check {

constexpr double kLn2 = 0.69314718055994530942;

// 2 atanh(s) for |s| up to 1/3.
constexpr double twice_atanh(double s) {
  const double square = s * s;
  double sum = 0.0;
  for (int n = 35; n > 0; n -= 2) sum = sum * square + 1.0 / n;  // 3^-35 is below 2^-53
  return 2.0 * s * sum;
}

// log(1 + x) for x from 0 to 1.
constexpr double portable_log1p(double x) { return twice_atanh(x / (2.0 + x)); }

// x > 0.
constexpr double portable_log(double x) {
  int exponent = 0;
  for (; x > 1.4142135623730951; x *= 0.5) ++exponent;
  for (; x < 0.7071067811865476; x *= 2.0) --exponent;
  return exponent * kLn2 + twice_atanh((x - 1.0) / (x + 1.0));
}

// x <= 0.
constexpr double portable_exp(double x) {
  if (x < -700.0) return 0.0;
  int halvings = 0;
  for (; x < -0.5 * kLn2; x += kLn2) ++halvings;
  double sum = 1.0;
  for (int n = 16; n > 0; --n) sum = 1.0 + x / n * sum;
  for (; halvings > 0; --halvings) sum *= 0.5;
  return sum;
}

// log(1 + exp(x)).
constexpr double portable_softplus(double x) {
  return (x > 0.0 ? x : 0.0) + portable_log1p(portable_exp(x > 0.0 ? -x : x));
}

// The x whose softplus is y = exp(log_y), y up to 0.1: log(exp(y) - 1) = log y + y/2 + y^2/24 - y^4/2880 + ...
constexpr double inverse_softplus(double log_y) {
  const double y = portable_exp(log_y);
  const double square = y * y;
  return log_y + y / 2.0 + square / 24.0 - square * square / 2880.0 + square * square * square / 181440.0;
}

}  // namespace deltarelay::check
