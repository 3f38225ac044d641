// The cuda-sm80 backend of a library that was built without CUDA: plans for such a GPU can be made and read.
#include "kernels/cuda/decline.h"
#include "kernels/cuda/sm80/accepts.h"

namespace deltarelay {
namespace {

std::string decline(const Problem& problem, const Request& request) {
  const std::string reason = cuda::sm80::decline(problem, request);
  return reason.empty() ? cuda::decline_without_kernels(request) : reason;
}

}  // namespace

const Backend kCudaSm80Backend{.name = "cuda-sm80",
                               .decline = decline,
                               .chunk = cuda::sm80::chunk,
                               .panel_columns = cuda::sm80::panel_columns,
                               .sizes = cuda::sm80::sizes,
                               .run_rows = nullptr,
                               .run_folds = nullptr,
                               .finish = nullptr,
                               .num_ways = cuda::sm80::kNumWays,
                               .num_named_ways = cuda::sm80::kNumNamedWays,
                               .way_names = cuda::sm80::kWayNames,
                               .takes_way = cuda::sm80::takes_way,
                               .value_tiles = cuda::sm80::value_tiles,
                               .cta_tiling = cuda::sm80::cta_tiling,
                               .short_summaries = cuda::sm80::short_summaries,
                               .tries_suffixes = cuda::sm80::tries_suffixes};

}  // namespace deltarelay
