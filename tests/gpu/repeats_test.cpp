// Same plan, same bits: ten thousand times (portable kernels a thousand), on two streams, from two threads. Results are
// hashed on the GPU.
#include <algorithm>
#include <atomic>
#include <thread>

#include "gpu_case.h"

namespace deltarelay::on_gpu {
namespace {

void expect_same_bits(const cases::Case& c, int64_t repeats) {
  const int64_t between_poisons = repeats / 20;  // the contents of the workspace must not matter
  Ran ran(c);
  if (c.segments == DR_SEGMENTS_COUNT) ASSERT_GE(ran.run.summary().cut_sequences, 1);
  if (c.segments == DR_SEGMENTS_OFF) ASSERT_EQ(ran.run.summary().cut_sequences, 0);
  ASSERT_EQ(ran.run.summary().backend, c.backend);
  expect_close(check::compare(ran.host, check::run_reference(ran.host)), "the first run");
  const uint64_t expected = ran.device.output_hash();

  const gpu::Memory sums(repeats * static_cast<int64_t>(sizeof(uint64_t)));
  gpu::fill(sums.data(), 0, sums.bytes());
  auto* const slots = reinterpret_cast<uint64_t*>(sums.data());
  for (int64_t i = 0; i < repeats; ++i) {
    if (i % between_poisons == 0) ran.run.poison_workspace();
    ran.device.poison(ran.stream);
    ran.run.execute(ran.device.tensors(), ran.stream);
    ran.device.add_output_hash(ran.stream, slots + i);
  }
  ran.stream.synchronize();
  std::vector<uint64_t> found(static_cast<size_t>(repeats));
  gpu::download(found.data(), sums.data(), sums.bytes());
  const auto same = std::count(found.begin(), found.end(), expected);
  EXPECT_EQ(same, repeats) << "first other hash in repeat "
                           << std::find_if(found.begin(), found.end(), [&](uint64_t h) { return h != expected; }) -
                                  found.begin();
  EXPECT_TRUE(ran.run.workspace_intact());
}

using Repeats = EachCase;
TEST_P(Repeats, TenThousandRunsGiveTheSameBits) { expect_same_bits(forced(GetParam()), 10000); }

// Waves: pairs of CTAs start where others end at that moment. Items: single CTAs walk several items. Relay: rows are
// handed on.
INSTANTIATE_TEST_SUITE_P(Gpu, Repeats, testing::ValuesIn(cases_in(R"(
  kda-cut:   kda bf16 hv=4 seqs=4096,1000 init final gate=bounded:-0.05 beta=logit l2norm segments=8
  gdn-cut:   gdn bf16 g=fp32 b=fp32 hqk=2 hv=8 seqs=4096,1000 init final gate=log:-0.02,0 l2norm segments=8
  kda-ends:  kda bf16 hv=4 seqs=4096,1000 init final gate=log:-0.4,-0.2 floor=-5 l2norm segments=4
  kda-log:   kda bf16 hv=4 seqs=1024,33 init final gate=log:-0.02,0 l2norm segments=4
  kda-whole: kda bf16 hv=8 seqs=512,100x5 init=slots final=in-place gate=bounded:-5 beta=logit l2norm
  kda-waves: kda bf16 hv=48 seqs=300,200,64 init final gate=bounded:-0.05 beta=logit l2norm segments=3 variant=fused
  gdn-waves: gdn bf16 hqk=16 hv=48 seqs=300,200,64 init final gate=log:-0.02,0 l2norm segments=3 variant=fused
  kda-items: kda bf16 hv=16 seqs=70x24 init final gate=bounded:-5 beta=logit l2norm segments=off variant=fused
  gdn-items: gdn bf16 hqk=8 hv=16 seqs=70x24 init final gate=softplus beta=logit l2norm segments=off variant=fused
  gdn-twins: gdn bf16 hqk=8 hv=16 seqs=530x24 init final gate=softplus beta=logit l2norm segments=off variant=fused
  gdn-relay: gdn bf16 hqk=16 hv=64 seqs=1500x3 init final gate=log:-0.005,0 l2norm segments=off variant=fused
  kda-relay: kda bf16 hv=32 seqs=1200x6 init final gate=bounded:-0.005 beta=logit l2norm segments=off variant=fused
  kda-strips: kda bf16 hqk=1 hv=2 dv=256 seqs=1024,33 init final gate=bounded:-0.05 beta=logit l2norm segments=4 \
      variant=fused
  gdn-strips: gdn bf16 hqk=8 hv=16 dv=384 seqs=530x8 init final gate=softplus beta=logit l2norm segments=off \
      variant=fused
  kda-frames: kda bf16 hv=6 seqs=1000,515,65,33,31 init final gate=log:mean:-2.5 beta=logit l2norm variant=fused
  kda-frames-items: kda bf16 hv=16 seqs=70x24 init final gate=init:3 beta=logit l2norm segments=off variant=fused
  kda-frames-cut: kda bf16 hv=4 seqs=4096,1000 init final gate=softplus:init:2 beta=logit l2norm segments=8 \
      variant=fused
  kda-prepared: kda bf16 hv=4 seqs=1024,33 init final gate=log:-0.02,0 l2norm segments=4 variant=prepared
  gdn-prepared: gdn bf16 hqk=2 hv=8 seqs=4096,1000 init final gate=log:-0.02,0 l2norm segments=8 variant=prepared
  kda-grains: kda bf16 hv=2 seqs=1300,65,0,1,2100,256 init final gate=bounded:-0.05 beta=logit l2norm invariant \
      segments=len:256
  gdn-grains: gdn bf16 hqk=1 hv=2 seqs=1300,65,0,1,2100,256 init final gate=log:-0.02,0 l2norm invariant \
      segments=len:256
)")),
                         name_of);

using PortableRepeats = EachCase;
TEST_P(PortableRepeats, AThousandRunsGiveTheSameBits) { expect_same_bits(GetParam(), 1000); }

// Every arithmetic, both chunk lengths, walks with narrow and wide tiles, checkpoints, lengths on the GPU.
INSTANTIATE_TEST_SUITE_P(Gpu, PortableRepeats, testing::ValuesIn(cases_in(R"(
  kda-cut:       kda bf16 hv=4 seqs=4096,1000 init final gate=bounded:-0.05 beta=logit l2norm segments=8 \
      backend=cuda-sm80
  kda-log-cut:   kda bf16 hv=4 dk=256 seqs=1024,33 init final gate=log:-0.02,0 l2norm segments=4 backend=cuda-sm80
  kda-whole:     kda bf16 hv=8 seqs=512,100x5 init=slots final=in-place gate=bounded:-5 beta=logit l2norm \
      segments=off backend=cuda-sm80
  kda-wide:      kda bf16 hv=8 dk=256 seqs=300,100x5 init final gate=log:-0.5,0 l2norm segments=off backend=cuda-sm80
  kda-waves:     kda fp16 hv=48 seqs=300,200,64 init final gate=log:-0.02,0 l2norm segments=3 backend=cuda-sm80
  kda-fp32-cut:  kda fp32 hv=4 seqs=2048,500 init final gate=log:-0.02,0 l2norm segments=8 backend=cuda-sm80
  kda-fp32:      kda fp32 hv=8 dk=256 seqs=300,100 init final gate=log:-0.5,0 l2norm segments=off backend=cuda-sm80
  kda-tf32-cut:  kda fp32 hv=4 seqs=2048,500 init final gate=log:-0.02,0 l2norm segments=8 backend=cuda-sm80 math=tf32
  gdn-cut:       gdn bf16 g=fp32 b=fp32 hqk=2 hv=8 seqs=4096,1000 init final gate=log:-0.02,0 l2norm segments=8 \
      backend=cuda-sm80
  gdn-wide-cut:  gdn bf16 hqk=2 hv=4 dk=256 seqs=1024,33 init final gate=log:-0.02,0 l2norm segments=4 backend=cuda-sm80
  gdn-whole:     gdn bf16 hqk=2 hv=8 seqs=512,100x5 init=slots final=in-place gate=log:-0.5,0 l2norm segments=off \
      backend=cuda-sm80
  gdn-waves:     gdn fp16 hqk=16 hv=48 seqs=300,200,64 init final gate=log:-0.02,0 l2norm segments=3 backend=cuda-sm80
  gdn-fp32-cut:  gdn fp32 hv=4 seqs=2048,500 init final gate=log:-0.02,0 l2norm segments=8 backend=cuda-sm80
  gdn-fp32:      gdn fp32 hv=8 dk=256 seqs=300,100 init final gate=log:-0.5,0 l2norm segments=off backend=cuda-sm80
  gdn-tf32:      gdn fp32 hv=8 dk=256 seqs=300,100 init final gate=log:-0.5,0 l2norm segments=off backend=cuda-sm80 \
      math=tf32
  kda-uneven:    kda bf16 hv=4 dk=96 dv=192 seqs=4096,1000 gate=log:-0.02,0 l2norm init final segments=8 \
      backend=cuda-sm80
  gdn-values:    gdn bf16 hqk=1 hv=2 dk=256 dv=512 seqs=2000,33 gate=log:-0.02,0 l2norm init final segments=5 \
      backend=cuda-sm80
  kda-odd:       kda fp32 hv=4 dk=60 dv=100 seqs=2000,33 gate=log:-0.02,0 l2norm init final segments=5 backend=cuda-sm80
  gdn-narrow:    gdn fp16 hqk=2 hv=8 dk=64 seqs=4096,1000 gate=log:-0.02,0 l2norm init final segments=8 \
      backend=cuda-sm80
  gdn-many:      gdn fp32 hv=24 dk=256 seqs=300,200,64 gate=log:-0.02,0 l2norm init final segments=3 backend=cuda-sm80
  checkpoints:   kda bf16 hv=4 seqs=700,33 init final checkpoints=every:48 gate=log:-0.02,0 l2norm segments=3 \
      backend=cuda-sm80
  late:          gdn bf16 hv=4 seqs=700,0,65 lengths=execute init final l2norm backend=cuda-sm80
)")),
                         name_of);

// cuLA's stress repeats, at their own lengths.
using Stress = EachCase;

TEST_P(Stress, RepeatsAreTheSameBits) {
  Ran ran(forced(GetParam()));
  const uint64_t expected = ran.device.output_hash();
  for (int repeat = 0; repeat < 100; ++repeat) {
    ran.device.poison();
    ran.run.poison_workspace();
    ran.run.execute(ran.device.tensors(), ran.stream);
    ran.stream.synchronize();
    ASSERT_EQ(ran.device.output_hash(), expected) << "repeat " << repeat;
  }
}

INSTANTIATE_TEST_SUITE_P(Cula, Stress, testing::ValuesIn(cases_in(R"(
  single-64K-H4-gk-h0:   kda bf16 hv=4 seqs=64k gate=log:-0.001,0 l2norm init final segments=8
  multi-64K-4K-H4-gk-h0: kda bf16 hv=4 seqs=64k,4k gate=log:-0.001,0 l2norm init final segments=8
)")),
                         name_of);

using AtOnce = EachCase;

// One plan, two streams, each with its workspace and tensors, from one thread: their work overlaps on the GPU.
TEST_P(AtOnce, TwoStreams) {
  const cases::Case c = forced(GetParam());
  Ran first(c);
  Ran second(c);
  const uint64_t expected = first.device.output_hash();
  ASSERT_EQ(second.device.output_hash(), expected);
  for (int repeat = 0; repeat < 50; ++repeat) {
    first.device.poison();
    second.device.poison();
    for (int call = 0; call < 4; ++call) {
      first.run.execute(first.device.tensors(), first.stream);
      second.run.execute(second.device.tensors(), second.stream);
    }
    first.stream.synchronize();
    second.stream.synchronize();
    ASSERT_EQ(first.device.output_hash(), expected) << "repeat " << repeat;
    ASSERT_EQ(second.device.output_hash(), expected) << "repeat " << repeat;
  }
}

// One plan shared by two threads, each with its stream, workspace and tensors.
TEST_P(AtOnce, TwoThreads) {
  const cases::Case c = forced(GetParam());
  const Ran alone(c);
  const uint64_t expected = alone.device.output_hash();
  constexpr int kRepeats = 200;
  std::atomic<int> wrong = 0;
  const auto work = [&] {
    try {
      check::TensorSet host(c);
      gpu::DeviceTensors tensors(host);
      const gpu::GuardedMemory workspace(alone.run.workspace_bytes(), 256);
      const gpu::Stream stream;
      const gpu::Memory sums(kRepeats * static_cast<int64_t>(sizeof(uint64_t)));
      gpu::fill(sums.data(), 0, sums.bytes());
      for (int i = 0; i < kRepeats; ++i) {
        tensors.poison(stream);
        if (dr_execute(alone.run.plan(), &tensors.tensors(), workspace.data(),
                       static_cast<size_t>(alone.run.workspace_bytes()), stream.handle()) != DR_SUCCESS)
          ++wrong;
        tensors.add_output_hash(stream, reinterpret_cast<uint64_t*>(sums.data()) + i);
      }
      stream.synchronize();
      std::vector<uint64_t> found(kRepeats);
      gpu::download(found.data(), sums.data(), sums.bytes());
      wrong += static_cast<int>(kRepeats - std::count(found.begin(), found.end(), expected));
      if (!workspace.intact() || !tensors.damage().empty()) ++wrong;
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(wrong, 0) << "calls that failed or left other bits";
}

INSTANTIATE_TEST_SUITE_P(Gpu, AtOnce, testing::ValuesIn(cases_in(R"(
  kda:     kda bf16 hv=2 seqs=1024,65 init final gate=bounded:-0.05 beta=logit l2norm segments=4
  gdn:     gdn bf16 hqk=1 hv=2 seqs=1024,65 init final gate=log:-0.02,0 l2norm segments=4
  late:    kda bf16 hv=2 seqs=700,0,65 lengths=execute init final l2norm
  whole:   gdn bf16 hv=2 seqs=300,65 init=slots final=slots l2norm segments=off
  portable: kda fp32 hv=2 dk=60 dv=100 seqs=1024,65 init final gate=log:-0.02,0 l2norm segments=4 backend=cuda-sm80
)")),
                         name_of);

}  // namespace
}  // namespace deltarelay::on_gpu
