#include "kernels/step.h"

namespace deltarelay {

const char* name_of(BufferId buffer) {
  switch (buffer) {
    case BufferId::kScratch:
      return "scratch";
    case BufferId::kSlotState:
      return "slot state";
    case BufferId::kTransition:
      return "slot transition";
    case BufferId::kPrepared:
      return "prepared operands";
    case BufferId::kLives:
      return "live transitions";
    case BufferId::kCheckpoints:
      return "checkpoints";
    case BufferId::kRelayStates:
      return "relayed states";
    case BufferId::kRelayMarks:
      return "relay marks";
    case BufferId::kTable:
      return "segment table";
    case BufferId::kOffsets:
      return "sequence offsets";
  }
  return "";
}

const char* name_of(const Step& step) {
  switch (step.stage) {
    case Stage::kTable:
      return "segment table";
    case Stage::kPrepare:
      return "prepare";
    case Stage::kWalk:
      return !step.summarizes ? "emit" : step.emits ? "summarize + emit" : "summarize";
    case Stage::kCarry:
      return "carry";
    case Stage::kCheckpoints:
      return "checkpoints";
    case Stage::kAliases:
      return "aliases";
    case Stage::kFinish:
      return "finish";
    case Stage::kChunkLocal:
      return "chunk-local";
    case Stage::kStatePass:
      return "state-pass";
    case Stage::kOutputs:
      return "outputs";
    case Stage::kSummary:
      return "summary";
    case Stage::kChains:
      return "carry of chains";
  }
  return "";
}

const char* text_of(When when) {
  switch (when) {
    case When::kReport:
      return "a report is wanted";
    case When::kPoolsReport:
      return "a report is wanted and pools share memory";
    default:
      return "";
  }
}

}  // namespace deltarelay
