#include "api/last_error.h"

#include <algorithm>
#include <cstring>

namespace deltarelay {
namespace {

// Large enough for one reason per backend. Longer messages are truncated.
constexpr size_t kCapacity = 4096;

thread_local char message_of_thread[kCapacity];

}  // namespace

void clear_last_error() noexcept { message_of_thread[0] = '\0'; }

void set_last_error(std::string_view message) noexcept {
  const size_t length = std::min(message.size(), kCapacity - 1);
  std::memcpy(message_of_thread, message.data(), length);
  message_of_thread[length] = '\0';
}

const char* last_error() noexcept { return message_of_thread; }

}  // namespace deltarelay

const char* dr_last_error(void) { return deltarelay::last_error(); }
