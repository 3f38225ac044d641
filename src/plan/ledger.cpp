#include <cstring>

#include "plan/plan.h"

namespace deltarelay {

void Ledger::book(const char* name, size_t bytes) {
  buffers_.push_back({name, total_, bytes});
  total_ += (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

const Buffer* Ledger::find(const char* name) const {
  for (const Buffer& buffer : buffers_) {
    if (std::strcmp(buffer.name, name) == 0) return &buffer;
  }
  return nullptr;
}

}  // namespace deltarelay
