// The stages of the forward as operations of their own (deltarelay/stages.h), in fp32 arithmetic for all data.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/config.h"

namespace deltarelay::cpu {

// One chunk of a value head.
struct StageChunk {
  int64_t sequence;
  int64_t begin;  // its first token in the sequence
  int64_t state;  // row of its state in dr_intermediates.states
  int32_t head;
};

// The stages of one instruction set. A state has the form of Kernels.
struct StageKernels {
  size_t (*scratch_bytes)(const Problem& problem, int32_t panels);
  // DR_CHUNK_LOCAL, DR_OUTPUTS
  void (*run_chunk)(const StageArgs& args, const StageChunk& chunk, std::byte* scratch);
  // DR_STATE_PASS, DR_SUMMARY: some panels of a segment
  void (*run_segment)(const StageArgs& args, const Item& item, std::byte* scratch);
  // DR_CARRY: some panels of a chain: those of the states, then those of B, then those of M of the composed summary
  void (*run_chain)(const StageArgs& args, int64_t sequence, int32_t head, PanelRange panels, std::byte* scratch);
};

// Bytes of scratch that one worker needs, a multiple of kWorkspaceAlignment.
size_t stage_scratch_bytes(const Problem& problem, int32_t isa, int32_t value_tiles);

// DR_CHUNK_LOCAL, DR_OUTPUTS: all chunks of all sequences and heads.
void run_stage_chunks(const StageArgs& args, Executor& executor);

// DR_STATE_PASS, DR_SUMMARY: rows of a segment table, counted in chunks of the problem. In a state pass kEmit and
// kSummarize use slots as in the forward, and the forward's carry folds between them. In DR_SUMMARY every row is a
// sequence, whatever its work: its (M, B) go to dr_intermediates.summaries.
void run_stage_rows(const StageArgs& args, const Row* rows, int64_t count, Executor& executor);

// DR_CARRY: all chains, those without summaries included.
void run_stage_chains(const StageArgs& args, Executor& executor);

// What belongs to no chunk or row: rows past the last offset are zeroed; an empty sequence of a state pass gets final =
// initial, of a summary B = 0 and M = I.
void finish_stage(const StageArgs& args, Executor& executor);

}  // namespace deltarelay::cpu
