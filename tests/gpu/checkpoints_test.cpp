// Checkpoints are a side product: they move no bit of o or of a final state, and one at the end of a sequence is the
// final state. For both ways of cuda-sm90, every form of their walks, and the portable kernels.
#include "gpu_case.h"

namespace deltarelay::on_gpu {
namespace {

cases::Case without_checkpoints(cases::Case c) {
  c.checkpoints = DR_CHECKPOINTS_NONE;
  c.checkpoint_every = 0;
  c.checkpoint_list.clear();
  c.checkpoint = {};
  return c;
}

using SideProduct = EachCase;

TEST_P(SideProduct, MovesNoOtherBit) {
  const cases::Case c = forced(GetParam());
  const Ran with(c), without(without_checkpoints(c));
  EXPECT_EQ(with.run.summary().max_segments, without.run.summary().max_segments);
  expect_close(check::compare(with.host, check::run_reference(with.host)), "with checkpoints");
  for (int64_t n = 0; n < c.num_seqs(); ++n) {
    for (int64_t head = 0; head < c.heads_v; ++head)
      EXPECT_TRUE(block_of(with.host, n, head) == block_of(without.host, n, head))
          << "sequence " << n << ", head " << head;
  }
}

// A chunk that ends there needs no step beside the walk, and both pools are fp32.
TEST_P(SideProduct, EndsInTheFinalState) {
  const cases::Case c = forced(GetParam());
  const Ran ran(c);
  const check::StateTensor &inside = ran.host.checkpoint(), &last = ran.host.final_state();
  const std::vector<std::vector<int64_t>> positions = cases::checkpoint_positions(c);
  size_t row = 0;
  int64_t compared = 0;
  for (size_t n = 0; n < positions.size(); ++n) {
    for (const int64_t position : positions[n]) {
      const int64_t slot = inside.slots[row++];
      if (position != c.lengths[n] || slot < 0) continue;
      for (int64_t head = 0; head < c.heads_v; ++head) {
        for (int64_t k = 0; k < c.dk; ++k) {
          for (int64_t v = 0; v < c.dv; ++v)
            ASSERT_EQ(inside.get(inside.at(slot, head, k, v)), last.get(last.at(last.slots[n], head, k, v)))
                << "sequence " << n << ", head " << head << ", channel " << k << ", value " << v;
        }
      }
      ++compared;
    }
  }
  EXPECT_GT(compared, 0) << "no sequence ends at a checkpoint";
}

// Pairs, single CTAs with several items, twins, rows that are handed on, cut calls; positions inside chunks too.
INSTANTIATE_TEST_SUITE_P(Gpu, SideProduct, testing::ValuesIn(cases_in(R"(
  kda-pair:      kda bf16 hv=2 seqs=320,0,161,64 init final checkpoints=every:32 gate=bounded:-0.5 beta=logit l2norm \
      variant=fused
  kda-items:     kda bf16 hv=16 seqs=70x20,64x4 init final checkpoints=every:64 gate=bounded:-0.5 beta=logit l2norm \
      segments=off variant=fused
  kda-relay:     kda bf16 hv=32 seqs=1200x5,1184 init final checkpoints=list:96,640,1184 gate=bounded:-0.005 \
      beta=logit l2norm segments=off variant=fused
  kda-cut:       kda bf16 hv=4 seqs=4096,1000 init final checkpoints=every:1024 gate=bounded:-0.05 beta=logit l2norm \
      segments=8 variant=fused
  kda-softplus:  kda bf16 hv=6 seqs=1000,512,65 init final checkpoints=every:128 gate=softplus:init beta=logit l2norm \
      segments=off variant=fused
  kda-invariant: kda bf16 hv=2 seqs=1280 init final checkpoints=every:128 gate=bounded:-0.05 beta=logit l2norm \
      invariant segments=len:256 variant=fused
  kda-prepared:  kda bf16 hv=2 seqs=320,0,161,64 init final checkpoints=every:32 gate=bounded:-0.5 beta=logit l2norm \
      variant=prepared
  gdn-pair:      gdn bf16 hv=2 seqs=320,0,161,64 init final checkpoints=every:32 gate=log:-0.5,0 l2norm variant=fused
  gdn-items:     gdn bf16 hqk=5 hv=15 seqs=70x20,64x4 init final checkpoints=every:64 gate=log:-0.5,0 l2norm \
      segments=off variant=fused
  gdn-twins:     gdn fp16 hqk=8 hv=16 seqs=545,530x22,544 init final checkpoints=list:32,64,512,544 gate=log:-0.5,0 \
      l2norm segments=off variant=fused
  gdn-relay:     gdn bf16 hqk=16 hv=64 seqs=1500x2,1504 init final checkpoints=list:32,992,1504 gate=log:-0.005,0 \
      l2norm segments=off variant=fused
  gdn-cut:       gdn bf16 hqk=2 hv=8 seqs=4096,1000 init final checkpoints=every:1024 gate=log:-0.02,0 l2norm \
      segments=8 variant=fused
  gdn-invariant: gdn bf16 hqk=1 hv=2 seqs=1280 init final checkpoints=every:128 gate=log:-0.02,0 l2norm invariant \
      segments=len:256 variant=fused
  gdn-prepared:  gdn bf16 hv=2 seqs=320,0,161,64 init final checkpoints=every:64 gate=log:-0.5,0 l2norm \
      variant=prepared
  portable:      kda fp32 hv=2 dk=60 dv=100 seqs=320,0,161,64 init final checkpoints=every:64 gate=log:-0.5,0 l2norm \
      backend=cuda-sm80
)")),
                         name_of);

}  // namespace
}  // namespace deltarelay::on_gpu
