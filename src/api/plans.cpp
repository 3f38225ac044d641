// Creates, describes and destroys plans.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/last_error.h"
#include "api/plan_handle.h"
#include "plan/describe/describe.h"
#include "problem/struct_size.h"
#include "problem/validate.h"
#include "run/execute.h"

namespace deltarelay {
namespace {

std::string describe(const Plan& plan, int32_t format) {
  switch (format) {
    case DR_DESCRIBE_TEXT:
      return describe_text(plan);
    case DR_DESCRIBE_JSON:
      return describe_json(plan);
    case DR_DESCRIBE_SIGNATURE:
      return describe_signature(plan);
    default:
      fail_invalid("format", "DR_DESCRIBE_TEXT (0), DR_DESCRIBE_JSON (1) or DR_DESCRIBE_SIGNATURE (2)",
                   std::to_string(format));
  }
}

void create(const dr_problem* request, const dr_options* options_request, dr_plan** result) {
  require_pointer("problem", request);
  require_pointer("plan", result);
  Problem problem = validate(*request);
  Options options = validate_options(options_request, problem);
  auto handle = std::make_unique<dr_plan>();
  handle->plan = make_plan(std::move(problem), std::move(options));
  load(*handle->plan);
  *result = handle.release();
}

// Counts emitted rows: each segment is emitted once, in the first phase or in the third. If lengths come at execution
// there are no rows yet.
void count_segments(const Plan& plan, dr_plan_summary* summary) {
  std::vector<int64_t> segments(static_cast<size_t>(plan.problem.num_seqs));
  for (const std::vector<Row>* rows : {&plan.table.rows1, &plan.table.rows3}) {
    for (const Row& row : *rows) {
      if (row.work == Work::kEmit) ++segments[static_cast<size_t>(row.sequence)];
    }
  }
  for (const int64_t count : segments) {
    summary->num_segments += count;
    summary->max_segments = std::max(summary->max_segments, count);
    if (count > 1) ++summary->cut_sequences;
  }
}

dr_plan_summary summarize(const Plan& plan) {
  dr_plan_summary summary;
  dr_plan_summary_init(&summary);
  summary.chunk = plan.chunk();
  summary.backend = plan.backend->name;
  summary.isa = plan.variant.isa;
  summary.variant = plan.variant.name;
  count_segments(plan, &summary);
  summary.threads = plan.tiling.threads;
  summary.value_tiles = plan.tiling.value_tiles;
  summary.grain = plan.grain;
  summary.predicted_ns = plan.predicted_ns;
  summary.unsplit_ns = plan.unsplit_ns;
  return summary;
}

}  // namespace
}  // namespace deltarelay

using namespace deltarelay;

dr_status dr_plan_create(const dr_problem* problem, const dr_options* options, dr_plan** plan) {
  return as_status([&] { create(problem, options, plan); });
}

void dr_plan_destroy(dr_plan* plan) { delete plan; }

dr_status dr_plan_workspace_bytes(const dr_plan* plan, size_t* bytes) {
  return as_status([&] {
    require_pointer("plan", plan);
    require_pointer("bytes", bytes);
    *bytes = plan->plan->ledger.total_bytes();
  });
}

dr_status dr_plan_describe(const dr_plan* plan, int32_t format, char* text, size_t capacity, size_t* needed) {
  return as_status([&] {
    require_pointer("plan", plan);
    if (text == nullptr && capacity != 0) fail_invalid("text", "a pointer while capacity is not 0", "NULL");
    const std::string words = describe(*plan->plan, format);
    if (needed != nullptr) *needed = words.size() + 1;
    if (capacity == 0) return;
    const size_t length = std::min(words.size(), capacity - 1);
    std::memcpy(text, words.data(), length);
    text[length] = '\0';
  });
}

dr_status dr_plan_summarize(const dr_plan* plan, dr_plan_summary* summary) {
  return as_status([&] {
    require_pointer("plan", plan);
    require_pointer("summary", summary);
    give_output("summary", summary, summarize(*plan->plan));
  });
}
