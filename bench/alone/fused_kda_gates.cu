// The fused walk of KDA alone, with gates that have no bound: the argument is a name to print. Shapes are those of
// kda-8k-h64 (pairs), kda-8x1k-h64 (single CTAs) and of summaries; gates those of a fresh layer with raw values of a
// standard deviation, -6 everywhere, and nine of ten at -1000.
#include "kernels/cuda/sm90/fused/kda/walk.cuh"
#include "walk.cuh"

namespace deltarelay::alone {
namespace {

constexpr int64_t kChannels = cuda::sm90::kWidth;

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

// spread > 0: raw softplus gates with this standard deviation. Otherwise log gates of this value; 0: extreme.
template <Form kForm, GateForm kGate, bool kSummaries>
void time(const Shape& shape, float spread) {
  const Walk walk(shape);
  Array<Element> gates(walk.per_token_head() * kChannels), strengths(walk.per_token_head());
  Array<float> a_log(shape.heads_v), bias(static_cast<size_t>(shape.heads_v) * kChannels);
  strengths.fill(Fill::kNormal, 6);
  fill_layer_kernel<<<1, 1024>>>(a_log.data(), bias.data(), shape.heads_v);
  if (spread > 0.0f)
    gates.fill(Fill::kNormal, 5, spread);
  else if (spread < 0.0f)
    fill_constant_kernel<<<2048, 256>>>(gates.data(), gates.count(), spread);
  else
    fill_extreme_kernel<<<2048, 256>>>(gates.data(), gates.count());
  cuda::Activation activation{};
  activation.g = walk.view(gates.data(), kChannels);
  activation.beta = walk.view(strengths.data(), 1);
  activation.a_log = a_log.data();
  activation.dt_bias = bias.data();
  activation.dtype_a_log = activation.dtype_dt_bias = DType::kFp32;
  activation.gate_form = kGate;
  activation.beta_form = BetaForm::kLogit;
  activation.scale = 0.08838835f;
  activation.l2norm = true;
  walk.time(cuda::sm90::fused_kda_kernel<kForm, kGate, cuda::sm90::GateSource::kTiles, kSummaries, false>,
            sizeof(cuda::sm90::FusedShared<kForm>), cuda::sm90::kFusedThreads, {ctas(kForm), 1},
            walk.maps(gates.data(), nullptr, {ctas(kForm), 1}), walk.args(cuda::sm90::kFusedChunk), activation);
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
