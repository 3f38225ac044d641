// A call ignores gate parameters that its gate form does not need: with log and linear gates, a_log and dt_bias may be
// any pointers, even to memory that must not be read.
#include <sys/mman.h>

#include "small_call.h"

namespace contract {
namespace {

// A page that must not be accessed: any access ends the process.
class ForbiddenPage {
 public:
  ForbiddenPage() : page_(mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ForbiddenPage(const ForbiddenPage&) = delete;
  ~ForbiddenPage() { munmap(page_, kBytes); }
  void* data() const { return page_; }
  bool made() const { return page_ != MAP_FAILED; }

 private:
  static constexpr size_t kBytes = 4096;
  void* page_;
};

std::vector<float> outputs_with(int32_t rule, int32_t gate_form, const char* backend, const void* parameters) {
  SmallCall call;
  call.problem.rule = rule;
  call.problem.gate_form = gate_form;
  for (float& gate : call.g) gate = gate_form == DR_GATE_LINEAR ? 0.9f : -0.1f;
  call.tensors.a_log = call.tensors.dt_bias = parameters;
  dr_options options;
  dr_options_init(&options);
  options.backend = backend;
  const PlanOwner owner(call.problem, &options);
  size_t bytes = 0;
  EXPECT_EQ(dr_plan_workspace_bytes(owner.plan, &bytes), DR_SUCCESS);
  EXPECT_EQ(dr_execute(owner.plan, &call.tensors, call.workspace(bytes), bytes, nullptr), DR_SUCCESS)
      << dr_last_error();
  return call.o;
}

TEST(GateParameters, AreNotLookedAtWithoutUse) {
  const ForbiddenPage page;
  ASSERT_TRUE(page.made());
  const void* const nowhere = reinterpret_cast<const void*>(uintptr_t{7});  // not aligned either
  for (const char* backend : {"reference", "cpu"}) {
    for (const int32_t rule : {DR_KDA, DR_GDN}) {
      for (const int32_t form : {DR_GATE_LOG, DR_GATE_LINEAR}) {
        SCOPED_TRACE(std::string(backend) + ", rule " + std::to_string(rule) + ", gate form " + std::to_string(form));
        const std::vector<float> expected = outputs_with(rule, form, backend, nullptr);
        EXPECT_EQ(outputs_with(rule, form, backend, page.data()), expected);
        EXPECT_EQ(outputs_with(rule, form, backend, nowhere), expected);
      }
    }
  }
}

// A stage that is given the sums of its gates has no use for what makes them of raw values.
TEST(GateParameters, AreNotLookedAtByAStageThatReadsNoGates) {
  const ForbiddenPage page;
  ASSERT_TRUE(page.made());
  for (const char* backend : {"reference", "cpu"}) {
    for (const int32_t form : {DR_GATE_RAW_SOFTPLUS, DR_GATE_RAW_BOUNDED}) {
      SCOPED_TRACE(std::string(backend) + ", gate form " + std::to_string(form));
      SmallCall call;
      dr_chunks chunks;
      dr_chunks_init(&chunks);
      chunks.chunk = 16;
      chunks.given = DR_GATE_SUMS;
      chunks.wanted = DR_W;
      call.problem.op = DR_CHUNK_LOCAL;
      call.problem.final.use = DR_STATE_NONE;
      call.problem.gate_form = form;
      call.problem.lower_bound = form == DR_GATE_RAW_BOUNDED ? -5.0f : 0.0f;
      call.problem.chunks = &chunks;
      dr_options options;
      dr_options_init(&options);
      options.backend = backend;
      const PlanOwner owner(call.problem, &options);
      std::vector<float> w(call.k.size());
      dr_intermediates intermediates;
      dr_intermediates_init(&intermediates);
      intermediates.gate_sums = call.g.data();
      intermediates.w = w.data();
      call.tensors.q = call.tensors.v = call.tensors.g = call.tensors.o = call.tensors.final = nullptr;
      call.tensors.intermediates = &intermediates;
      call.tensors.a_log = call.tensors.dt_bias = page.data();
      size_t bytes = 0;
      ASSERT_EQ(dr_plan_workspace_bytes(owner.plan, &bytes), DR_SUCCESS);
      EXPECT_EQ(dr_execute(owner.plan, &call.tensors, call.workspace(bytes), bytes, nullptr), DR_SUCCESS)
          << dr_last_error();
    }
  }
}

}  // namespace
}  // namespace contract
