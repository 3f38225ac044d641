// Runs a plan. Every check comes before the first write.
#include <cstdint>
#include <string>

#include "api/last_error.h"
#include "api/plan_handle.h"
#include "problem/aliasing.h"
#include "problem/struct_size.h"
#include "problem/validate.h"
#include "run/execute.h"

namespace deltarelay {
namespace {

void check_workspace(const Plan& plan, const void* workspace, size_t bytes) {
  const size_t needed = plan.ledger.total_bytes();
  if (bytes < needed) {
    fail_invalid("workspace_bytes", "at least " + std::to_string(needed), std::to_string(bytes));
  }
  if (needed == 0) return;
  require_pointer("workspace", workspace);
  const size_t misalignment = reinterpret_cast<uintptr_t>(workspace) % kWorkspaceAlignment;
  if (misalignment != 0) {
    fail_invalid("workspace", "an address that is a multiple of " + std::to_string(kWorkspaceAlignment) + " bytes",
                 "an address " + std::to_string(misalignment) + " bytes past a multiple");
  }
}

void run(const Plan& plan, const dr_tensors* given, void* workspace, size_t workspace_bytes, void* stream) {
  if (!plan.options.device_is_here) {
    fail_unsupported(std::string("plan: expected a plan for a device of this machine, found one for '") +
                     plan.options.device.name + "', which can be planned for but not run on here");
  }
  const bool on_host = plan.options.device.kind == DR_DEVICE_CPU;
  require_pointer("tensors", given);
  dr_tensors tensors = take_input("tensors", *given);
  dr_intermediates intermediates;
  if (is_stage(plan.problem.op) && tensors.intermediates != nullptr) {
    intermediates = take_input("intermediates", *tensors.intermediates);
    tensors.intermediates = &intermediates;
  }
  // Pointers that the problem ignores may lead anywhere, so no kernel gets them.
  if (!plan.problem.reads_gate_parameters()) tensors.a_log = tensors.dt_bias = nullptr;
  validate_tensors(plan.problem, tensors, on_host);
  check_workspace(plan, workspace, workspace_bytes);
  check_aliasing(plan.problem, tensors, counts_of(plan.problem, tensors), workspace, plan.ledger.total_bytes(),
                 on_host);
  if (on_host && stream != nullptr) fail_invalid("stream", "NULL for a plan on the CPU", "a pointer");
  execute(plan, tensors, static_cast<std::byte*>(workspace), stream);
}

}  // namespace
}  // namespace deltarelay

using namespace deltarelay;

dr_status dr_execute(const dr_plan* plan, const dr_tensors* tensors, void* workspace, size_t workspace_bytes,
                     void* stream) {
  return as_status([&] {
    require_pointer("plan", plan);
    run(*plan->plan, tensors, workspace, workspace_bytes, stream);
  });
}
