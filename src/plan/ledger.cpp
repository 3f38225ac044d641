#include "plan/ledger.h"

#include "deltarelay/deltarelay.h"
#include "problem/types.h"

namespace deltarelay {

void Ledger::book(BufferId id, size_t bytes) {
  if (bytes == 0) return;
  buffers_.push_back({id, total_, bytes});
  total_ += round_up(bytes, kWorkspaceAlignment);
}

const Buffer* Ledger::find(BufferId id) const {
  for (const Buffer& buffer : buffers_) {
    if (buffer.id == id) return &buffer;
  }
  return nullptr;
}

}  // namespace deltarelay
