/* A KDA forward over two packed sequences in C11: plan, workspace, execute, destroy. */
#include <deltarelay/deltarelay.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { kTokens = 300, kHeads = 2, kWidth = 64, kSequences = 2 };

static void check(dr_status status, const char* what) {
  if (status == DR_SUCCESS) return;
  fprintf(stderr, "%s: %s: %s\n", what, dr_status_string(status), dr_last_error());
  exit(1);
}

/* Allocates `count` numbers with a repeatable pattern in [low, high]. The size of an aligned allocation is a multiple
 * of its alignment. */
static float* pattern(size_t count, float low, float high) {
  const size_t bytes = (count * sizeof(float) + 63) / 64 * 64;
  float* data = aligned_alloc(64, bytes);
  if (data == NULL) exit(1);
  for (size_t i = 0; i < count; ++i) {
    const float fraction = (float)((i * 2654435761u >> 8) % 1000u) / 999.0f;
    data[i] = low + (high - low) * fraction;
  }
  return data;
}

int main(void) {
  const int32_t offsets[kSequences + 1] = {0, 220, kTokens};

  dr_problem problem;
  dr_problem_init(&problem);
  problem.rule = DR_KDA;
  problem.num_seqs = kSequences;
  problem.num_tokens = kTokens;
  problem.seq_offsets = offsets;
  problem.heads_qk = kHeads;
  problem.heads_v = kHeads;
  problem.dk = kWidth;
  problem.dv = kWidth;
  problem.l2norm = 1;
  problem.final.use = DR_STATE_ROWS;
  problem.final.layout = DR_STATE_VALUE_MAJOR;

  dr_plan* plan = NULL;
  check(dr_plan_create(&problem, NULL, &plan), "dr_plan_create");
  size_t bytes = 0;
  check(dr_plan_workspace_bytes(plan, &bytes), "dr_plan_workspace_bytes");
  void* workspace = aligned_alloc(256, (bytes + 255) / 256 * 256 + 256);
  if (workspace == NULL) return 1;

  char text[4096];
  check(dr_plan_describe(plan, DR_DESCRIBE_TEXT, text, sizeof text, NULL), "dr_plan_describe");
  printf("%s\n%s\n", dr_build_info(), text);

  const size_t elements = (size_t)kTokens * kHeads * kWidth;
  float* q = pattern(elements, -1.0f, 1.0f);
  float* k = pattern(elements, -1.0f, 1.0f);
  float* v = pattern(elements, -1.0f, 1.0f);
  float* g = pattern(elements, -0.2f, 0.0f);
  float* beta = pattern((size_t)kTokens * kHeads, 0.0f, 1.0f);
  float* o = pattern(elements, 0.0f, 0.0f);
  float* state = pattern((size_t)kSequences * kHeads * kWidth * kWidth, 0.0f, 0.0f);

  dr_tensors tensors;
  dr_tensors_init(&tensors);
  tensors.q = q;
  tensors.k = k;
  tensors.v = v;
  tensors.g = g;
  tensors.beta = beta;
  tensors.o = o;
  tensors.final = state;
  check(dr_execute(plan, &tensors, workspace, bytes, NULL), "dr_execute");

  double sum = 0.0;
  for (size_t i = 0; i < elements; ++i) sum += fabs((double)o[i]);
  printf("checksum %.4f\n", sum);

  dr_plan_destroy(plan);
  free(workspace);
  free(q);
  free(k);
  free(v);
  free(g);
  free(beta);
  free(o);
  free(state);
  return sum > 0.0 ? 0 : 1;
}
