#include "kernels/written_rows.h"

#include "deltarelay/tensor_list.hpp"
#include "problem/tensor_facts.h"

namespace deltarelay {

WrittenTensors written_tensors(const Problem& p, const dr_tensors& tensors) {
  WrittenTensors written{};
  const auto add = [&written](const void* data, int64_t token_bytes, int64_t head_bytes, int64_t width_bytes) {
    written.rows[written.count++] = {const_cast<void*>(data), token_bytes, head_bytes,
                                     static_cast<int32_t>(width_bytes)};
  };
  if (p.writes_o()) {
    const auto bytes = static_cast<int64_t>(size_of(p.dtype_o));
    add(tensors.o, p.o.token * bytes, p.o.head * bytes, p.dv * bytes);
  }
  if (!is_stage(p.op)) return written;
  const TensorSizes sizes = sizes_of(p, p.num_tokens, p.num_seqs, 0);
  for (const TensorEntry& entry : kTensors) {
    const bool of_tokens =
        entry.axes[0] == TensorAxis::kTokens || (entry.axes[0] == TensorAxis::kStateRows && p.op == Op::kCarry);
    if (!is_intermediate(entry.tensor) || !of_tokens || !p.chunks.wants(bit_of(entry.tensor))) continue;
    const int64_t width = size_of_axis(sizes, entry.axes[2]) * facts_of(p, entry).element_bytes;
    add(pointer_of(tensors, entry), width * p.heads_v, width, width);
  }
  return written;
}

}  // namespace deltarelay
