// The test instruments on the GPU: each must detect what it is for.
#include <cstring>

#include "check/device_generate.h"
#include "gpu_case.h"

namespace deltarelay::on_gpu {
namespace {

using Instruments = OnGpu;

TEST_F(Instruments, CanariesNoticeWritesOnBothSides) {
  for (const int64_t alignment : {1, 4, 16, 256}) {
    gpu::GuardedMemory memory(100, alignment);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % static_cast<uintptr_t>(2 * alignment),
              static_cast<uintptr_t>(alignment));
    memory.poison();
    EXPECT_TRUE(memory.intact());
    std::byte* const places[] = {memory.data() - 1, memory.data() + 100, memory.data() - 512, memory.data() + 611};
    for (std::byte* place : places) {
      std::byte before{};
      gpu::download(&before, place, 1);
      gpu::fill(place, 0, 1);
      EXPECT_FALSE(memory.intact());
      gpu::upload(place, &before, 1);
      EXPECT_TRUE(memory.intact());
    }
  }
}

TEST_F(Instruments, HashSeesEveryByteAndItsPlace) {
  constexpr int64_t kBytes = 100'003;
  const gpu::Memory memory(kBytes);
  gpu::fill(memory.data(), 7, kBytes);
  const uint64_t expected = gpu::hash(memory.data(), kBytes);
  EXPECT_EQ(gpu::hash(memory.data(), kBytes), expected);
  std::vector<uint64_t> seen = {expected};
  for (const int64_t at : {int64_t{0}, int64_t{1}, int64_t{4}, kBytes / 2, kBytes - 2, kBytes - 1}) {
    gpu::fill(memory.data() + at, 8, 1);
    seen.push_back(gpu::hash(memory.data(), kBytes));
    gpu::fill(memory.data() + at, 7, 1);
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::unique(seen.begin(), seen.end()), seen.end()) << "two different contents, one hash";
  EXPECT_EQ(gpu::hash(memory.data(), kBytes), expected);
  EXPECT_NE(gpu::hash(memory.data(), kBytes - 1), expected);
}

TEST_F(Instruments, AChangedInputIsNoticed) {
  const cases::Case c = forced("kda bf16 hv=2 seqs=70,30 init=slots final lengths=execute");
  check::TensorSet host(c);
  gpu::DeviceTensors tensors(host);
  EXPECT_EQ(tensors.damage(), "");
  for (const void* input : {tensors.tensors().q, tensors.tensors().beta, tensors.tensors().initial_index,
                            tensors.tensors().seq_offsets, tensors.tensors().initial}) {
    std::byte before{};
    gpu::download(&before, input, 1);
    const std::byte changed = before ^ std::byte{1};
    gpu::upload(const_cast<void*>(input), &changed, 1);
    EXPECT_NE(tensors.damage(), "");
    gpu::upload(const_cast<void*>(input), &before, 1);
    EXPECT_EQ(tensors.damage(), "");
  }
}

TEST_F(Instruments, PoisonAndCopiesReachTheGpu) {
  const cases::Case c = forced("gdn bf16 hv=2 seqs=70,30 tail=2 init=slots:pad=8 final=in-place");
  check::TensorSet host(c);
  gpu::DeviceTensors tensors(host);
  check::TensorSet back(c);
  for (const check::TensorSet::Memory& memory : back.memory())
    if (memory.output != nullptr) std::memset(memory.output, 0, static_cast<size_t>(memory.bytes));
  tensors.download(back);
  EXPECT_TRUE(back.output_bits() == host.output_bits()) << "poison, and initial states in place";
  const gpu::DeviceTensors other(tensors);
  EXPECT_NE(other.tensors().q, tensors.tensors().q);
  EXPECT_EQ(other.output_hash(), tensors.output_hash());
  EXPECT_EQ(other.damage(), "");
}

TEST_F(Instruments, HeadsOfLargeStagesRepeatAndADifferentOneShows) {
  const cases::Case c =
      forced("kda chunk-local bf16 hqk=16 hv=32 given=gate_sums want=w,u gate=log:-5,0 l2norm batch=2x1088");
  const cases::Case few_heads = check::fewer_heads(c);
  ASSERT_EQ(few_heads.heads_v, 4);
  check::TensorSet host(few_heads);
  gpu::DeviceTensors few(host);
  const gpu::DeviceTensors many(few, c);
  EXPECT_EQ(many.damage(), "");
  // Inputs of one row of heads are those of the few, again and again.
  const int64_t bytes = int64_t{few_heads.heads_qk} * c.dk * 2;
  std::vector<std::byte> expected(static_cast<size_t>(bytes)), found(expected.size());
  gpu::download(expected.data(), static_cast<const std::byte*>(few.tensors().k) + bytes, bytes);
  for (const int64_t copy : {0, 5, 7}) {
    gpu::download(found.data(), static_cast<const std::byte*>(many.tensors().k) + (8 + copy) * bytes, bytes);
    EXPECT_TRUE(found == expected) << "second token, copy " << copy;
  }
  // One byte of the results of copy 3.
  gpu::fill(static_cast<std::byte*>(many.tensors().intermediates->u) + (8 + 3) * 4 * c.dv * 2, 0, 1);
  few.take_outputs(many, 2);
  const uint64_t untouched = few.output_hash();
  few.take_outputs(many, 3);
  EXPECT_NE(few.output_hash(), untouched);
  few.take_outputs(many, 7);
  EXPECT_EQ(few.output_hash(), untouched);
}

// The GPU generates the same case as the CPU, bit for bit, and touches nothing else.
using Generator = EachCase;

TEST_P(Generator, MakesTheBitsOfTheCpu) {
  const cases::Case c = forced(GetParam());
  ASSERT_TRUE(gpu::can_generate(c));
  check::TensorSet host(c);
  const gpu::DeviceTensors copied(host);
  gpu::DeviceTensors made(host, gpu::Tokens::kMadeHere);
  for (const TensorLayout& of : kTensorLayouts) {
    const TensorEntry& entry = entry_of(of.tensor);
    if (entry.direction == TensorDirection::kOut) continue;
    const cases::Rows rows = cases::rows_of(c, of.tensor);
    const int64_t bytes = cases::extent(c, rows) * check::bytes_of(rows.dtype);
    EXPECT_EQ(gpu::hash(pointer_of(copied.tensors(), entry), bytes),
              gpu::hash(pointer_of(made.tensors(), entry), bytes))
        << entry.name;
  }
  ASSERT_TRUE(made.generate(c.seed + 1));
  EXPECT_NE(gpu::hash(copied.tensors().q, 1000), gpu::hash(made.tensors().q, 1000)) << "another seed, the same values";
  EXPECT_EQ(made.damage(), "");
}

INSTANTIATE_TEST_SUITE_P(Gpu, Generator, testing::ValuesIn(cases_in(R"(
  kda:          kda bf16 hqk=2 hv=4 seqs=300,0,65 tail=3 gate=bounded:-5 beta=logit l2norm
  kda-fp16:     kda fp16 hv=2 seqs=300,1 gate=log:-5,0
  gdn-fp32:     gdn bf16 g=fp32 b=fp32 hqk=1 hv=4 batch=3x77 beta=near2
  extreme:      kda bf16 g=fp16 hv=2 seqs=200 gate=log:extreme beta=one
  inf:          gdn fp16 g=bf16 hv=2 seqs=200 gate=log:inf beta=zero
  zero:         kda bf16 hv=2 seqs=200 gate=log:zero beta=twice l2norm
  at-bound:     kda bf16 hv=2 seqs=200 gate=bounded:-5:low
  softplus:     kda fp16 b=fp32 hv=3 seqs=200 gate=softplus
  init-kda:     kda bf16 hv=3 seqs=200 gate=init:2
  init-bounded: kda bf16 hv=3 seqs=200 gate=bounded:-5:init
  init-gdn:     gdn bf16 hqk=3 hv=12 seqs=200,65 gate=init
  mixed-kda:    kda bf16 hv=10 seqs=200 gate=mixed
  mixed-gdn:    gdn fp16 hv=10 seqs=200,65 gate=mixed
  narrow:       gdn bf16 hv=2 seqs=200 gate=log:-0.3,-0.1 seed=12345678901
  packed:       kda bf16 hqk=1 hv=2 seqs=100,30 strides=packed tail=5
  padded:       kda bf16 hqk=1 hv=2 batch=2x60 strides=padded
  head-first:   gdn bf16 g=fp32 hqk=1 hv=2 batch=2x60 strides=head-first
)")),
                         name_of);

TEST_F(Instruments, WhatNeedsALogarithmIsLeftToTheCpu) {
  for (const char* line : {"kda bf16 hv=1 seqs=9 gate=linear", "kda bf16 hv=1 seqs=9 gate=log:mean:-2",
                           "kda bf16 hv=1 seqs=9 keys=correlated"})
    EXPECT_FALSE(gpu::can_generate(cases::parse(line))) << line;
}

}  // namespace
}  // namespace deltarelay::on_gpu
