// The fused walk of GDN alone: the argument is a name to print.
#include <utility>

#include "kernels/cuda/sm90/fused/gdn/walk.cuh"
#include "walk.cuh"

namespace deltarelay::alone {
namespace {

template <Form kForm, bool kSummaries = false>
void time(const Shape& shape) {
  const Walk walk(shape);
  Array<float> gates(walk.per_token_head()), strengths(walk.per_token_head());
  gates.fill(Fill::kLogGate, 5, shape.gates);
  strengths.fill(Fill::kStrength, 6);
  cuda::Activation activation{};
  activation.g = walk.view(gates.data(), 1);
  activation.beta = walk.view(strengths.data(), 1);
  activation.gate_form = GateForm::kLog;
  activation.beta_form = BetaForm::kValue;
  activation.scale = 0.08838835f;
  activation.l2norm = true;
  walk.time(cuda::sm90::fused_gdn_kernel<Element, kForm, kSummaries>, sizeof(cuda::sm90::fused_gdn::Shared<kForm>),
            cuda::sm90::kFusedThreads, {ctas(kForm), strips(kForm)},
            walk.maps(gates.data(), strengths.data(), {ctas(kForm), strips(kForm)}), walk.args(cuda::sm90::kFusedChunk),
            activation);
}

}  // namespace
}  // namespace deltarelay::alone

int main(int argc, char** argv) {
  using deltarelay::Form;
  using deltarelay::alone::time;
  std::setbuf(stdout, nullptr);
  std::printf("%-10s", argc > 1 ? argv[1] : "fused_gdn");
  const deltarelay::alone::Shape long_rows{"4x8k-h32", 4, 8192, 16, 32}, rows{"8x1k-h64", 8, 1024, 16, 64},
      short_rows{"32x64-h64", 32, 64, 16, 64};
  for (const auto& shape : {long_rows, rows, short_rows}) time<Form::kSingle>(shape);
  std::printf("  twins:");
  for (const auto& shape : {long_rows, rows, short_rows}) time<Form::kTwins>(shape);
  std::printf("  pairs:");
  time<Form::kPair>({"8k-h64", 1, 8192, 16, 64});
  for (const auto& [name, gates] : {std::pair{"weak", 0.02f}, std::pair{"middling", 0.2f}, std::pair{"summary", 1.0f}})
    time<Form::kPair, true>({name, 8, 2048, 2, 8, deltarelay::Work::kSummarize, false, gates});
  std::printf("\n");
}
