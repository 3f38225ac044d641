// Indices beyond 32 bits, and more (sequence, head) pairs than 16 bits can count.
#include <sys/mman.h>

#include <cstring>

#include "forward_case.h"

namespace deltarelay::forward {
namespace {

// Address space without memory: only touched pages exist.
class SparseMapping {
 public:
  explicit SparseMapping(size_t bytes) : bytes_(bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = memory == MAP_FAILED ? nullptr : static_cast<float*>(memory);
  }
  ~SparseMapping() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  SparseMapping(const SparseMapping&) = delete;
  SparseMapping& operator=(const SparseMapping&) = delete;
  float* data() const { return data_; }

 private:
  size_t bytes_;
  float* data_;
};

constexpr int64_t kFarToken = (int64_t{1} << 29) + 64;   // five of them pass 2^31 elements
constexpr int64_t kFarHead = (int64_t{1} << 28) + 1024;  // heads lie between the tokens
constexpr int64_t kTokens = 6;
constexpr int64_t kHeads = 2;
constexpr int64_t kWidth = 64;

class Far : public testing::TestWithParam<std::string> {};

// The same values, contiguous and with strides beyond 2^31 elements, give the same bits.
TEST_P(Far, StridesBeyond32Bits) {
  const cases::Case c =
      cases::with_words(cases::parse("kda fp32 hv=2 dk=64 seqs=6 init final segments=off"), GetParam());
  SCOPED_TRACE(cases::print(c));
  const Ran near(c);
  cases::Request request(c);
  dr_problem& problem = request.problem;
  const int64_t gate_width = c.rule == DR_KDA ? kWidth : 1;
  const dr_layout far = {kFarToken, kFarHead, 0, 0, 0};
  problem.layout_q = problem.layout_k = problem.layout_v = problem.layout_o = problem.layout_g = problem.layout_beta =
      far;
  problem.initial.stride_head = problem.final.stride_head = kFarToken * 3;
  problem.initial.stride_slot = problem.final.stride_slot = kFarToken * 7;
  const size_t bytes = static_cast<size_t>(kTokens * kFarToken) * sizeof(float);
  const SparseMapping q(bytes), k(bytes), v(bytes), g(bytes), beta(bytes), o(bytes), initial(bytes), final_state(bytes);
  for (const SparseMapping* mapping : {&q, &k, &v, &g, &beta, &o, &initial, &final_state}) {
    if (mapping->data() == nullptr) GTEST_SKIP() << "the system refuses to map " << bytes << " bytes without memory";
  }
  const auto spread = [](const check::TokenTensor& from, const SparseMapping& to, int64_t width) {
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t head = 0; head < kHeads; ++head) {
        std::memcpy(to.data() + t * kFarToken + head * kFarHead,
                    reinterpret_cast<const float*>(from.data) + from.at(0, t, head, 0),
                    static_cast<size_t>(width) * sizeof(float));
      }
    }
  };
  const check::TensorSet& x = near.tensors;
  spread(x.q(), q, kWidth);
  spread(x.k(), k, kWidth);
  spread(x.v(), v, kWidth);
  spread(x.g(), g, gate_width);
  spread(x.beta(), beta, 1);
  const size_t state_bytes = kWidth * kWidth * sizeof(float);
  for (int64_t head = 0; head < kHeads; ++head) {
    std::memcpy(initial.data() + head * kFarToken * 3, x.initial().data + static_cast<size_t>(head) * state_bytes,
                state_bytes);
  }
  dr_tensors tensors;
  dr_tensors_init(&tensors);
  tensors.q = q.data();
  tensors.k = k.data();
  tensors.v = v.data();
  tensors.g = g.data();
  tensors.beta = beta.data();
  tensors.o = o.data();
  tensors.initial = initial.data();
  tensors.final = final_state.data();
  check::PlannedRun run(problem, request.options);
  run.execute(tensors);
  for (int64_t head = 0; head < kHeads; ++head) {
    for (int64_t t = 0; t < kTokens; ++t) {
      EXPECT_EQ(
          std::memcmp(o.data() + t * kFarToken + head * kFarHead, x.o().data + x.o().at(0, t, head, 0) * 4, kWidth * 4),
          0)
          << "token " << t << ", head " << head;
    }
    EXPECT_EQ(std::memcmp(final_state.data() + head * kFarToken * 3,
                          x.final_state().data + static_cast<size_t>(head) * state_bytes, state_bytes),
              0)
        << "final state of head " << head;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Far, testing::Values("backend=reference", "backend=" + backend_under_test()));

// A pool with slots beyond 2^31 elements, in place, is written only at the indexed slots.
TEST(FarSlots, PoolBeyond32Bits) {
  const cases::Case c = on_backend(cases::parse("gdn fp32 hv=1 dk=64 seqs=70,65 init final segments=off"));
  const Ran near(c);
  cases::Request request(c);
  constexpr int64_t kSlots = 5;
  const SparseMapping pool(static_cast<size_t>(kSlots * kFarToken) * sizeof(float));
  if (pool.data() == nullptr) GTEST_SKIP() << "the system refuses to map a sparse pool";
  request.problem.initial.use = request.problem.final.use = DR_STATE_SLOTS;
  request.problem.initial.num_slots = request.problem.final.num_slots = kSlots;
  request.problem.initial.stride_slot = request.problem.final.stride_slot = kFarToken;
  const int32_t index[2] = {4, 0};
  const size_t state = kWidth * kWidth;
  check::TensorSet x(c);
  for (int64_t n = 0; n < 2; ++n) {
    std::memcpy(pool.data() + index[n] * kFarToken, x.initial().data + static_cast<size_t>(n) * state * 4, state * 4);
  }
  dr_tensors tensors = x.tensors();
  tensors.initial = pool.data();
  tensors.final = pool.data();
  tensors.initial_index = tensors.final_index = index;
  check::PlannedRun run(request.problem, request.options);
  run.execute(tensors);
  for (int64_t n = 0; n < 2; ++n) {
    EXPECT_EQ(std::memcmp(pool.data() + index[n] * kFarToken,
                          near.tensors.final_state().data + static_cast<size_t>(n) * state * 4, state * 4),
              0)
        << "sequence " << n;
  }
}

// Memory that a sanitizer watches is slow: there three lines have every word of the five, each with as many pairs.
const char* lines_of_many() {
#if DR_SANITIZED
  return R"(
  pairs-over-65535-late:  kda bf16 hv=2 dk=4 dv=8 seqs=1x33000,70 lengths=execute init final
  pairs-over-65535-batch: gdn fp32 hv=4 dk=4 batch=17000x1 init=key final=in-place
  heads-over-65535:       kda fp32 hv=65536 dk=4 seqs=3 final
)";
#else
  return R"(
  pairs-over-65535:       kda fp32 hv=2 dk=8 seqs=2x35000 init final
  pairs-over-65535-gdn:   gdn bf16 hv=32 dk=8 dv=16 seqs=8x2050
  pairs-over-65535-batch: gdn fp32 hv=4 dk=4 batch=17000x1 init=key final=in-place
  heads-over-65535:       kda fp32 hv=65536 dk=4 seqs=3 final
  late:                   gdn fp32 hv=2 dk=8 seqs=1x33000,70 lengths=execute final
)";
#endif
}

INSTANTIATE_TEST_SUITE_P(Many, ForwardCase, testing::ValuesIn(cases_in(lines_of_many())), name_of);

}  // namespace
}  // namespace deltarelay::forward
