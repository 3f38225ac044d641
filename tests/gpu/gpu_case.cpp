#include "gpu_case.h"

#include <numbers>

namespace deltarelay::on_gpu {
namespace {

check::TensorSet& edited(check::TensorSet& tensors, const Edit& edit) {
  if (edit) edit(tensors);
  return tensors;
}

}  // namespace

cases::Case forced(const cases::Case& c) {
  return c.backend.empty() ? cases::with_words(c, std::string("backend=") + kBackend) : c;
}

cases::Case forced(const std::string& line) { return forced(cases::parse(line)); }

Ran::Ran(const cases::Case& c, const Edit& edit) : host(c), device(edited(host, edit)), run(c) { again(); }

void Ran::again() {
  host.poison();
  device.poison();
  run.execute(device.tensors(), stream);
  stream.synchronize();
  device.download(host);
}

void expect_undamaged(Ran& ran) {
  EXPECT_EQ(ran.device.damage(), "");
  EXPECT_EQ(ran.host.damage(), "");
  EXPECT_TRUE(ran.run.workspace_intact());
}

void expect_close(const std::vector<check::TensorError>& errors, const char* what) {
  for (const check::TensorError& error : errors) {
    EXPECT_TRUE(error.passes()) << what << ", " << error.tensor << ": worst " << error.worst << " at sequence "
                                << error.worst_sequence << ", head " << error.worst_head << ", tolerance "
                                << error.tolerance << ", not finite " << error.not_finite;
  }
}

std::vector<check::TensorError> of_two_runs(std::vector<check::TensorError> errors) {
  for (check::TensorError& error : errors) error.tolerance *= std::numbers::sqrt2;
  return errors;
}

}  // namespace deltarelay::on_gpu
