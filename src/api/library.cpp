// What the library says about itself: version, compiler, instruction sets.
#include <string>

#include "api/last_error.h"
#include "kernels/backend.h"
#include "plan/devices/cuda_devices.h"

namespace deltarelay {
namespace {

const char* compiler_name() {
#if defined(__clang__)
  return "clang " __clang_version__;
#elif defined(__GNUC__)
  return "gcc " __VERSION__;
#else
  return "an unknown compiler";
#endif
}

const char* architecture_name() {
#if defined(__x86_64__)
  return "x86-64";
#elif defined(__aarch64__)
  return "aarch64";
#else
  return "another architecture";
#endif
}

std::string build_info() {
  std::string text = "deltarelay " + std::to_string(DR_VERSION_MAJOR) + "." + std::to_string(DR_VERSION_MINOR) + "." +
                     std::to_string(DR_VERSION_PATCH);
  text += std::string("; ") + compiler_name() + " for " + architecture_name();
  text += "; instruction sets usable here:";
  for (int32_t i = 0; i < cpu_isa_count(); ++i) text += std::string(i == 0 ? " " : ", ") + cpu_isa_name(i);
  text += "; GPU architectures: " + cuda_build_text();
  return text;
}

}  // namespace
}  // namespace deltarelay

const char* dr_status_string(dr_status status) {
  switch (status) {
    case DR_SUCCESS:
      return "success";
    case DR_INVALID:
      return "invalid";
    case DR_UNSUPPORTED:
      return "unsupported";
    case DR_OUT_OF_MEMORY:
      return "out of memory";
    case DR_DEVICE_ERROR:
      return "device error";
    case DR_INTERNAL:
      return "internal";
    default:
      return "unknown status";
  }
}

int32_t dr_version(void) { return DR_VERSION; }

const char* dr_build_info(void) {
  try {
    struct Text {  // has no destructor, so the text lives as long as the library
      char bytes[1024];
    };
    static const Text text = [] {
      Text t{};
      deltarelay::build_info().copy(t.bytes, sizeof t.bytes - 1);
      return t;
    }();
    return text.bytes;
  } catch (...) {
    return "deltarelay";
  }
}
