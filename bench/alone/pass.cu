// The state pass alone, sequences not cut: KDA with k_to_end, GDN with k, both with sums of gates. Times, and errors of
// a short case against the recurrence in fp64 on the host. The argument is a name to print. Errors are rms over rms of
// a tensor of a head, the worst head. Hashes are of the outputs.
//
// Rows that store less, or whose tensors lie in L2, say what bounds the others.
#include <cmath>
#include <initializer_list>

#include "kernels/cuda/sm90/stages/pass.cuh"
#include "walk.cuh"

namespace deltarelay::alone {
namespace {

constexpr int kWidth = cuda::sm90::kWidth, kChunk = cuda::sm90::kStageChunk;

struct PassShape {
  const char* name;
  bool gdn;
  int tokens, heads_qk, heads_v;  // one sequence
  bool states, v_new;             // what is stored
  Form form = Form::kPair;
  bool checked = false;
  Work work = Work::kEmit;  // a summary has weak gates, so that M lives to its end
};

// Sums of a chunk's log-decays, base 2; the decay of a whole chunk is at most 0.75, so that states stay bounded.
__global__ void sums_kernel(float* sums, int tokens, int heads, int width) {
  const int chunk = blockIdx.x, head = blockIdx.y, channel = threadIdx.x;
  float sum = 0.0f;
  for (int t = chunk * kChunk; t < min(tokens, (chunk + 1) * kChunk); ++t) {
    const size_t at = (static_cast<size_t>(t) * heads + head) * width + channel;
    sum -= 0.0065f + 0.05f * uniform_of(at, 77);
    sums[at] = sum;
  }
}

// Tensors of tokens, or of the 128 rows of states: boxes of 64 rows.
CUtensorMap box_map(const void* data, int rows, int heads, bool states, int matrices = 1) {
  const auto heads_64 = static_cast<cuuint64_t>(heads);
  const cuuint64_t row = kWidth * sizeof(Element), matrix = row * kWidth;
  return encode(
      data, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      {.sizes = {64, static_cast<cuuint64_t>(rows), 2, heads_64, static_cast<cuuint64_t>(matrices)},
       .strides = {states ? row : heads_64 * row, 128, states ? matrix : row, states ? heads_64 * matrix : 16},
       .box = {64, 64, states ? 2u : 1u, 1, 1}},
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

class Pass {
 public:
  explicit Pass(const PassShape& shape)
      : shape_(shape),
        w_(rows(shape.heads_v, kWidth)),
        keys_(rows(key_heads(), kWidth)),
        u_(rows(shape.heads_v, kWidth)),
        v_new_(rows(shape.heads_v, kWidth)),
        states_(count({chunks(), shape.heads_v}) * kMatrix),
        sums_(rows(shape.heads_v, gate_width())),
        initial_(count({shape.heads_v}) * kMatrix),
        final_(count({shape.heads_v}) * kMatrix),
        slot_state_(count({shape.heads_v}) * kMatrix),
        slot_transition_(count({shape.heads_v}) * kMatrix),
        slot_lives_(count({2, shape.heads_v})) {
    w_.fill(Fill::kNormal, 1, 0.03f);
    keys_.fill(Fill::kNormal, 2, 0.088f);
    u_.fill(Fill::kNormal, 3);
    initial_.fill(Fill::kNormal, 4, 0.5f);
    sums_kernel<<<dim3(static_cast<unsigned>(chunks()), static_cast<unsigned>(shape.heads_v)),
                  static_cast<unsigned>(gate_width())>>>(sums_.data(), shape.tokens, shape.heads_v, gate_width());
    v_new_.poison();
    states_.poison();
    final_.poison();
  }

  void run() {
    namespace sm90 = cuda::sm90;
    const int hv = shape_.heads_v;
    sm90::StatePassMaps maps{};
    maps.w = box_map(w_.data(), shape_.tokens, hv, false);
    maps.keys = box_map(keys_.data(), shape_.tokens, key_heads(), false);
    maps.u = box_map(u_.data(), shape_.tokens, hv, false);
    maps.v_new = box_map(v_new_.data(), shape_.tokens, hv, false);
    maps.states = box_map(states_.data(), kWidth, hv, true, chunks());
    sm90::StatePassArgs args{};
    cuda::WalkArgs& walk = args.walk;
    write_table(walk.tables);
    walk.phase = 1;
    walk.row_bound = 1;
    walk.initial = pool(initial_.data());
    walk.final = pool(final_.data());
    walk.slot_state = slot_state_.data();
    walk.slot_transition = slot_transition_.data();
    walk.slot_lives = slot_lives_.data();
    if (shape_.v_new) walk.o = {v_new_.data(), hv * kWidth, kWidth, 0, DType::kBf16};
    walk.heads_qk = shape_.heads_qk;
    walk.heads_v = hv;
    walk.strips = {hv, 1};
    args.gates.sums = sums_.data();
    args.gates.sums_scale = emits() ? 1.0f : 0.01f;
    args.gates.heads = hv;
    args.scales_v_new = shape_.gdn;
    args.wants_states = shape_.states;
    const auto launch = [&] {
      if (shape_.form == Form::kPair)
        shape_.gdn ? this->launch<Form::kPair, true>(maps, args) : this->launch<Form::kPair, false>(maps, args);
      else
        shape_.gdn ? this->launch<Form::kSingle, true>(maps, args) : this->launch<Form::kSingle, false>(maps, args);
    };
    launch();
    require(cudaDeviceSynchronize(), "the kernel");
    std::printf("  %-15s", shape_.name);
    if (shape_.states) print_hash(states_);
    if (shape_.v_new) print_hash(v_new_);
    emits() ? print_hash(final_) : (print_hash(slot_state_), print_hash(slot_transition_));
    if (shape_.checked) check();
    if (!shape_.checked) time(launch);
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  template <Form kForm, bool kScalar>
  void launch(const cuda::sm90::StatePassMaps& maps, const cuda::sm90::StatePassArgs& args) const {
    namespace pass = cuda::sm90::pass;
    auto* const kernel = pass::state_pass_kernel<kForm, kScalar, Element>;
    constexpr size_t kBytes = sizeof(pass::Shared<kForm, kScalar>);
    require(cuda::load_kernel(kernel, kBytes), "load_kernel");
    const unsigned cluster = static_cast<unsigned>(ctas(kForm));
    const cuda::LaunchShape how{.grid = dim3(static_cast<unsigned>(shape_.heads_v) * cluster),
                                .block = pass::kThreads,
                                .shared_bytes = kBytes,
                                .cluster = cluster};
    require(cuda::launch_dependent(kernel, how, nullptr, maps, args), "launch");
  }

  static constexpr size_t kMatrix = size_t{kWidth} * kWidth;

  int chunks() const { return (shape_.tokens + kChunk - 1) / kChunk; }
  bool emits() const { return shape_.work == Work::kEmit; }
  int key_heads() const { return shape_.gdn ? shape_.heads_qk : shape_.heads_v; }
  int gate_width() const { return shape_.gdn ? 1 : kWidth; }
  static size_t count(std::initializer_list<int> sizes) {
    size_t all = 1;
    for (const int size : sizes) all *= static_cast<size_t>(size);
    return all;
  }
  static size_t index(int row, int heads, int head, int width) {
    return count({row, heads, width}) + count({head, width});
  }
  size_t rows(int heads, int width) const { return count({shape_.tokens, heads, width}); }
  cuda::StateView pool(float* data) const {
    cuda::StateView pool{};
    pool.data = data;
    pool.stride_head = kMatrix;
    pool.stride_slot = shape_.heads_v * pool.stride_head;
    pool.num_slots = 1;
    pool.layout = StateLayout::kValueMajor;
    pool.dtype = DType::kFp32;
    pool.index_dtype = DType::kInt32;
    return pool;
  }
  void write_table(cuda::Tables& table) const {
    const int64_t token_begin[2] = {0, shape_.tokens};
    const int32_t chunk_begin[2] = {0, chunks()};
    const Row row = {0, 0, chunks(), shape_.work, -1, emits() ? -1 : 0, -1};
    const int32_t counts[3] = {1, 0, 0};
    table.num_seqs = 1;
    table.at_chunk_begin = 16;
    table.at_rows1 = 32;
    table.at_folds = table.at_rows3 = table.at_counts = 64;
    std::memcpy(table.image, token_begin, sizeof token_begin);
    std::memcpy(table.image + 16, chunk_begin, sizeof chunk_begin);
    std::memcpy(table.image + 32, &row, sizeof row);
    std::memcpy(table.image + 64, counts, sizeof counts);
  }

  // Start and end of the kernel are included.
  template <class Launch>
  void time(const Launch& launch) const {
    const Series series = time_series<8, 8>(launch);
    std::printf("  %.4f ms, %.3f (%.3f) us a chunk", series.median, 1e3 * series.median / chunks(),
                1e3 * series.least / chunks());
  }

  void check() const {
    const auto w = copied(w_), keys = copied(keys_), u = copied(u_), v_new = copied(v_new_), states = copied(states_);
    const auto sums = copied(sums_), initial = copied(initial_), final = copied(final_);
    const int hv = shape_.heads_v, hk = key_heads();
    const auto number = [](const std::vector<Element>& x, size_t at) {
      return static_cast<double>(static_cast<float>(x[at]));
    };
    const auto at = [](int row, int column) { return index(row, 1, 0, kWidth) + static_cast<size_t>(column); };
    double worst[3] = {};
    for (int h = 0; h < hv; ++h) {
      const int key_head = h / (hv / hk);
      std::vector<double> s(kMatrix), v(static_cast<size_t>(kChunk) * kWidth);  // s: [value][key]
      for (size_t i = 0; i < kMatrix; ++i) s[i] = static_cast<double>(initial[index(0, hv, h, 1) * kMatrix + i]);
      Error errors[3];
      for (int c = 0; c < chunks(); ++c) {
        const int first = c * kChunk, valid = std::min(kChunk, shape_.tokens - first);
        for (size_t i = 0; i < kMatrix; ++i) errors[0].add(number(states, index(c, hv, h, 1) * kMatrix + i), s[i]);
        const auto row = [&](int t, int heads, int head, int column) {
          return index(first + t, heads, head, kWidth) + static_cast<size_t>(column);
        };
        for (int t = 0; t < valid; ++t) {
          for (int j = 0; j < kWidth; ++j) {
            double x = number(u, row(t, hv, h, j));
            for (int i = 0; i < kWidth; ++i) x -= number(w, row(t, hv, h, i)) * s[at(j, i)];
            v[at(t, j)] = x;
            errors[1].add(number(v_new, row(t, hv, h, j)), x);
          }
        }
        const auto sum_of = [&](int t, int i) {
          return static_cast<double>(sums[index(first + t, hv, h, gate_width()) + static_cast<size_t>(i)]);
        };
        for (int i = 0; i < kWidth; ++i) {
          const double decay = std::exp2(sum_of(valid - 1, shape_.gdn ? 0 : i));
          for (int j = 0; j < kWidth; ++j) s[at(j, i)] *= decay;
        }
        for (int t = 0; t < valid; ++t) {
          const double update = shape_.gdn ? std::exp2(sum_of(valid - 1, 0) - sum_of(t, 0)) : 1.0;
          for (int i = 0; i < kWidth; ++i) {
            const double key = update * number(keys, row(t, hk, key_head, i));
            for (int j = 0; j < kWidth; ++j) s[at(j, i)] += key * v[at(t, j)];
          }
        }
      }
      for (size_t i = 0; i < kMatrix; ++i)
        errors[2].add(static_cast<double>(final[index(0, hv, h, 1) * kMatrix + i]), s[i]);
      for (int e = 0; e < 3; ++e) {
        if (!(errors[e].value() <= worst[e])) worst[e] = errors[e].value();
      }
    }
    std::printf("  errors of states %.1e, V_new %.1e, final %.1e", worst[0], worst[1], worst[2]);
    if (!(worst[0] < 5e-3 && worst[1] < 5e-3 && worst[2] < 5e-3)) std::printf("  WRONG");
  }

  template <class T>
  static void print_hash(const Array<T>& of) {
    std::printf(" %04llx", content_of(of).hash & 0xffff);
  }

  const PassShape shape_;
  Array<Element> w_, keys_, u_, v_new_, states_;
  Array<float> sums_, initial_, final_, slot_state_, slot_transition_;
  Array<uint32_t> slot_lives_;
};

}  // namespace
}  // namespace deltarelay::alone

int main(int argc, char** argv) {
  using deltarelay::Form;
  using deltarelay::alone::Pass;
  constexpr auto kSummarize = deltarelay::Work::kSummarize;
  std::printf("%s: hashes of states, V_new, final, or B and M\n", argc > 1 ? argv[1] : "pass");
  for (const bool gdn : {false, true}) {
    const auto name = [gdn](const char* kda, const char* of_gdn) { return gdn ? of_gdn : kda; };
    const int hqk = gdn ? 2 : 4;
    Pass({name("kda-short", "gdn-short"), gdn, 200, hqk, 4, true, true, Form::kPair, true}).run();
    Pass({name("kda-single", "gdn-single"), gdn, 200, hqk, 4, true, true, Form::kSingle, true}).run();
    Pass({name("kda", "gdn"), gdn, 65536, hqk, 4, true, true}).run();
    Pass({name("kda-states", "gdn-states"), gdn, 65536, hqk, 4, true, false}).run();
    Pass({name("kda-final", "gdn-final"), gdn, 65536, hqk, 4, false, false}).run();
    Pass({name("kda-in-l2", "gdn-in-l2"), gdn, 4096, hqk, 4, true, true}).run();
    Pass({name("kda-in-l2-half", "gdn-in-l2-half"), gdn, 2048, hqk, 4, true, true}).run();
    Pass({name("kda-in-l2-final", "gdn-in-l2-final"), gdn, 4096, hqk, 4, false, false}).run();
    Pass({name("kda-1-cta", "gdn-1-cta"), gdn, 65536, hqk, 4, true, true, Form::kSingle}).run();
    // All multiprocessors at work, as in the phases of a cut call.
    Pass({name("kda-h64", "gdn-h64"), gdn, 8192, 16 * hqk, 64, true, true}).run();
    Pass({name("kda-summary", "gdn-summary"), gdn, 8192, 16 * hqk, 64, false, false, Form::kPair, false, kSummarize})
        .run();
  }
}
