// The fused walk of GDN alone: the argument is a name to print.
#include "kernels/cuda/sm90/fused/gdn/walk.cuh"
#include "walk.cuh"

namespace deltarelay::alone {
namespace {

template <int kCtas, int kHeads, bool kSuffix = false>
void time(const Shape& shape) {
  const Walk walk(shape);
  Array<float> gates(walk.per_token_head()), strengths(walk.per_token_head());
  gates.fill(Fill::kLogGate, 5, shape.weak ? 0.01f : 1.0f);
  strengths.fill(Fill::kStrength, 6);
  cuda::Activation activation{};
  activation.g = walk.view(gates.data(), 1);
  activation.beta = walk.view(strengths.data(), 1);
  activation.gate_form = GateForm::kLog;
  activation.beta_form = BetaForm::kValue;
  activation.scale = 0.08838835f;
  activation.l2norm = true;
  walk.time(cuda::sm90::fused_gdn_kernel<Element, kCtas, kHeads, kSuffix>,
            sizeof(cuda::sm90::fused_gdn::Shared<kCtas, kHeads>), cuda::sm90::kFusedThreads, {kCtas, kHeads},
            walk.maps(gates.data(), strengths.data(), {kCtas, kHeads}), walk.args(cuda::sm90::kFusedChunk), activation);
}

}  // namespace
}  // namespace deltarelay::alone

int main(int argc, char** argv) {
  using deltarelay::alone::time;
  std::setbuf(stdout, nullptr);
  std::printf("%-10s", argc > 1 ? argv[1] : "fused_gdn");
  const deltarelay::alone::Shape long_rows{"4x8k-h32", 4, 8192, 16, 32}, rows{"8x1k-h64", 8, 1024, 16, 64},
      short_rows{"32x64-h64", 32, 64, 16, 64};
  for (const auto& shape : {long_rows, rows, short_rows}) time<1, 1>(shape);
  std::printf("  twins:");
  for (const auto& shape : {long_rows, rows, short_rows}) time<2, 2>(shape);
  std::printf("  pairs:");
  time<2, 1>({"8k-h64", 1, 8192, 16, 64});
  time<2, 1>({"summary", 8, 2048, 2, 8, deltarelay::Work::kSummarize});
  time<2, 1, true>({"suffix", 8, 2048, 2, 8, deltarelay::Work::kSummarize});
  time<2, 1, true>({"weak", 8, 2048, 2, 8, deltarelay::Work::kSummarize, true});
  std::printf("\n");
}
