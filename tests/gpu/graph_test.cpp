// No hidden cost: execute allocates nothing, waits for nothing and stays on its stream. So a graph can capture it once
// and replay it with other values and lengths, after its plan has been destroyed.
#include <chrono>

#include "gpu_case.h"

namespace deltarelay::on_gpu {
namespace {

using Captured = EachCase;

uint64_t hash_of_call(Ran& ran) {
  ran.again();
  return ran.device.output_hash();
}

uint64_t hash_of_replay(const gpu::Graph& graph, Ran& ran) {
  ran.device.poison();
  graph.launch(ran.stream);
  ran.stream.synchronize();
  return ran.device.output_hash();
}

TEST_P(Captured, ReplaysOnOtherInputs) {
  const cases::Case c = forced(GetParam());
  Ran ran(c);
  const gpu::Graph graph(ran.stream, [&] { ran.run.execute(ran.device.tensors(), ran.stream); });
  EXPECT_GE(graph.num_nodes(), 1);
  EXPECT_EQ(hash_of_replay(graph, ran), hash_of_call(ran));
  for (const uint64_t seed : {2, 3, 4}) {
    cases::Case other = c;
    other.seed = seed;
    check::TensorSet values(other);
    ran.device.upload(values);
    ran.run.poison_workspace();
    const uint64_t replayed = hash_of_replay(graph, ran);
    ran.device.download(values);
    expect_close(check::compare(values, check::run_reference(values)), "a replay on other values");
    EXPECT_EQ(replayed, hash_of_call(ran)) << "seed " << seed;
  }
  EXPECT_EQ(ran.device.damage(), "");
  EXPECT_TRUE(ran.run.workspace_intact());
}

TEST_P(Captured, OutlivesItsPlan) {
  Ran ran(forced(GetParam()));
  const uint64_t expected = hash_of_call(ran);
  const gpu::Graph graph(ran.stream, [&] { ran.run.execute(ran.device.tensors(), ran.stream); });
  ran.run.destroy_plan();
  // Other plans reuse memory that the first plan may have had.
  const cases::Case other = forced("gdn bf16 hv=3 seqs=500,1,70 init final segments=2");
  const Ran busy(other);
  for (int repeat = 0; repeat < 3; ++repeat) EXPECT_EQ(hash_of_replay(graph, ran), expected) << "repeat " << repeat;
}

TEST_P(Captured, ExecuteAllocatesNothing) {
  Ran ran(forced(GetParam()));
  ran.again();
  gpu::synchronize();
  const int64_t before = gpu::free_bytes();
  for (int call = 0; call < 50; ++call) ran.run.execute(ran.device.tensors(), ran.stream);
  EXPECT_EQ(gpu::free_bytes(), before) << "while calls are queued";
  ran.stream.synchronize();
  EXPECT_EQ(gpu::free_bytes(), before) << "when they are done";
  // The capture (in global mode) rejects allocations and waits of any thread, and would throw.
  EXPECT_NO_THROW(gpu::Graph(ran.stream, [&] { ran.run.execute(ran.device.tensors(), ran.stream); }));
}

// The stream is busy for 200 ms: the call must return at once.
TEST_P(Captured, ExecuteWaitsForNothing) {
  Ran ran(forced(GetParam()));
  const uint64_t expected = ran.device.output_hash();
  ran.device.poison();
  ran.stream.pause(200);
  const auto start = std::chrono::steady_clock::now();
  ran.run.execute(ran.device.tensors(), ran.stream);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_LT(seconds, 0.1);
  ran.stream.synchronize();
  EXPECT_EQ(ran.device.output_hash(), expected);
}

// Inputs arrive late on the stream of the call: work on any other stream would read NaN.
TEST_P(Captured, ExecuteStaysOnItsStream) {
  const cases::Case c = forced(GetParam());
  Ran ran(c);
  const uint64_t expected = ran.device.output_hash();
  const gpu::DeviceTensors source(ran.device);
  const dr_tensors& to = ran.device.tensors();
  const dr_tensors& from = source.tensors();
  const int64_t v_bytes = c.num_tokens() * c.heads_v * c.dv * 2;
  ran.device.poison();
  gpu::fill(const_cast<void*>(to.v), 0xff, v_bytes);
  ran.stream.pause(50);
  ran.stream.copy(const_cast<void*>(to.v), from.v, v_bytes);
  ran.run.execute(to, ran.stream);
  ran.stream.synchronize();
  EXPECT_EQ(ran.device.output_hash(), expected);
}

INSTANTIATE_TEST_SUITE_P(Gpu, Captured, testing::ValuesIn(cases_in(R"(
  kda:       kda bf16 hv=2 seqs=300,0,65 init final gate=bounded:-5 beta=logit l2norm segments=off
  gdn:       gdn bf16 hqk=1 hv=2 seqs=300,0,65 init final l2norm segments=off
  kda-cut:   kda bf16 hv=2 seqs=1024,700 init final gate=bounded:-0.05 beta=logit l2norm segments=4
  gdn-cut:   gdn bf16 hqk=1 hv=2 seqs=1024,700 init final gate=log:-0.02,0 l2norm segments=4
  kda-relay: kda bf16 hv=32 seqs=1300,1200,1250,1201,0,1190,1280 init final gate=bounded:-0.005 beta=logit l2norm \
      segments=off variant=fused
  gdn-relay: gdn bf16 hqk=16 hv=64 seqs=1500x3 init final gate=log:-0.005,0 l2norm segments=off variant=fused
  kda-late:  kda bf16 hv=2 seqs=700,0,65 lengths=execute init final l2norm
  gdn-late:  gdn bf16 hv=2 seqs=700,0,65 lengths=execute init=slots final=slots:key l2norm
  portable:  kda fp32 hv=2 dk=60 dv=100 seqs=1024,700,0 init final gate=log:-0.02,0 l2norm segments=4 backend=cuda-sm80
  portable-narrow: kda bf16 hv=2 dk=64 dv=64 seqs=1024,700 init final gate=bounded:-0.05 beta=logit l2norm segments=4 \
      backend=cuda-sm80
  portable-unaligned: gdn bf16 hqk=1 hv=2 dk=64 dv=64 seqs=1024,700 init final gate=log:-0.02,0 l2norm segments=4 \
      align=2 backend=cuda-sm80
  portable-late: gdn bf16 hv=2 dk=64 seqs=700,0,65 lengths=execute init=slots final=slots:key l2norm backend=cuda-sm80
)")),
                         name_of);

// Captured with some lengths, replayed with others: the device makes the table each time.
class OtherLengths : public NeedsGpu<testing::TestWithParam<cases::Case>> {};

TEST_P(OtherLengths, OneGraphServesThemAll) {
  const cases::Case c = forced(GetParam());
  Ran ran(c);
  const gpu::Graph graph(ran.stream, [&] { ran.run.execute(ran.device.tensors(), ran.stream); });
  const std::vector<std::vector<int64_t>> mixes = {{3000, 0, 1, 999}, {0, 0, 0, 0},     {0, 0, 0, 4000},
                                                   {1, 1, 1, 1},      {64, 65, 63, 32}, {1500, 1500, 500, 500}};
  for (const std::vector<int64_t>& lengths : mixes) {
    cases::Case other = c;
    other.lengths = lengths;
    other.tail = c.num_tokens() - other.tokens();
    other.seed = c.seed + 1;
    SCOPED_TRACE(cases::print(other));
    check::TensorSet values(other);
    ran.device.upload(values);
    ran.run.poison_workspace();
    const uint64_t replayed = hash_of_replay(graph, ran);
    ran.device.download(values);
    EXPECT_EQ(values.damage(), "");
    EXPECT_EQ(ran.device.damage(), "");
    expect_close(check::compare(values, check::run_reference(values)), "a replay with other lengths");
    EXPECT_EQ(replayed, hash_of_call(ran)) << "a call with these lengths leaves other bits";
  }
}

INSTANTIATE_TEST_SUITE_P(Gpu, OtherLengths, testing::ValuesIn(cases_in(R"(
  kda:       kda bf16 hv=2 seqs=1000,1000,1000,1000 lengths=execute init final gate=bounded:-0.05 beta=logit l2norm
  gdn:       gdn bf16 hqk=1 hv=2 seqs=1000,1000,1000,1000 lengths=execute offsets=int64 init final gate=log:-0.02,0 \
      l2norm
  kda-slots: kda bf16 hv=2 seqs=4000,0,0,0 lengths=execute init=slots mask final=in-place gate=log:-0.02,0 l2norm
  portable:  gdn fp32 hv=2 dk=64 seqs=1000,1000,1000,1000 lengths=execute init final gate=log:-0.02,0 l2norm \
      backend=cuda-sm80
)")),
                         name_of);

}  // namespace
}  // namespace deltarelay::on_gpu
