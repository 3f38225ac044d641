// The same KDA forward as forward.c, through the C++ wrapper, with the sequences also cut into segments.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deltarelay/deltarelay.hpp>
#include <vector>

namespace {

constexpr int32_t kHeads = 2;
constexpr int32_t kWidth = 64;

// A repeatable pattern in [low, high].
std::vector<float> pattern(size_t count, float low, float high) {
  std::vector<float> data(count);
  for (size_t i = 0; i < count; ++i) {
    const float fraction = static_cast<float>((i * 2654435761u >> 8) % 1000u) / 999.0f;
    data[i] = low + (high - low) * fraction;
  }
  return data;
}

double checksum_of(const deltarelay::Plan& plan, size_t tokens) {
  const size_t elements = tokens * kHeads * kWidth;
  const auto q = pattern(elements, -1.0f, 1.0f);
  const auto k = pattern(elements, -1.0f, 1.0f);
  const auto v = pattern(elements, -1.0f, 1.0f);
  const auto g = pattern(elements, -0.2f, 0.0f);
  const auto beta = pattern(tokens * kHeads, 0.0f, 1.0f);
  std::vector<float> o(elements);

  deltarelay::Tensors tensors;
  tensors.q = q.data();
  tensors.k = k.data();
  tensors.v = v.data();
  tensors.g = g.data();
  tensors.beta = beta.data();
  tensors.o = o.data();
  const deltarelay::Workspace workspace(plan.workspace_bytes());
  plan.execute(tensors, workspace);

  double sum = 0.0;
  for (const float x : o) sum += std::fabs(static_cast<double>(x));
  return sum;
}

}  // namespace

int main() try {
  const std::vector<int64_t> offsets = {0, 220, 300};
  deltarelay::Problem problem(DR_KDA);
  problem.packed(offsets).heads(kHeads, kHeads).widths(kWidth, kWidth);
  problem.l2norm = 1;

  const deltarelay::Plan plan(problem);
  const deltarelay::Plan segmented(problem, deltarelay::Options().in_segments(2));
  std::printf("%s\n", segmented.describe().c_str());

  const double whole = checksum_of(plan, 300);
  const double cut = checksum_of(segmented, 300);
  std::printf("checksum %.4f whole, %.4f in %d segments\n", whole, cut,
              static_cast<int>(segmented.summary().num_segments));
  return std::fabs(whole - cut) <= 1e-4 * whole && whole > 0.0 ? EXIT_SUCCESS : EXIT_FAILURE;
} catch (const deltarelay::Exception& error) {
  std::fprintf(stderr, "%s: %s\n", dr_status_string(error.status()), error.what());
  return EXIT_FAILURE;
}
