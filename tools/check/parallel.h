// Work on all cores, for checks of tensors that are large.
#pragma once
#include <cstdint>
#include <functional>

namespace deltarelay::check {

// body(begin, end) over parts of [0, count), at least `grain` long but for the last; the parts do not depend on each other.
void in_parallel(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body);

}  // namespace deltarelay::check
