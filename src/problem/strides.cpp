#include "problem/strides.h"

#include <algorithm>
#include <limits>
#include <span>

#include "problem/argument.h"
#include "problem/status.h"

namespace deltarelay {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

struct Axis {
  const char* name;
  int64_t count;
  int64_t stride;
};

[[noreturn]] void fail_too_large(Argument argument, const std::string& found) {
  fail_invalid(argument.name(), "a tensor of at most 2^63 - 1 bytes", found);
}

int64_t default_stride(Argument argument, int64_t count, int64_t inner) {
  int64_t product = 0;
  if (__builtin_mul_overflow(count, inner, &product)) {
    fail_too_large(argument, "an extent of " + std::to_string(count) + " times " + std::to_string(inner) + " elements");
  }
  return product;
}

void check_not_negative(Argument argument, int64_t stride) {
  if (stride < 0)
    fail_invalid(argument.name(), "0 (contiguous) or a positive number of elements", std::to_string(stride));
}

// Two indices must not name one element: an output would be written twice, and an input that overlaps itself has a
// stride in the wrong unit or on the wrong axis. Axes may be nested in any order, so [H, T, D] tensors are legal.
// Sorted by stride, each axis must step over everything inside it. The stride of an axis with one index is not used.
void check_extent(const char* argument, std::span<Axis> axes, int64_t width, size_t element_bytes) {
  std::sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  int64_t extent = width;
  for (const Axis& axis : axes) {
    if (axis.count <= 1) continue;
    if (axis.stride < extent) {
      fail_invalid(Argument(argument, axis.name).name(),
                   "at least " + std::to_string(extent) + ", the elements inside one step",
                   std::to_string(axis.stride));
    }
    int64_t last = 0;
    if (__builtin_mul_overflow(axis.count - 1, axis.stride, &last) || __builtin_add_overflow(last, extent, &extent)) {
      fail_too_large(Argument(argument, axis.name),
                     std::to_string(axis.count) + " steps of " + std::to_string(axis.stride) + " elements");
    }
  }
  const auto bytes = static_cast<int64_t>(element_bytes);
  if (extent > kMax / bytes) {
    fail_too_large(argument, std::to_string(extent) + " elements of " + std::to_string(bytes) + " bytes");
  }
}

// An axis with one index never steps, so the caller may pass any stride, even 2^62. Kernels multiply strides before
// they test counts (to prefetch the row after the last one). So such an axis gets its stride in a contiguous tensor.
void settle_unused(int64_t count, int64_t contiguous, int64_t& stride) {
  if (count <= 1) stride = contiguous;
}

}  // namespace

Strides resolve_strides(const char* argument, const dr_layout& given, const TensorShape& shape) {
  check_not_negative(Argument(argument, "token"), given.token);
  check_not_negative(Argument(argument, "head"), given.head);
  check_not_negative(Argument(argument, "sequence"), given.sequence);
  if (!shape.batched && given.sequence != 0) {
    fail_invalid(Argument(argument, "sequence").name(), "0 in a packed problem (seq_len is 0)",
                 std::to_string(given.sequence));
  }
  Strides s;
  s.head = given.head != 0 ? given.head : shape.width;
  s.token = given.token != 0 ? given.token : default_stride(Argument(argument, "token"), shape.heads, s.head);
  if (shape.batched) {
    s.sequence =
        given.sequence != 0 ? given.sequence : default_stride(Argument(argument, "sequence"), shape.tokens, s.token);
  }
  Axis axes[] = {
      {"head", shape.heads, s.head}, {"token", shape.tokens, s.token}, {"sequence", shape.sequences, s.sequence}};
  check_extent(argument, axes, shape.width, size_of(shape.dtype));
  const int64_t row = shape.heads * shape.width;  // no overflow: elements without gaps are at most the extent
  settle_unused(shape.heads, shape.width, s.head);
  settle_unused(shape.tokens, row, s.token);
  if (shape.batched) settle_unused(shape.sequences, shape.tokens * row, s.sequence);
  return s;
}

void resolve_state_strides(const char* argument, const dr_state& given, int64_t heads, int64_t width, StatePool* pool) {
  check_not_negative(Argument(argument, "stride_head"), given.stride_head);
  check_not_negative(Argument(argument, "stride_slot"), given.stride_slot);
  pool->stride_head = given.stride_head != 0 ? given.stride_head : width;
  pool->stride_slot = given.stride_slot != 0
                          ? given.stride_slot
                          : default_stride(Argument(argument, "stride_slot"), heads, pool->stride_head);
  Axis axes[] = {{"stride_head", heads, pool->stride_head}, {"stride_slot", pool->num_slots, pool->stride_slot}};
  check_extent(argument, axes, width, size_of(pool->dtype));
  settle_unused(heads, width, pool->stride_head);
  settle_unused(pool->num_slots, heads * width, pool->stride_slot);
}

}  // namespace deltarelay
