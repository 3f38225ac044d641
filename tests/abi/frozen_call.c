/* What a program compiled with the header of 0.2.0 passes and reads. It declares the functions as that header did, with
 * the frozen structures, and is linked to the library of the day. */
#include "frozen_call.h"

#include <stdlib.h>
#include <string.h>

#include "frozen_0_2_0.h"

typedef struct dr_plan dr_plan;
int32_t dr_device_get(int32_t index, frozen_dr_device* device);
int32_t dr_device_costs(const frozen_dr_device* device, const char* backend, const char* variant, int32_t rule,
                        int32_t op, frozen_dr_costs* costs);
int32_t dr_plan_create(const frozen_dr_problem* problem, const frozen_dr_options* options, dr_plan** plan);
int32_t dr_plan_workspace_bytes(const dr_plan* plan, size_t* bytes);
int32_t dr_plan_summarize(const dr_plan* plan, frozen_dr_plan_summary* summary);
int32_t dr_plan_describe(const dr_plan* plan, int32_t format, char* text, size_t capacity, size_t* needed);
int32_t dr_execute(const dr_plan* plan, const frozen_dr_tensors* tensors, void* workspace, size_t workspace_bytes,
                   void* stream);
void dr_plan_destroy(dr_plan* plan);

/* Numbers of 0.2.0's enumerations. */
enum { kKda = 1, kForward = 0, kStateRows = 1, kStateKeyMajor = 2, kDescribeSignature = 2 };

enum { kGuardBytes = 64, kGuard = 0xa5 };

/* Structures that the library fills, each with memory behind it that is not the library's. */
typedef struct outputs {
  frozen_dr_device device;
  unsigned char behind_device[kGuardBytes];
  frozen_dr_costs costs[2];
  unsigned char behind_costs[kGuardBytes];
  frozen_dr_plan_summary summary;
  unsigned char behind_summary[kGuardBytes];
} outputs;

static int guarded(const unsigned char* guard) {
  for (int i = 0; i < kGuardBytes; ++i) {
    if (guard[i] != kGuard) return 0;
  }
  return 1;
}

static void run_tensors(const frozen_call* call, frozen_dr_tensors* tensors) {
  memset(tensors, 0, sizeof *tensors);
  tensors->size = (uint32_t)sizeof *tensors;
  tensors->q = call->q;
  tensors->k = call->k;
  tensors->v = call->v;
  tensors->g = call->g;
  tensors->beta = call->beta;
  tensors->o = call->o;
  tensors->final = call->final;
}

static const char* use_plan(const dr_plan* plan, frozen_call* call, outputs* out) {
  out->summary.size = (uint32_t)sizeof out->summary;
  if (dr_plan_summarize(plan, &out->summary) != 0) return "dr_plan_summarize";
  if (out->summary.size != sizeof out->summary) return "the size of the summary";
  if (!guarded(out->behind_summary)) return "memory behind the summary";
  strncpy(call->backend, out->summary.backend, sizeof call->backend - 1);
  if (dr_plan_describe(plan, kDescribeSignature, call->signature, sizeof call->signature, NULL) != 0)
    return "dr_plan_describe";

  size_t bytes = 0;
  if (dr_plan_workspace_bytes(plan, &bytes) != 0) return "dr_plan_workspace_bytes";
  void* const workspace = aligned_alloc(256, (bytes / 256 + 1) * 256);
  if (workspace == NULL) return "memory";
  frozen_dr_tensors tensors;
  run_tensors(call, &tensors);
  const int32_t status = dr_execute(plan, &tensors, workspace, bytes, NULL);
  free(workspace);
  return status == 0 ? NULL : "dr_execute";
}

const char* frozen_call_run(frozen_call* call) {
  outputs out;
  memset(&out, kGuard, sizeof out);
  out.device.size = (uint32_t)sizeof out.device;
  if (dr_device_get(0, &out.device) != 0) return "dr_device_get";
  if (out.device.size != sizeof out.device) return "the size of the device";
  if (!guarded(out.behind_device)) return "memory behind the device";
  for (int32_t rule = 1; rule <= 2; ++rule) {
    frozen_dr_costs* const costs = &out.costs[rule - 1];
    costs->size = (uint32_t)sizeof *costs;
    if (dr_device_costs(&out.device, "cpu", "", rule, kForward, costs) != 0) return "dr_device_costs";
    if (costs->rule != rule || costs->size != sizeof *costs) return "the costs that were asked for";
  }
  if (!guarded(out.behind_costs)) return "memory behind the costs";

  frozen_dr_problem problem;
  memset(&problem, 0, sizeof problem);
  problem.size = (uint32_t)sizeof problem;
  problem.rule = kKda;
  problem.num_seqs = call->num_seqs;
  problem.num_tokens = call->num_tokens;
  problem.seq_offsets = call->seq_offsets;
  problem.heads_qk = problem.heads_v = call->heads;
  problem.dk = call->dk;
  problem.dv = call->dv;
  problem.final.use = kStateRows;
  problem.final.layout = kStateKeyMajor;

  frozen_dr_options options;
  memset(&options, 0, sizeof options);
  options.size = (uint32_t)sizeof options;
  options.device = &out.device;
  options.costs = out.costs;
  options.num_costs = 2;

  dr_plan* plan = NULL;
  if (dr_plan_create(&problem, &options, &plan) != 0) return "dr_plan_create";
  const char* const failure = use_plan(plan, call, &out);
  dr_plan_destroy(plan);
  return failure;
}
