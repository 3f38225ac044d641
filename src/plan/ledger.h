// The workspace: named pieces, booked at planning and fetched by the same name at execution.
#pragma once
#include <cstddef>
#include <vector>

#include "kernels/step.h"

namespace deltarelay {

struct Buffer {
  BufferId id;
  size_t offset;
  size_t bytes;
};

class Ledger {
 public:
  void book(BufferId id, size_t bytes);  // aligned to kWorkspaceAlignment; nothing for 0 bytes
  size_t total_bytes() const { return total_; }
  const std::vector<Buffer>& buffers() const { return buffers_; }
  const Buffer* find(BufferId id) const;  // nullptr when not booked
  // The buffer in this workspace; nullptr when not booked.
  template <class T>
  T* in(std::byte* workspace, BufferId id) const {
    const Buffer* found = find(id);
    return found == nullptr ? nullptr : reinterpret_cast<T*>(workspace + found->offset);
  }

 private:
  std::vector<Buffer> buffers_;
  size_t total_ = 0;
};

}  // namespace deltarelay
