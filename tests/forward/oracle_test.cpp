// Checks the oracle: the reference backend against a second implementation, written here from the header alone, element
// by element, without code of the library.
#include <cmath>
#include <limits>

#include "forward_case.h"

namespace deltarelay::forward {
namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// The recurrence of deltarelay.h for every sequence and head.
class Definition {
 public:
  explicit Definition(const check::TensorSet& x) : x_(x), c_(x.of()), positions_(cases::checkpoint_positions(c_)) {
    const auto state = static_cast<size_t>(c_.heads_v) * static_cast<size_t>(c_.dk) * static_cast<size_t>(c_.dv);
    result.o.resize(static_cast<size_t>(c_.num_tokens() * c_.heads_v * c_.dv));
    result.final_state.resize(static_cast<size_t>(c_.num_seqs()) * state);
    result.checkpoint.resize(x.checkpoint_sequence().size() * state);
    int64_t row = 0;
    for (int64_t n = 0; n < c_.num_seqs(); ++n) {
      for (int64_t head = 0; head < c_.heads_v; ++head) run(n, head, row);
      row += static_cast<int64_t>(positions_[static_cast<size_t>(n)].size());
    }
  }

  check::Reference result;

 private:
  void run(int64_t n, int64_t head, int64_t first_checkpoint) {
    S_.assign(static_cast<size_t>(c_.dk * c_.dv), 0.0);
    read_initial(n, head);
    const std::vector<int64_t>& positions = positions_[static_cast<size_t>(n)];
    const int64_t length = c_.lengths[static_cast<size_t>(n)];
    const auto keep = [&](int64_t seen) {
      for (size_t j = 0; j < positions.size(); ++j) {
        if (positions[j] == seen) write(result.checkpoint, first_checkpoint + static_cast<int64_t>(j), head);
      }
    };
    keep(0);
    for (int64_t t = 0; t < length; ++t) {
      token(n, head, t);
      keep(t + 1);
    }
    write(result.final_state, n, head);
  }

  void token(int64_t n, int64_t head, int64_t t) {
    const int64_t head_qk = head / (c_.heads_v / c_.heads_qk);
    std::vector<double> q = row(x_.q(), n, t, head_qk);
    std::vector<double> k = row(x_.k(), n, t, head_qk);
    const std::vector<double> v = row(x_.v(), n, t, head);
    const std::vector<double> g = row(x_.g(), n, t, head);
    if (c_.l2norm) {
      normalise(q);
      normalise(k);
    }
    double beta = row(x_.beta(), n, t, head)[0];
    if (c_.beta_form() != DR_BETA_VALUE) beta = sigmoid(beta) * (c_.beta_form() == DR_BETA_TWICE_LOGIT ? 2.0 : 1.0);
    for (int64_t i = 0; i < c_.dk; ++i) {
      const double decay = std::exp(log_decay(g[static_cast<size_t>(c_.rule == DR_KDA ? i : 0)], head, i));
      for (int64_t c = 0; c < c_.dv; ++c) S(i, c) *= decay;
    }
    const double scale = static_cast<double>(
        c_.scale ? static_cast<float>(*c_.scale) : static_cast<float>(1.0 / std::sqrt(static_cast<double>(c_.dk))));
    const int64_t out = (c_.offsets()[static_cast<size_t>(n)] + t) * c_.heads_v + head;
    for (int64_t c = 0; c < c_.dv; ++c) {
      double r = v[static_cast<size_t>(c)];
      for (int64_t i = 0; i < c_.dk; ++i) r -= S(i, c) * k[static_cast<size_t>(i)];
      double o = 0.0;
      for (int64_t i = 0; i < c_.dk; ++i) {
        S(i, c) += beta * k[static_cast<size_t>(i)] * r;
        o += S(i, c) * q[static_cast<size_t>(i)];
      }
      result.o[static_cast<size_t>(out * c_.dv + c)] = static_cast<float>(scale * o);
    }
  }

  double log_decay(double g, int64_t head, int64_t i) const {
    const auto* a_log = static_cast<const float*>(x_.tensors().a_log);
    const auto* dt_bias = static_cast<const float*>(x_.tensors().dt_bias);
    const double a = a_log != nullptr ? std::exp(static_cast<double>(a_log[head])) : 1.0;
    const double bias =
        dt_bias != nullptr ? static_cast<double>(dt_bias[c_.rule == DR_KDA ? head * c_.dk + i : head]) : 0.0;
    switch (c_.gate_form) {
      case DR_GATE_RAW_SOFTPLUS:
        return -a * std::log(1.0 + std::exp(g + bias));
      case DR_GATE_RAW_BOUNDED:
        return c_.lower_bound * sigmoid(a * (g + bias));
      default:
        break;
    }
    const double logarithm = c_.gate_form == DR_GATE_LINEAR ? std::log(g) : g;
    return c_.gate_floor < 0.0 ? std::max(logarithm, c_.gate_floor) : logarithm;
  }

  void read_initial(int64_t n, int64_t head) {
    if (!x_.initial().used()) return;
    const int64_t slot = x_.initial().slots[static_cast<size_t>(n)];
    if (slot < 0 || (c_.mask && cases::initial_mask(c_)[static_cast<size_t>(n)] == 0)) return;
    for (int64_t i = 0; i < c_.dk; ++i) {
      for (int64_t c = 0; c < c_.dv; ++c) S(i, c) = x_.initial().get(x_.initial().at(slot, head, i, c));
    }
  }

  void write(std::vector<float>& states, int64_t at, int64_t head) {
    for (int64_t c = 0; c < c_.dv; ++c) {
      for (int64_t i = 0; i < c_.dk; ++i) {
        states[static_cast<size_t>(((at * c_.heads_v + head) * c_.dv + c) * c_.dk + i)] = static_cast<float>(S(i, c));
      }
    }
  }

  static std::vector<double> row(const check::TokenTensor& tensor, int64_t n, int64_t t, int64_t head) {
    std::vector<double> values;
    for (int64_t i = 0; i < tensor.width; ++i) values.push_back(tensor.get(tensor.at(n, t, head, i)));
    return values;
  }

  static void normalise(std::vector<double>& x) {
    double sum = 1e-6;
    for (const double value : x) sum += value * value;
    for (double& value : x) value /= std::sqrt(sum);
  }

  double& S(int64_t i, int64_t c) { return S_[static_cast<size_t>(i * c_.dv + c)]; }

  const check::TensorSet& x_;
  const cases::Case& c_;
  std::vector<std::vector<int64_t>> positions_;
  std::vector<double> S_;
};

// Tolerance: half a unit in the last place of the stored type.
double storage_error(int32_t dtype) { return dtype == DR_BF16 ? 0x1p-8 : dtype == DR_FP16 ? 0x1p-11 : 0x1p-23; }

class Oracle : public testing::TestWithParam<cases::Case> {};

TEST_P(Oracle, ReferenceBackendIsTheDefinition) {
  const cases::Case c = cases::with_words(GetParam(), "backend=reference");
  SCOPED_TRACE(cases::print(c));
  Ran ran(c);
  EXPECT_EQ(ran.tensors.damage(), "");
  EXPECT_TRUE(ran.run.workspace_intact());
  for (const check::TensorError& error : check::compare(ran.tensors, Definition(ran.tensors).result)) {
    const int32_t dtype = error.tensor == "o"       ? c.output_dtype()
                          : error.tensor == "final" ? c.final.dtype
                                                    : c.checkpoint.dtype;
    EXPECT_LE(error.worst, storage_error(dtype))
        << error.tensor << " sequence " << error.worst_sequence << " head " << error.worst_head;
    EXPECT_EQ(error.not_finite, 0) << error.tensor;
  }
}

INSTANTIATE_TEST_SUITE_P(Contract, Oracle, testing::ValuesIn(cases_in(R"(
  plain:          kda fp32 hv=2 dk=32 seqs=70 final
  scalar-gate:    gdn fp32 hv=2 dk=32 seqs=70 final
  grouped:        kda fp32 hqk=2 hv=6 dk=24 dv=40 seqs=33,20 init final
  mixed-lengths:  kda fp32 hv=2 dk=16 seqs=0,1,15,16,17,0,65,0 tail=5 init final
  batched:        gdn bf16 hqk=1 hv=2 dk=20 dv=12 batch=3x37 init=key final=key
  packed-views:   kda bf16 hqk=1 hv=2 dk=16 dv=24 seqs=20,31 strides=packed
  padded:         kda fp16 hqk=2 hv=2 dk=12 dv=20 seqs=20,31 strides=padded tail=3
  head-first:     gdn fp32 hqk=2 hv=4 dk=12 dv=20 batch=2x19 strides=head-first final
  dtypes:         kda bf16 o=fp32 g=fp32 b=fp16 hv=2 dk=16 seqs=40 init=bf16 final=fp16
  linear:         kda fp32 hv=2 dk=16 seqs=40 gate=linear
  linear-floor:   gdn fp32 hv=2 dk=16 seqs=40 gate=linear:extreme floor=-0.5
  softplus:       kda fp32 hv=3 dk=16 seqs=40 gate=softplus
  softplus-gdn:   gdn fp32 hv=3 dk=16 seqs=40 gate=softplus no-dt-bias
  bounded:        kda bf16 hv=3 dk=16 seqs=40 gate=bounded:-5 l2norm beta=logit
  bounded-bare:   gdn fp32 hv=3 dk=16 seqs=40 gate=bounded:-12.5 no-a-log no-dt-bias
  at-the-bound:   kda fp32 hv=2 dk=16 seqs=40 gate=bounded:-5:low
  floor:          kda fp32 hv=2 dk=16 seqs=40 gate=log:extreme floor=-5
  extreme:        kda fp32 hv=2 dk=16 seqs=100 gate=log:extreme init final
  forget:         kda fp32 hv=2 dk=16 seqs=100 gate=log:inf init final
  nothing-lost:   gdn fp32 hv=2 dk=16 seqs=100 gate=log:zero keys=correlated final
  twice:          kda fp32 hv=2 dk=16 seqs=60 l2norm beta=twice
  near2:          gdn fp32 hv=2 dk=16 seqs=60 l2norm beta=near2 scale=0.25
  no-write:       kda fp32 hv=2 dk=16 seqs=20 beta=zero init final
  slots:          kda fp32 hv=2 dk=8 dv=12 seqs=5,6,7,8,9,10,11,12 init=slots:null=2:negative:pad=16 \
      final=slots:key:int64:negative
  in-place:       gdn fp32 hv=2 dk=8 dv=12 seqs=5,6,0,8,9,10 init=slots:key:bf16 final=in-place mask
  masked:         kda fp32 hv=2 dk=8 seqs=5,6,7,0 init mask final
  nothing-kept:   kda fp32 hv=2 dk=8 seqs=5,6,7 init
  every:          kda fp32 hv=2 dk=8 dv=12 seqs=100,15,0,64 init final checkpoints=every:32 checkpoint-state=key:fp16
  list:           gdn fp32 hv=2 dk=8 seqs=100,15,0,64 checkpoints=list:16,48,64 checkpoint-state=slots:null=1
  chunks:         kda fp32 hv=2 dk=8 seqs=130,15,0,64 init checkpoints=chunks
  chunks-batch:   kda fp32 hv=2 dk=8 batch=3x100 checkpoints=chunks checkpoint-state=key
  late-lengths:   kda fp32 hv=2 dk=16 seqs=33,0,47 tail=2 offsets=int64 lengths=execute init final
  one-channel:    kda fp32 hv=2 dk=1 dv=1 seqs=9 final
  widest:         gdn fp32 hv=1 dk=256 seqs=9 final
  odd-widths:     kda fp32 hv=1 dk=33 dv=71 seqs=18 final
)")),
                         name_of);

// Chosen columns are computed as if alone; all others stay unchanged.
TEST(OracleColumns, OnlyTheChosenOnesAreWritten) {
  const cases::Case c =
      cases::parse("kda fp32 hv=2 dk=24 dv=70 seqs=40,0,25 tail=2 init final checkpoints=every:16 backend=reference");
  const Ran whole(c);
  check::TensorSet some(c);
  cases::Request request(c);
  const std::vector<int32_t> columns = {3, 31, 32, 69};
  request.options.columns = columns.data();
  request.options.num_columns = static_cast<int32_t>(columns.size());
  check::PlannedRun run(request.problem, request.options);
  run.execute(some.tensors());
  const auto expect = [&](const char* name, const std::byte* all_data, const std::byte* some_data, int64_t element,
                          int64_t column) {
    const double expected = check::load(all_data, DR_FP32, element);
    const double found = check::load(some_data, DR_FP32, element);
    if (std::find(columns.begin(), columns.end(), column) != columns.end()) {
      EXPECT_NEAR(found, expected, 1e-6 * (1.0 + std::fabs(expected))) << name << " column " << column;
    } else {
      EXPECT_TRUE(check::is_poison(some_data + element * 4, 4)) << name << " column " << column << " was written";
    }
  };
  for (int64_t row = 0; row < c.num_tokens() * c.heads_v; ++row) {
    for (int64_t i = 0; i < c.dv; ++i) expect("o", whole.tensors.o().data, some.o().data, row * c.dv + i, i);
  }
  for (int64_t n = 0; n < c.num_seqs() * c.heads_v; ++n) {
    for (int64_t i = 0; i < c.dv * c.dk; ++i) {
      expect("final", whole.tensors.final_state().data, some.final_state().data, n * c.dv * c.dk + i, i / c.dk);
    }
  }
}

}  // namespace
}  // namespace deltarelay::forward
