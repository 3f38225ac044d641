// Runs work on all cores, for checks of large tensors.
#pragma once
#include <cstdint>
#include <functional>

namespace deltarelay::check {

// Calls body(begin, end) for parts of [0, count), each at least `grain` long except the last. Parts must be
// independent.
void in_parallel(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body);

}  // namespace deltarelay::check
