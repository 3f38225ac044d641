// Replaces device_memory.cu and device_generate.cu in a build without CUDA.
#include "check/device_generate.h"
#include "check/device_memory.h"
#include "check/run_error.h"

namespace deltarelay::check::gpu {
namespace {

[[noreturn]] void fail() {
  throw RunError(DR_UNSUPPORTED, "device: expected a GPU to run on, found none (" + why_absent() + ")");
}

}  // namespace

std::string why_absent() { return "built without CUDA"; }
void require() { fail(); }
Facts facts() { fail(); }
int64_t free_bytes() { fail(); }

Memory::Memory(int64_t) { fail(); }
Memory::~Memory() = default;
Memory::Memory(Memory&&) noexcept = default;
Memory& Memory::operator=(Memory&&) noexcept = default;

void upload(void*, const void*, int64_t) { fail(); }
void download(void*, const void*, int64_t) { fail(); }
void copy(void*, const void*, int64_t) { fail(); }
void fill(void*, uint8_t, int64_t) { fail(); }
void copy_rows(void*, int64_t, const void*, int64_t, int64_t, int64_t) { fail(); }
void synchronize() { fail(); }

Stream::Stream() { fail(); }
Stream::~Stream() = default;
void Stream::synchronize() const { fail(); }
void Stream::fill(void*, uint8_t, int64_t) const { fail(); }
void Stream::copy(void*, const void*, int64_t) const { fail(); }
void Stream::add_hash(const void*, int64_t, uint64_t*, uint64_t) const { fail(); }
void Stream::pause(double) const { fail(); }
uint64_t hash(const void*, int64_t) { fail(); }

Graph::Graph(const Stream&, const std::function<void()>&) { fail(); }
Graph::~Graph() = default;
Graph::Graph(Graph&&) noexcept = default;
void Graph::launch(const Stream&) const { fail(); }
std::vector<double> time_replays(const Stream&, const std::vector<Graph>&, int64_t) { fail(); }
double time_back_to_back(const Stream&, const std::vector<Graph>&, int64_t) { fail(); }

bool can_generate(const cases::Case&) { return false; }
void generate_tokens(const cases::Case&, uint64_t, const dr_tensors&) { fail(); }

}  // namespace deltarelay::check::gpu
