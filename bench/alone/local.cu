// The chunk-local kernels of KDA alone, with scores and from a given inverse: times, and errors of some chunks against
// fp64 on the host. The argument is a name to print. Errors are rms over rms of a tensor of the chunk, the worst of
// those that were checked.
#include <cmath>

#include "kernels/cuda/sm90/stages/local_again.cuh"
#include "walk.cuh"

namespace deltarelay::alone {
namespace {

constexpr int kWidth = cuda::sm90::kWidth, kChunk = cuda::sm90::kStageChunk;
constexpr int kAll = DR_AQK | DR_INVERSE | DR_W | DR_U | DR_K_TO_END | DR_Q_FROM_START;

enum class Gates { kBounded, kSoftplus, kSums, kStrong, kMixed };

struct LocalShape {
  const char* name;
  int tokens, heads_qk, heads_v, wanted;  // one sequence
  Gates gates;
  bool timed;
  bool given = false;  // the inverse, which a run with scores has made
};

// Log-decays in base e of sums: uniform in (-5, 0); kStrong: in (-40, 0); kMixed: in half of the chunks strong.
__device__ float log_gate(size_t index, int chunk, Gates gates) {
  const float x = -uniform_of(index, 77);
  return x * (gates == Gates::kStrong || (gates == Gates::kMixed && chunk % 2 == 1) ? 40.0f : 5.0f);
}
__global__ void sums_kernel(float* sums, int tokens, int heads, Gates gates) {
  const int chunk = blockIdx.x, head = blockIdx.y, channel = threadIdx.x;
  float sum = 0.0f;
  for (int t = chunk * kChunk; t < min(tokens, (chunk + 1) * kChunk); ++t) {
    const size_t at = (static_cast<size_t>(t) * heads + head) * kWidth + channel;
    sum += log_gate(at, chunk, gates) * 1.4426950408889634f;
    sums[at] = sum;
  }
}

CUtensorMap box_map(const void* data, int tokens, int heads, int halves, cuuint32_t box_halves = 1) {
  const auto heads_64 = static_cast<cuuint64_t>(heads);
  const cuuint64_t head = static_cast<cuuint64_t>(halves) * 128;
  return encode(data, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                {.sizes = {64, static_cast<cuuint64_t>(tokens), static_cast<cuuint64_t>(halves), heads_64, 1},
                 .strides = {heads_64 * head, 128, head, 16},
                 .box = {64, kChunk, box_halves, 1, 1}},
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

class Local {
 public:
  explicit Local(const LocalShape& shape)
      : shape_(shape),
        q_(rows(shape.heads_qk, kWidth)),
        k_(rows(shape.heads_qk, kWidth)),
        v_(rows(shape.heads_v, kWidth)),
        g_(raw() ? rows(shape.heads_v, kWidth) : 1),
        sums_(raw() ? 1 : rows(shape.heads_v, kWidth)),
        beta_(rows(shape.heads_v, 1)),
        a_log_(shape.heads_v),
        bias_(static_cast<size_t>(shape.heads_v) * kWidth),
        aqk_(rows(shape.heads_v, kChunk)),
        inverse_(rows(shape.heads_v, kChunk)),
        w_(rows(shape.heads_v, kWidth)),
        u_(rows(shape.heads_v, kWidth)),
        to_end_(rows(shape.heads_v, kWidth)),
        from_start_(rows(shape.heads_v, kWidth)) {
    q_.fill(Fill::kNormal, 1);
    k_.fill(Fill::kNormal, 2);
    v_.fill(Fill::kNormal, 3);
    beta_.fill(Fill::kStrength, 4);
    if (raw()) {
      g_.fill(Fill::kNormal, 5);
      a_log_.fill(Fill::kNormal, 6, 0.5f);
      bias_.fill(Fill::kNormal, 7, shape.gates == Gates::kSoftplus ? 0.3f : 1.0f);
    } else {
      sums_kernel<<<dim3(chunks(), shape.heads_v), kWidth>>>(sums_.data(), shape.tokens, shape.heads_v, shape.gates);
    }
    for (Array<Element>* x : {&aqk_, &inverse_, &w_, &u_, &to_end_, &from_start_}) x->poison();
  }

  void run() {
    namespace sm90 = cuda::sm90;
    sm90::LocalMaps maps{};
    const int hv = shape_.heads_v;
    maps.q = box_map(q_.data(), shape_.tokens, shape_.heads_qk, 2, 2);
    maps.k = box_map(k_.data(), shape_.tokens, shape_.heads_qk, 2, 2);
    maps.v = box_map(v_.data(), shape_.tokens, hv, 2, 2);
    maps.aqk = box_map(aqk_.data(), shape_.tokens, hv, 1);
    maps.inverse = box_map(inverse_.data(), shape_.tokens, hv, 1);
    maps.w = box_map(w_.data(), shape_.tokens, hv, 2);
    maps.u = box_map(u_.data(), shape_.tokens, hv, 2);
    sm90::LocalArgs args{};
    cuda::ChunkArgs& call = args.call;
    write_table(call.tables);
    cuda::Activation& activation = call.activation;
    activation.beta = view(beta_.data(), 1);
    if (raw()) activation.g = view(g_.data(), kWidth);
    activation.a_log = a_log_.data();
    activation.dt_bias = bias_.data();
    activation.dtype_a_log = activation.dtype_dt_bias = DType::kFp32;
    activation.gate_form = shape_.gates == Gates::kBounded ? GateForm::kRawBounded : GateForm::kRawSoftplus;
    activation.beta_form = BetaForm::kValue;
    activation.lower_bound = -5.0f;
    activation.scale = kScale;
    activation.l2norm = true;
    call.stage.aqk = aqk_.data();
    call.stage.inverse = inverse_.data();
    call.stage.w = w_.data();
    call.stage.u = u_.data();
    call.stage.k_to_end = to_end_.data();
    call.stage.q_from_start = from_start_.data();
    call.stage.gate_sums = raw() ? nullptr : sums_.data();
    call.stage.given = raw() ? 0 : DR_GATE_SUMS;
    call.stage.wanted = shape_.wanted;
    call.stage.chunk = kChunk;
    call.stage.sums_base_2 = true;
    call.heads_qk = shape_.heads_qk;
    call.heads_v = hv;
    call.chunks = chunks();
    args.strips_a_head = 1;
    args.group = hv / shape_.heads_qk;
    args.reads_q = args.reads_k = args.reads_v = true;
    if (shape_.given) {
      args.call.stage.wanted = DR_INVERSE;
      launch<true>(maps, args);
      args.call.stage.given |= DR_INVERSE;
      args.call.stage.wanted = shape_.wanted;
      args.reads_q = (shape_.wanted & DR_Q_FROM_START) != 0;
    }
    const auto launch = [&] {
      if (shape_.given && sm90::makes_again(args.call.stage)) return launch_again(maps, args);
      shape_.given ? this->launch<false>(maps, args) : this->launch<true>(maps, args);
    };
    launch();
    require(cudaDeviceSynchronize(), "the kernel");
    std::printf("  %s", shape_.name);
    check();
    if (shape_.timed) time(launch);
    std::fflush(stdout);
  }

 private:
  template <bool kScores>
  void launch(const cuda::sm90::LocalMaps& maps, const cuda::sm90::LocalArgs& args) const {
    namespace local = cuda::sm90::local;
    auto* const kernel = local::local_kernel<Element, false, kScores>;
    constexpr size_t kBytes = sizeof(local::Shared<false, kScores>);
    require(cuda::load_kernel(kernel, kBytes), "load_kernel");
    const dim3 grid(static_cast<unsigned>(shape_.heads_v), static_cast<unsigned>(chunks()));
    require(cuda::launch_dependent(kernel, grid, local::kThreads, kBytes, nullptr, maps, args), "launch");
  }

  void launch_again(const cuda::sm90::LocalMaps& maps, const cuda::sm90::LocalArgs& args) const {
    namespace local = cuda::sm90::local;
    auto* const kernel = local::again_kernel<Element>;
    require(cuda::load_kernel(kernel, sizeof(local::AgainShared)), "load_kernel");
    const dim3 grid(static_cast<unsigned>(shape_.heads_v), static_cast<unsigned>(chunks()));
    require(cuda::launch_dependent(kernel, grid, local::kThreads, sizeof(local::AgainShared), nullptr, maps, args),
            "launch");
  }

  static constexpr float kScale = 0.08838835f;

  bool raw() const { return shape_.gates == Gates::kBounded || shape_.gates == Gates::kSoftplus; }
  int chunks() const { return (shape_.tokens + kChunk - 1) / kChunk; }
  size_t rows(int heads, int width) const { return static_cast<size_t>(shape_.tokens) * heads * width; }
  cuda::TensorView view(Element* data, int64_t width) const {
    return {data, shape_.heads_v * width, width, 0, DType::kBf16};
  }
  void write_table(cuda::Tables& table) const {
    const int64_t token_begin[2] = {0, shape_.tokens};
    const int32_t chunk_begin[2] = {0, chunks()};
    table.num_seqs = 1;
    table.at_token_begin = 0;
    table.at_chunk_begin = 16;
    std::memcpy(table.image, token_begin, sizeof token_begin);
    std::memcpy(table.image + 16, chunk_begin, sizeof chunk_begin);
  }

  template <class Launch>
  void time(const Launch& launch) const {
    const Series series = time_series<20, 12>(launch);
    double a_token = (shape_.given ? 1.0 : 2.0) * kWidth * 2 * shape_.heads_qk + (kWidth * 2 + 2) * shape_.heads_v;
    a_token += shape_.given ? 2.0 * kChunk * shape_.heads_v : 0;
    a_token += (raw() ? 2.0 : 4.0) * kWidth * shape_.heads_v;
    for (const int bit : {DR_AQK, DR_INVERSE})
      a_token += (shape_.wanted & bit) != 0 ? 2.0 * kChunk * shape_.heads_v : 0;
    for (const int bit : {DR_W, DR_U, DR_K_TO_END, DR_Q_FROM_START})
      a_token += (shape_.wanted & bit) != 0 ? 2.0 * kWidth * shape_.heads_v : 0;
    std::printf("  %.4f (%.4f) ms, %.2f TB/s\n", series.median, series.least,
                a_token * shape_.tokens / series.median * 1e-9);
  }

  void check() const {
    const auto q = copied(q_), k = copied(k_), v = copied(v_), beta = copied(beta_), aqk = copied(aqk_),
               inverse = copied(inverse_), w = copied(w_), u = copied(u_), to_end = copied(to_end_),
               from_start = copied(from_start_), g = copied(g_);
    const auto sums = copied(sums_), a_log = copied(a_log_), bias = copied(bias_);
    double worst[6] = {};
    for (int i = 0; i < 6; ++i) {
      const int chunk = i == 0 ? chunks() - 1 : (i * 37) % chunks(), head = (i * 13) % shape_.heads_v;
      const int first = chunk * kChunk, valid = std::min(kChunk, shape_.tokens - first);
      const int key_head = head / (shape_.heads_v / shape_.heads_qk), hv = shape_.heads_v;
      static double G[kChunk][kWidth], nq[kChunk], nk[kChunk], akk[kChunk][kChunk], inv[kChunk][kChunk];
      auto number = [](const std::vector<Element>& x, size_t at) {
        return static_cast<double>(static_cast<float>(x[at]));
      };
      auto at = [&](int t, int heads, int h, int width, int c) {
        return (static_cast<size_t>(first + t) * heads + h) * width + c;
      };
      Error errors[6];
      for (int t = 0; t < valid; ++t) {
        nq[t] = nk[t] = 1e-6;
        for (int c = 0; c < kWidth; ++c) {
          nq[t] += std::pow(number(q, at(t, shape_.heads_qk, key_head, kWidth, c)), 2);
          nk[t] += std::pow(number(k, at(t, shape_.heads_qk, key_head, kWidth, c)), 2);
          double gate = 0.0;
          if (raw()) {
            const double x = number(g, at(t, hv, head, kWidth, c)) + bias[static_cast<size_t>(head) * kWidth + c];
            const double a = std::exp(static_cast<double>(a_log[head]));
            gate = shape_.gates == Gates::kBounded ? -5.0 / (1 + std::exp(-a * x)) : -a * std::log1p(std::exp(x));
            G[t][c] = (t > 0 ? G[t - 1][c] : 0.0) + gate;
          } else {
            G[t][c] = sums[at(t, hv, head, kWidth, c)] * std::log(2.0);
          }
        }
        nq[t] = 1 / std::sqrt(nq[t]);
        nk[t] = 1 / std::sqrt(nk[t]);
      }
      for (int r = 0; r < valid; ++r) {
        const double b = number(beta, at(r, hv, head, 1, 0));
        for (int j = 0; j < kChunk; ++j) {
          double qk = 0.0, kk = 0.0;
          for (int c = 0; j <= r && c < kWidth; ++c) {
            const double x =
                number(k, at(j, shape_.heads_qk, key_head, kWidth, c)) * nk[j] * std::exp(G[r][c] - G[j][c]);
            qk += number(q, at(r, shape_.heads_qk, key_head, kWidth, c)) * nq[r] * x;
            kk += number(k, at(r, shape_.heads_qk, key_head, kWidth, c)) * nk[r] * x;
          }
          errors[0].add(number(aqk, at(r, hv, head, kChunk, j)), qk * kScale);
          akk[r][j] = j < r ? b * kk : 0.0;
        }
        for (int j = 0; j < kChunk; ++j) {
          double x = r == j ? 1.0 : 0.0;
          for (int m = 0; m < r; ++m) x -= akk[r][m] * inv[m][j];
          inv[r][j] = x;
          errors[1].add(number(inverse, at(r, hv, head, kChunk, j)), x);
        }
        for (int c = 0; c < kWidth; ++c) {
          double ww = 0.0, uu = 0.0;
          for (int m = 0; m <= r; ++m) {
            const double s = inv[r][m] * number(beta, at(m, hv, head, 1, 0));
            ww += s * nk[m] * number(k, at(m, shape_.heads_qk, key_head, kWidth, c)) * std::exp(G[m][c]);
            uu += s * number(v, at(m, hv, head, kWidth, c));
          }
          errors[2].add(number(w, at(r, hv, head, kWidth, c)), ww);
          errors[3].add(number(u, at(r, hv, head, kWidth, c)), uu);
          errors[4].add(
              number(to_end, at(r, hv, head, kWidth, c)),
              number(k, at(r, shape_.heads_qk, key_head, kWidth, c)) * nk[r] * std::exp(G[valid - 1][c] - G[r][c]));
          errors[5].add(number(from_start, at(r, hv, head, kWidth, c)),
                        number(q, at(r, shape_.heads_qk, key_head, kWidth, c)) * nq[r] * std::exp(G[r][c]));
        }
      }
      for (int e = 0; e < 6; ++e) {
        const double error = errors[e].value();
        if (!(error <= worst[e])) worst[e] = error;
      }
    }
    constexpr int kBits[] = {DR_AQK, DR_INVERSE, DR_W, DR_U, DR_K_TO_END, DR_Q_FROM_START};
    for (int e = 0; e < 6; ++e)
      if ((shape_.wanted & kBits[e]) != 0) std::printf(" %.1e", worst[e]);
    if (!shape_.timed) std::printf("\n");
  }

  const LocalShape shape_;
  Array<Element> q_, k_, v_, g_;
  Array<float> sums_;
  Array<Element> beta_;
  Array<float> a_log_, bias_;
  Array<Element> aqk_, inverse_, w_, u_, to_end_, from_start_;
};

}  // namespace
}  // namespace deltarelay::alone

int main(int argc, char** argv) {
  using deltarelay::alone::Gates;
  using deltarelay::alone::kAll;
  using deltarelay::alone::Local;
  std::printf("%s: errors of aqk, inverse, w, u, k_to_end, q_from_start; ms\n", argc > 1 ? argv[1] : "local");
  Local({"bounded", 4096, 32, 32, kAll, Gates::kBounded, true}).run();
  Local({"softplus", 4096, 32, 32, kAll & ~DR_Q_FROM_START, Gates::kSoftplus, true}).run();
  Local({"intra-h64", 8192, 64, 64, kAll & ~DR_Q_FROM_START, Gates::kSums, true}).run();
  Local({"strong", 4096, 32, 32, kAll, Gates::kStrong, true}).run();
  constexpr int kGiven = DR_W | DR_U | DR_K_TO_END;
  Local({"recompute-h64", 8192, 64, 64, kGiven, Gates::kSums, true, true}).run();
  Local({"recompute-16", 4096, 16, 32, kGiven | DR_Q_FROM_START, Gates::kBounded, true, true}).run();
  Local({"recompute-short", 1000, 4, 8, kGiven, Gates::kMixed, false, true}).run();
  Local({"short", 1000, 4, 8, kAll, Gates::kSums, false}).run();
  Local({"mixed", 4096, 4, 8, kAll, Gates::kMixed, false}).run();
  Local({"one", 1, 2, 2, kAll, Gates::kBounded, false}).run();
}
