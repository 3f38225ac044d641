// The fused walk of KDA alone, with raw bounded gates: the argument is a name to print.
#include "kda.cuh"
#include "kernels/cuda/sm90/fused/kda/walk.cuh"

namespace deltarelay::alone {
namespace {

template <Form kForm, bool kSummaries = false>
void time(const Shape& shape) {
  const Walk walk(shape);
  KdaGates gates(walk);
  gates.raw.fill(Fill::kNormal, 5);
  gates.a_log.fill(Fill::kNormal, 7, 0.1f);
  gates.bias.fill(Fill::kNormal, 8, shape.mixed ? 1.0f : 0.1f);
  if (shape.mixed) {
    std::vector<float> slopes(static_cast<size_t>(shape.heads_v));
    for (size_t head = 0; head < slopes.size(); ++head) slopes[head] = head % 4 == 1 ? 1.4f : -2.4f;
    require(cudaMemcpy(gates.a_log.data(), slopes.data(), slopes.size() * sizeof(float), cudaMemcpyDefault),
            "cudaMemcpy");
  }
  cuda::Activation activation = gates.activation(walk, GateForm::kRawBounded);
  activation.lower_bound = shape.weak ? -0.05f : cuda::kMidFrameGate;
  cuda::sm90::FusedMaps maps = walk.maps(gates.raw.data(), nullptr, {ctas(kForm), 1});
  // As enqueue.cu does it where pairs come in waves.
  if (kSummaries && shape.sequences * shape.heads_v * ctas(kForm) > multiprocessors())
    maps.order = {0, shape.sequences, shape.tokens / 32 * 32 - 32, 0};
  walk.time(
      cuda::sm90::fused_kda_kernel<kForm, GateForm::kRawBounded, cuda::sm90::GateSource::kTiles, kSummaries, true>,
      sizeof(cuda::sm90::FusedShared<kForm>), cuda::sm90::kFusedThreads, {ctas(kForm), 1}, maps,
      walk.args(cuda::sm90::kFusedChunk), activation);
}

}  // namespace
}  // namespace deltarelay::alone

int main(int argc, char** argv) {
  using deltarelay::Form;
  using deltarelay::alone::time;
  std::printf("%-10s", argc > 1 ? argv[1] : "fused_kda");
  time<Form::kSingle>({"32x2k-h4", 32, 1984, 4, 4});
  time<Form::kSingle>({"2x2k-h64", 2, 2048, 64, 64});
  time<Form::kSingle>({"32x64-h64", 32, 64, 64, 64});
  time<Form::kPair>({"16x2k-h4", 16, 1984, 4, 4});
  time<Form::kPair, true>({"summary", 16, 1984, 4, 4, deltarelay::Work::kSummarize});
  time<Form::kPair, true>({"weak", 16, 1984, 4, 4, deltarelay::Work::kSummarize, true});
  time<Form::kPair, true>({"waves", 33, 1984, 4, 4, deltarelay::Work::kSummarize, false, 1.0f, true});
  std::printf("\n");
}
