// A fused walk launched without the library, to try variants of a kernel in seconds (scripts/try_kernels.sh). Times are
// for launches without a pause, with inputs that L2 may keep between launches, at the clock under the power limit. They
// compare variants and are no results. Outputs are hashed and summed, not checked; a variant that is kept must pass the
// tests.
#pragma once
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/cuda/args.h"
#include "kernels/cuda/launch/launch.h"
#include "kernels/cuda/sm90/fused/row.cuh"
#include "kernels/cuda/sm90/record.h"
#include "kernels/cuda/sm90/rows/walk_maps.h"
#include "kernels/cuda/sm90/single_ctas.h"
#include "kernels/cuda/sm90/tensor_map.h"
#include "tensors.cuh"

namespace deltarelay::alone {

// Packed sequences of one length; every row of the table is one sequence.
struct Shape {
  const char* name;
  int sequences, tokens, heads_qk, heads_v;
  Work work = Work::kEmit;
  bool weak = false;   // KDA: weak gates, no transition vanishes
  float gates = 1.0f;  // GDN: scale of the log-decays, which are about -0.8 a token at 1
  bool mixed = false;  // KDA: one head of four keeps its state, the others forget it in two chunks
  int all_tokens() const { return sequences * tokens; }
};

struct Cluster {
  unsigned ctas, heads;
};

struct Axes {
  std::array<cuuint64_t, 5> sizes;
  std::array<cuuint64_t, 4> strides;
  std::array<cuuint32_t, 5> box;
};
// Does the same as tensor_map.cu, which belongs to the library.
inline CUtensorMap encode(const void* data, CUtensorMapDataType type, const Axes& axes, CUtensorMapSwizzle swizzle,
                          CUtensorMapL2promotion promotion) {
  static const auto encoder = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    require(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found),
            "cuTensorMapEncodeTiled");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
  }();
  const std::array<cuuint32_t, 5> steps = {1, 1, 1, 1, 1};
  CUtensorMap map;
  const CUresult status =
      encoder(&map, type, 5, const_cast<void*>(data), axes.sizes.data(), axes.strides.data(), axes.box.data(),
              steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) require(cudaErrorInvalidValue, "cuTensorMapEncodeTiled");
  return map;
}
inline CUtensorMap map_of(const void* data, int tokens, int heads, unsigned halves = 1) {
  const auto heads_64 = static_cast<cuuint64_t>(heads);
  return encode(data, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                {.sizes = {64, static_cast<cuuint64_t>(tokens), 2, heads_64, 1},
                 .strides = {heads_64 * 256, 128, 256, 16},
                 .box = {64, 32, halves, 1, 1}},
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}
// One number in fp32 of a token and head.
inline CUtensorMap number_map_of(const void* data, int tokens, int heads) {
  const auto heads_64 = static_cast<cuuint64_t>(heads);
  return encode(data, CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                {.sizes = {heads_64, static_cast<cuuint64_t>(tokens), 1, 1, 1},
                 .strides = {heads_64 * 4, 16, 16, 16},
                 .box = {cuda::sm90::kNumbersInRow, 32, 1, 1, 1}},
                CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE);
}

// Tensors and arguments that both fused walks use.
class Walk {
 public:
  explicit Walk(const Shape& shape)
      : shape_(shape),
        q_(size_of(shape.heads_qk)),
        k_(size_of(shape.heads_qk)),
        v_(size_of(shape.heads_v)),
        o_(size_of(shape.heads_v)),
        initial_(states()),
        final_(states()),
        slot_state_(states()),
        slot_transition_(states()),
        slot_lives_(size_t{2} * shape.sequences * shape.heads_v) {
    q_.fill(Fill::kNormal, 1);
    k_.fill(Fill::kNormal, 2);
    v_.fill(Fill::kNormal, 3);
    initial_.fill(Fill::kNormal, 4, 0.1f);
    o_.poison();
  }

  // `strengths` is nullptr for KDA.
  cuda::sm90::FusedMaps maps(const void* gates, const void* strengths, Cluster cluster) const {
    const int tokens = shape_.all_tokens();
    const bool gdn = strengths != nullptr;
    return {.q = map_of(q_.data(), tokens, shape_.heads_qk),
            .k = map_of(k_.data(), tokens, shape_.heads_qk),
            .v = map_of(v_.data(), tokens, shape_.heads_v, 2 * cluster.heads / cluster.ctas),
            .o = map_of(o_.data(), tokens, shape_.heads_v),
            .g = gdn ? number_map_of(gates, tokens, shape_.heads_v) : map_of(gates, tokens, shape_.heads_v),
            .beta = gdn ? number_map_of(strengths, tokens, shape_.heads_v) : CUtensorMap{},
            .copies_gates = gdn,
            .order = {}};
  }

  cuda::WalkArgs args(int chunk_tokens) const {
    cuda::WalkArgs args{};
    write_table(args.tables, chunk_tokens);
    args.phase = 1;
    args.row_bound = shape_.sequences;
    args.initial = pool(initial_.data());
    args.final = pool(final_.data());
    args.o = view(o_.data(), kWidth);
    args.slot_state = slot_state_.data();
    args.slot_transition = slot_transition_.data();
    args.slot_lives = slot_lives_.data();
    args.heads_qk = shape_.heads_qk;
    args.heads_v = shape_.heads_v;
    args.strips = {shape_.heads_v, 1};
    return args;
  }

  // `width`: numbers per token and head.
  template <class T>
  cuda::TensorView view(T* data, int64_t width) const {
    return {data, shape_.heads_v * width, width, 0, sizeof(T) == 4 ? DType::kFp32 : DType::kBf16};
  }
  const Shape& shape() const { return shape_; }
  const Element* q() const { return q_.data(); }
  const Element* k() const { return k_.data(); }
  const Element* v() const { return v_.data(); }
  const Element* o() const { return o_.data(); }
  const float* initial() const { return initial_.data(); }
  size_t per_token_head() const { return static_cast<size_t>(shape_.all_tokens()) * shape_.heads_v; }

  // Prints the median and the smallest time of many series of launches; clock and cycles if a multiprocessor is free to
  // measure them; and hash and sum of the outputs. Series follow each other without a pause, because an idle moment
  // saves power for the next. The first half warms up.
  template <class Kernel, class... Args>
  void time(Kernel* kernel, size_t shared_bytes, unsigned threads, Cluster cluster, const cuda::sm90::FusedMaps& maps,
            const cuda::WalkArgs& walk, const Args&... more) const {
    require(cuda::load_kernel(kernel, shared_bytes), "load_kernel");
    // If CTAs take several items, two multiprocessors stay free: for the clock, and for the rest of a cluster of two.
    constexpr int kLeftFree = 2;
    const int units = multiprocessors();
    const unsigned ctas = cluster.ctas;
    const cuda::sm90::SingleCtas call{static_cast<unsigned>(walk.row_bound) * static_cast<unsigned>(walk.strips.all),
                                      walk.relay.line.places(), true};
    const unsigned whole = cuda::sm90::single_ctas(call, cuda::sm90::kMostItems, units - kLeftFree, ctas);
    const cuda::LaunchShape launch{.grid = dim3(ctas == cluster.heads ? whole : call.items * ctas),
                                   .block = threads,
                                   .shared_bytes = shared_bytes,
                                   .cluster = ctas};
    constexpr int kLaunches = 16, kUnderWay = 3;
    constexpr float kTime = 400.0f;  // ms
    // A profiler runs one kernel at a time and would wait for the clock kernel.
    const bool profiled = std::getenv("DELTARELAY_UNWATCHED") != nullptr;
    ClockWatch watch(!profiled && launch.grid.x < static_cast<unsigned>(units));
    std::vector<cudaEvent_t> marks(1);
    require(cudaEventCreate(&marks[0]), "cudaEventCreate");
    require(cudaEventRecord(marks[0]), "cudaEventRecord");
    float spent = 0.0f;
    while (spent < kTime) {
      for (int i = 0; i < kLaunches; ++i)
        require(cuda::launch_dependent(kernel, launch, nullptr, maps, walk, more...), "launch");
      marks.emplace_back();
      require(cudaEventCreate(&marks.back()), "cudaEventCreate");
      require(cudaEventRecord(marks.back()), "cudaEventRecord");
      if (marks.size() <= kUnderWay) continue;
      cudaEvent_t ended = marks[marks.size() - kUnderWay];
      require(cudaEventSynchronize(ended), "the kernel");
      require(cudaEventElapsedTime(&spent, marks[0], ended), "cudaEventElapsedTime");
    }
    require(cudaEventSynchronize(marks.back()), "the kernel");
    const double mhz = watch.stop();
    std::vector<float> series;
    for (size_t i = marks.size() / 2; i + 1 < marks.size(); ++i) {
      float ms = 0.0f;
      require(cudaEventElapsedTime(&ms, marks[i], marks[i + 1]), "cudaEventElapsedTime");
      series.push_back(ms / kLaunches);
    }
    for (cudaEvent_t mark : marks) cudaEventDestroy(mark);
    std::sort(series.begin(), series.end());
    const float median = series[series.size() / 2];
    std::printf("  %s %.4f (%.4f)", shape_.name, median, series[0]);
    if (mhz > 0.0) std::printf(" %.0f MHz %.1f kcycles", mhz, mhz * median);
    if (shape_.work == Work::kEmit)
      print_sum(o_);
    else
      print_sum(slot_state_), print_sum(slot_transition_);
  }

 private:
  static constexpr int64_t kWidth = cuda::sm90::kWidth;

  size_t size_of(int heads) const { return static_cast<size_t>(shape_.all_tokens()) * heads * kWidth; }
  size_t states() const { return static_cast<size_t>(shape_.sequences) * shape_.heads_v * kWidth * kWidth; }

  cuda::StateView pool(float* data) const {
    cuda::StateView pool{};
    pool.data = data;
    pool.stride_head = kWidth * kWidth;
    pool.stride_slot = shape_.heads_v * pool.stride_head;
    pool.num_slots = shape_.sequences;
    pool.layout = StateLayout::kValueMajor;
    pool.dtype = DType::kFp32;
    pool.index_dtype = DType::kInt32;
    return pool;
  }

  void write_table(cuda::Tables& table, int chunk_tokens) const {
    uint32_t used = 0;
    auto place = [&](size_t bytes) {
      const uint32_t at = used;
      used += static_cast<uint32_t>((bytes + 15) / 16 * 16);
      return at;
    };
    const int chunks = (shape_.tokens + chunk_tokens - 1) / chunk_tokens;
    std::vector<int64_t> token_begin;
    std::vector<int32_t> chunk_begin;
    std::vector<Row> rows;
    for (int i = 0; i <= shape_.sequences; ++i) {
      token_begin.push_back(int64_t{i} * shape_.tokens);
      chunk_begin.push_back(i * chunks);
      if (i < shape_.sequences)
        rows.push_back({i, 0, chunks, shape_.work, -1, shape_.work == Work::kEmit ? -1 : i, -1});
    }
    const int32_t counts[3] = {shape_.sequences, 0, 0};
    table.num_seqs = shape_.sequences;
    table.at_token_begin = place(token_begin.size() * sizeof(int64_t));
    table.at_chunk_begin = place(chunk_begin.size() * sizeof(int32_t));
    table.at_rows1 = place(rows.size() * sizeof(Row));
    table.at_folds = place(sizeof(Fold));
    table.at_rows3 = place(sizeof(Row));
    table.at_counts = place(sizeof counts);
    if (used > cuda::Tables::kImageBytes) require(cudaErrorInvalidValue, "a table that travels with the launch");
    std::memcpy(table.image + table.at_token_begin, token_begin.data(), token_begin.size() * sizeof(int64_t));
    std::memcpy(table.image + table.at_chunk_begin, chunk_begin.data(), chunk_begin.size() * sizeof(int32_t));
    std::memcpy(table.image + table.at_rows1, rows.data(), rows.size() * sizeof(Row));
    std::memcpy(table.image + table.at_counts, counts, sizeof counts);
  }

  template <class T>
  static void print_sum(const Array<T>& of) {
    const Content content = content_of(of);
    std::printf(" %04llx %.5e", content.hash & 0xffff, content.sum);
  }

  const Shape shape_;
  Array<Element> q_, k_, v_, o_;
  Array<float> initial_, final_, slot_state_, slot_transition_;
  Array<uint32_t> slot_lives_;
};

}  // namespace deltarelay::alone
