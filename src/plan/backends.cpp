// The ordered list of backends, best first for each kind of device; each declines the other kind.
#include <string>

#include "plan/plan.h"

namespace deltarelay {
namespace {

const Backend* const kBackends[] = {&kCpuBackend, &kCudaSm90Backend, &kCudaSm80Backend, &kReferenceBackend};

}  // namespace

int32_t backend_count() { return static_cast<int32_t>(sizeof kBackends / sizeof kBackends[0]); }

const Backend* backend_at(int32_t index) { return kBackends[index]; }

const Backend* backend_named(const std::string& name) {
  for (const Backend* backend : kBackends) {
    if (name == backend->name) return backend;
  }
  return nullptr;
}

}  // namespace deltarelay
