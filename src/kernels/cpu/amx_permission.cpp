#include "kernels/cpu/amx_permission.h"

#include <cerrno>
#include <cstdint>

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace deltarelay::cpu {
namespace {

// Of asm/prctl.h, which older systems have without them.
constexpr int kGetSupported = 0x1021;       // ARCH_GET_XCOMP_SUPP
constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
constexpr unsigned long kTileData = 18;     // XFEATURE_XTILEDATA

}  // namespace

int arch_prctl_of_linux(int request, unsigned long argument) {
#if defined(__x86_64__) && defined(__linux__)
  return syscall(SYS_arch_prctl, static_cast<long>(request), argument) == 0 ? 0 : errno;
#else
  (void)request, (void)argument;
  return ENOSYS;
#endif
}

bool amx_is_offered(ArchPrctl call) {
  uint64_t features = 0;
  if (call(kGetSupported, reinterpret_cast<unsigned long>(&features)) != 0) return false;
  return (features >> kTileData & 1) != 0;
}

const char* ask_for_amx(ArchPrctl call) {
  switch (call(kRequestPermission, kTileData)) {
    case 0:
      return "";
    case ENOSPC:
      return "Linux does not grant AMX: a thread has an alternate signal stack (sigaltstack) that is too small for it";
    case EPERM:
      return "Linux does not grant AMX: the request is not permitted in this process";
    default:
      return "Linux does not grant AMX: the request failed";
  }
}

}  // namespace deltarelay::cpu
