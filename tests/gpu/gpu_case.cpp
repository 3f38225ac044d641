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

std::vector<std::byte> block_of(const check::TensorSet& x, int64_t sequence, int64_t head) {
  std::vector<std::byte> bits;
  const auto append = [&](const std::byte* data, int64_t element, int64_t count, int32_t dtype) {
    const int64_t size = check::bytes_of(dtype);
    bits.insert(bits.end(), data + element * size, data + (element + count) * size);
  };
  const cases::Case& c = x.of();
  for (int64_t t = 0; t < c.lengths[static_cast<size_t>(sequence)]; ++t)
    append(x.o().data, x.o().at(sequence, t, head, 0), c.dv, x.o().dtype);
  const check::StateTensor& s = x.final_state();
  if (s.used()) append(s.data, s.at(s.slots[static_cast<size_t>(sequence)], head, 0, 0), s.dk * s.dv, s.state.dtype);
  return bits;
}

}  // namespace deltarelay::on_gpu
