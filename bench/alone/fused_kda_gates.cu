// The fused walk of KDA alone, with gates that have no bound: the argument is a name to print. Shapes are those of
// kda-8k-h64 (pairs), kda-8x1k-h64 (single CTAs) and of summaries; gates those of a fresh layer with raw values of a
// standard deviation, -6 everywhere, and nine of ten at -1000. Behind the sum of outputs: the error of o against
// recurrences in double, of the worst head, as rms over rms.
#include <cmath>

#include "kda.cuh"
#include "kernels/cuda/sm90/fused/kda/walk.cuh"
#include "kernels/cuda/sm90/launch.h"

namespace deltarelay::alone {
namespace {

// A of a head from U(1, 16), and the bias of a channel, whose softplus is log-uniform in [1e-3, 1e-1].
__global__ void fill_layer_kernel(float* a_log, float* bias, int heads) {
  for (int i = static_cast<int>(threadIdx.x); i < heads * kChannels; i += static_cast<int>(blockDim.x)) {
    bias[i] = logf(expm1f(expf(logf(1e-3f) + uniform_of(i, 8) * logf(100.0f))));
    if (i < heads) a_log[i] = logf(1.0f + 15.0f * uniform_of(i, 7));
  }
}
__global__ void fill_extreme_kernel(Element* gates, size_t count) {
  for (size_t i = blockIdx.x * size_t{256} + threadIdx.x; i < count; i += gridDim.x * size_t{256})
    gates[i] = static_cast<Element>(uniform_of(i, 20) < 0.9f ? -1000.0f : -uniform_of(i, 21));
}
__global__ void fill_constant_kernel(Element* gates, size_t count, float value) {
  for (size_t i = blockIdx.x * size_t{256} + threadIdx.x; i < count; i += gridDim.x * size_t{256})
    gates[i] = static_cast<Element>(value);
}

// The recurrence of one head and value column by a warp, in double; a lane has four channels. Adds squares of errors of
// o and of o to those of its head.
struct Recurrence {
  const Element *q, *k, *v, *o, *gates, *strengths;
  const float *initial, *a_log, *bias;
  double* squares;  // double[2][heads]
  float scale;
  int tokens, heads;
  GateForm form;
};
__device__ inline double sum_of_warp(double x) {
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(~0u, x, distance);
  return x;
}
__global__ void __launch_bounds__(256) check_kernel(Recurrence of) {
  constexpr int kOwn = kChannels / 32;
  const int warp = static_cast<int>(blockIdx.x * 8 + threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int column = warp % static_cast<int>(kChannels), head = warp / static_cast<int>(kChannels) % of.heads;
  const int sequence = warp / static_cast<int>(kChannels) / of.heads, first = lane * kOwn;
  double state[kOwn];
  for (int c = 0; c < kOwn; ++c)
    state[c] = of.initial[((int64_t{sequence} * of.heads + head) * kChannels + column) * kChannels + first + c];
  double error = 0.0, all = 0.0;
  for (int token = 0; token < of.tokens; ++token) {
    const int64_t row = (int64_t{sequence} * of.tokens + token) * of.heads + head, at = row * kChannels + first;
    double k[kOwn], q[kOwn], kk = 0.0, qq = 0.0, kept = 0.0, read = 0.0;
    for (int c = 0; c < kOwn; ++c) {
      k[c] = static_cast<double>(static_cast<float>(of.k[at + c]));
      q[c] = static_cast<double>(static_cast<float>(of.q[at + c]));
      float log = static_cast<float>(of.gates[at + c]);
      if (of.form == GateForm::kRawSoftplus) {
        const float x = log + of.bias[head * kChannels + first + c];
        log = -expf(of.a_log[head]) * (fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))));
      }
      state[c] *= static_cast<double>(expf(log));
      kk += k[c] * k[c], qq += q[c] * q[c], kept += k[c] * state[c];
    }
    kk = sum_of_warp(kk), qq = sum_of_warp(qq), kept = sum_of_warp(kept);
    const double norm_k = rsqrt(kk + 1e-6), norm_q = rsqrt(qq + 1e-6);
    const double strength = 1.0 / (1.0 + exp(-static_cast<double>(static_cast<float>(of.strengths[row]))));
    const int64_t value_at = row * kChannels + column;
    const double write = strength * (static_cast<double>(static_cast<float>(of.v[value_at])) - norm_k * kept) * norm_k;
    for (int c = 0; c < kOwn; ++c) state[c] += k[c] * write, read += q[c] * state[c];
    const double o = sum_of_warp(read) * norm_q * static_cast<double>(of.scale);
    const double off = static_cast<double>(static_cast<float>(of.o[value_at])) - o;
    error += off * off, all += o * o;
  }
  if (lane == 0) {
    atomicAdd(of.squares + head, error);
    atomicAdd(of.squares + of.heads + head, all);
  }
}

// Prints the error of o.
void check(const Walk& walk, const cuda::Activation& activation, const KdaGates& gates) {
  const Shape& shape = walk.shape();
  if (shape.work != Work::kEmit || shape.heads_qk != shape.heads_v) return;
  const auto heads = static_cast<size_t>(shape.heads_v);
  Array<double> squares(2 * heads);
  require(cudaMemset(squares.data(), 0, 2 * heads * sizeof(double)), "cudaMemset");
  const unsigned warps = static_cast<unsigned>(shape.sequences * shape.heads_v * kChannels);
  check_kernel<<<warps / 8, 256>>>({walk.q(), walk.k(), walk.v(), walk.o(), gates.raw.data(), gates.strengths.data(),
                                    walk.initial(), gates.a_log.data(), gates.bias.data(), squares.data(),
                                    activation.scale, shape.tokens, shape.heads_v, activation.gate_form});
  std::vector<double> of(2 * heads);
  require(cudaMemcpy(of.data(), squares.data(), of.size() * sizeof(double), cudaMemcpyDeviceToHost), "cudaMemcpy");
  double worst = 0.0;
  for (size_t head = 0; head < heads; ++head) {
    const double error = std::sqrt(of[head] / of[heads + head]);
    if (!std::isnan(worst) && !(error <= worst)) worst = error;
  }
  std::printf(" error %.2e", worst);
}

// spread > 0: raw softplus gates with this standard deviation. Otherwise log gates of this value; 0: extreme.
template <Form kForm, GateForm kGate, bool kSummaries>
void time(const Shape& shape, float spread) {
  const Walk walk(shape);
  KdaGates gates(walk);
  fill_layer_kernel<<<1, 1024>>>(gates.a_log.data(), gates.bias.data(), shape.heads_v);
  if (spread > 0.0f)
    gates.raw.fill(Fill::kNormal, 5, spread);
  else if (spread < 0.0f)
    fill_constant_kernel<<<2048, 256>>>(gates.raw.data(), gates.raw.count(), spread);
  else
    fill_extreme_kernel<<<2048, 256>>>(gates.raw.data(), gates.raw.count());
  const cuda::Activation activation = gates.activation(walk, kGate);
  walk.time(cuda::sm90::fused_kda_kernel<kForm, kGate, cuda::sm90::GateSource::kTiles, kSummaries, false>,
            cuda::sm90::fused_shared_bytes<kForm, cuda::sm90::GateSource::kTiles, false>(shape.tokens >=
                                                                                         cuda::sm90::kLongRow),
            cuda::sm90::kFusedThreads, {ctas(kForm), 1}, walk.maps(gates.raw.data(), nullptr, {ctas(kForm), 1}),
            walk.args(cuda::sm90::kFusedChunk), activation);
  check(walk, activation, gates);
}

template <Form kForm, bool kSummaries = false>
void time_all(const Shape& shape) {
  for (const float spread : {1.0f, 2.0f, 4.0f}) {
    std::printf("\n  s=%-6g", spread);
    time<kForm, GateForm::kRawSoftplus, kSummaries>(shape, spread);
  }
  for (const float value : {-1.0f, -6.0f, 0.0f}) {
    std::printf("\n  %-8s", value == 0.0f ? "extreme" : value == -1.0f ? "-1" : "-6");
    time<kForm, GateForm::kLog, kSummaries>(shape, value);
  }
}

}  // namespace
}  // namespace deltarelay::alone

int main(int argc, char** argv) {
  using deltarelay::Form;
  using deltarelay::alone::time_all;
  std::printf("%s", argc > 1 ? argv[1] : "fused_kda_gates");
  time_all<Form::kPair>({"8k-h64", 1, 8192, 64, 64});
  time_all<Form::kSingle>({"8x1k-h64", 8, 1024, 64, 64});
  time_all<Form::kPair, true>({"summary", 16, 1984, 4, 4, deltarelay::Work::kSummarize});
  std::printf("\n");
}
