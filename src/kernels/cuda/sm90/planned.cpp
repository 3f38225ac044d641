// The cuda-sm90 backend of a library that was built without CUDA: plans for such a GPU can be made and read.
#include "kernels/cuda/decline.h"
#include "kernels/cuda/sm90/accepts.h"

namespace deltarelay {
namespace {

std::string decline(const Problem& problem, const Request& request) {
  const std::string reason = cuda::sm90::decline(problem, request);
  return reason.empty() ? cuda::decline_without_kernels(request) : reason;
}

}  // namespace

const Backend kCudaSm90Backend{.name = "cuda-sm90",
                               .decline = decline,
                               .chunk = cuda::sm90::chunk,
                               .panel_columns = cuda::sm90::panel_columns,
                               .sizes = cuda::sm90::sizes,
                               .run_rows = nullptr,
                               .run_folds = nullptr,
                               .finish = nullptr,
                               .num_ways = cuda::sm90::kNumWays,
                               .way_names = cuda::sm90::kWayNames,
                               .takes_way = cuda::sm90::takes_way,
                               .short_summaries = cuda::sm90::short_summaries,
                               .tries_suffixes = cuda::sm90::tries_suffixes};

}  // namespace deltarelay
