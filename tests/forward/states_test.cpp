// State rules: layouts, storage types, slots, masks, in place, checkpoints.
#include <cstring>

#include "forward_case.h"

namespace deltarelay::forward {
namespace {

INSTANTIATE_TEST_SUITE_P(
    Layouts, ForwardCase,
    testing::ValuesIn(combine({{"kda fp32", "gdn bf16"},
                               {"hv=3 dk=64 dv=40 seqs=100,0,65,1"},
                               {"init=value", "init=key", "init=bf16", "init=key:fp16", "init=pad=24"},
                               {"final=value", "final=key", "final=bf16", "final=key:fp16", "final=pad=24"}})),
    name_of);

INSTANTIATE_TEST_SUITE_P(
    Slots, ForwardCase,
    testing::ValuesIn(combine({{"kda fp32", "gdn bf16"},
                               {"hv=2 dk=32 dv=48"},
                               {"seqs=100,65,1,0,17,30,130,64,63", "batch=9x65"},
                               {"init=slots", "init=slots:null=0:int64", "init=slots:key:negative:null=3 mask"},
                               {"", "final=slots:null=2:negative", "final=slots:key:bf16:pad=8", "final=in-place"}})),
    name_of);

INSTANTIATE_TEST_SUITE_P(InPlace, ForwardCase,
                         testing::ValuesIn(combine({{"kda fp32", "gdn fp32", "kda bf16"},
                                                    {"hv=2 dk=64 seqs=300,0,130,65,1 final=in-place"},
                                                    {"init", "init=key", "init=bf16", "init=slots:pad=16",
                                                     "init=slots:key:fp16 mask"}})),
                         name_of);

INSTANTIATE_TEST_SUITE_P(InPlaceCut, CutCase,
                         testing::ValuesIn(combine({{"kda fp32", "gdn fp32", "kda bf16"},
                                                    {"hv=2 dk=64 seqs=500,0,330,65,1 final=in-place segments=3"},
                                                    {"init", "init=key:bf16", "init=slots:pad=16",
                                                     "init=slots:key:null=1:negative mask"}})),
                         name_of);

INSTANTIATE_TEST_SUITE_P(Masks, ForwardCase, testing::ValuesIn(cases_in(R"(
  mask:            kda fp32 hv=2 dk=64 seqs=100,0,65,1,0,30 init mask final
  mask-nothing-kept: gdn fp32 hv=2 dk=64 seqs=100,0,65,1,0,30 init mask
  mask-batch:      kda bf16 hv=2 dk=64 batch=4x70 init=key mask final=key
  init-only:       kda fp32 hv=2 dk=64 seqs=100,65 init
  final-only:      gdn fp32 hv=2 dk=64 seqs=100,65,0 final
)")),
                         name_of);

INSTANTIATE_TEST_SUITE_P(
    Checkpoints, ForwardCase,
    testing::ValuesIn(combine({{"kda fp32", "gdn bf16"},
                               {"hv=2 dk=32 dv=48 seqs=300,15,0,64,129 init final"},
                               {"checkpoints=every:16", "checkpoints=every:48", "checkpoints=every:64",
                                "checkpoints=every:1024", "checkpoints=list:16,32,112,128,288", "checkpoints=chunks"},
                               {"", "checkpoint-state=key:bf16", "checkpoint-state=slots:null=1:negative:pad=4"}})),
    name_of);

INSTANTIATE_TEST_SUITE_P(CheckpointsCut, CutCase,
                         testing::ValuesIn(combine({{"kda fp32", "gdn bf16"},
                                                    {"hv=2 dk=32 seqs=500,15,0,264 init final segments=3"},
                                                    {"checkpoints=every:16", "checkpoints=every:80",
                                                     "checkpoints=every:64", "checkpoints=list:16,64,112,192,256,496",
                                                     "checkpoints=chunks"}})),
                         name_of);

INSTANTIATE_TEST_SUITE_P(CheckpointsElsewhere, ForwardCase, testing::ValuesIn(cases_in(R"(
  batch-every:     kda fp32 hv=2 dk=32 batch=3x150 checkpoints=every:32 init
  batch-chunks:    gdn fp32 hv=2 dk=32 batch=3x150 checkpoints=chunks
  late-every:      kda fp32 hv=2 dk=32 seqs=150,0,70 lengths=execute checkpoints=every:32
  late-list:       gdn fp32 hv=2 dk=32 seqs=150,0,70 lengths=execute checkpoints=list:48,64
  in-place-chunks: kda bf16 hv=2 dk=64 seqs=150,0,70 init=slots final=in-place checkpoints=chunks
  invariant-every: kda fp32 hv=2 dk=64 seqs=1500,0,70 init final checkpoints=every:64 invariant
)")),
                         name_of);

// Without a final state nothing is written back: the caller's initial states stay unchanged.
TEST(States, InitialIsOnlyRead) {
  for (const char* line :
       {"kda fp32 hv=2 dk=64 seqs=400,0,65 init=slots segments=3", "gdn fp32 hv=2 dk=64 seqs=100,65 init",
        "kda bf16 hv=2 dk=64 seqs=400,65 init final segments=3"}) {
    const cases::Case c = on_backend(cases::parse(line));
    if (nothing_to_test() && c.segments == DR_SEGMENTS_COUNT) continue;
    SCOPED_TRACE(cases::print(c));
    check::TensorSet x(c);
    const check::StateTensor& pool = x.initial();
    const auto bytes = static_cast<size_t>(pool.num_slots * pool.stride_slot * check::bytes_of(pool.state.dtype));
    const std::vector<std::byte> before(pool.data, pool.data + bytes);
    check::PlannedRun run(c);
    run.execute(x.tensors());
    EXPECT_EQ(std::memcmp(before.data(), pool.data, bytes), 0);
  }
}

// The final state of an empty sequence is its initial state, bit for bit with the same storage type; zero if it has
// none.
TEST(States, EmptySequenceHandsItsStateOn) {
  const cases::Case c = on_backend(cases::parse("kda fp32 hv=2 dk=64 seqs=0,70,0,0 init final mask"));
  const Ran ran(c);
  const check::StateTensor& initial = ran.tensors.initial();
  const check::StateTensor& final_state = ran.tensors.final_state();
  for (int64_t element = 0; element < initial.stride_slot; ++element) {
    for (const int64_t n : {0, 2, 3}) {
      EXPECT_EQ(final_state.get(n * initial.stride_slot + element), initial.get(n * initial.stride_slot + element));
    }
  }
  const Ran bare(on_backend(cases::parse("gdn bf16 hv=2 dk=64 seqs=0,70,0 final")));
  for (int64_t element = 0; element < initial.stride_slot; ++element) {
    EXPECT_EQ(bare.tensors.final_state().get(element), 0.0);
    EXPECT_EQ(bare.tensors.final_state().get(2 * initial.stride_slot + element), 0.0);
  }
}

// Checkpoints change no bit of the results, and the last one equals the final state.
TEST(States, CheckpointsMoveNoBits) {
  for (const char* line :
       {"kda fp32 hv=2 dk=64 seqs=320,70 init final", "gdn bf16 hv=2 dk=64 seqs=320,70 init final"}) {
    const cases::Case plain = on_backend(cases::parse(line));
    const cases::Case kept = cases::with_words(plain, "checkpoints=every:16");
    SCOPED_TRACE(cases::print(kept));
    const Ran a(plain);
    const Ran b(kept);
    for (int64_t n = 0; n < plain.num_seqs(); ++n) {
      for (int64_t head = 0; head < plain.heads_v; ++head) {
        EXPECT_TRUE(block_of(a.tensors, n, head) == block_of(b.tensors, n, head))
            << "sequence " << n << ", head " << head;
      }
    }
    const check::StateTensor& rows = b.tensors.checkpoint();
    const int64_t last = 320 / 16 - 1;
    for (int64_t element = 0; element < rows.stride_slot; ++element) {
      ASSERT_EQ(rows.get(last * rows.stride_slot + element), b.tensors.final_state().get(element));
    }
  }
}

}  // namespace
}  // namespace deltarelay::forward
