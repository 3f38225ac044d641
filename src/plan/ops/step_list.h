// A list of steps in the making, and the steps that several operations have.
#pragma once
#include "kernels/step.h"
#include "plan/plan.h"

namespace deltarelay {

class StepList {
 public:
  StepList(const Plan& plan, const CallBounds& bounds) : plan_(plan), problem_(plan.problem), bounds_(bounds) {}

  const Steps& steps() const { return steps_; }

  // The segment table of the call.
  void table();
  // All chunks at once, where the variant leaves records.
  void prepare();
  // A GPU compares slots that only it can read.
  void aliases();
  // What belongs to no row. `of_empty`: something is written for a sequence without tokens.
  void finish(bool of_empty);
  // Adds a step; of `buffers` it uses those that the plan has. `relay`, `alike`: of a walk (SpreadRequest).
  void add(Step step, BufferSet buffers, const RelayLine& relay = {}, bool alike = false);

 private:
  const Plan& plan_;
  const Problem& problem_;
  const CallBounds& bounds_;
  Steps steps_;
};

bool on_gpu(const Plan& plan);
// Does the table of known lengths travel with the kernels? It does if it is small.
bool table_travels(const Plan& plan);

}  // namespace deltarelay
