// The rules of dr_tensors. Lists in host memory are checked here and trusted afterwards. A list in device memory is
// clamped by a kernel.
//
// A pointer that the problem does not use must be NULL: a state that is silently not read or not written is an error
// that shows much later. a_log and dt_bias are the exception. They are parameters of a layer, which callers pass with
// every gate form, so they are ignored if the form does not need them.
#include <cstdint>
#include <string>

#include "problem/argument.h"
#include "problem/number.h"
#include "problem/slot_window.h"
#include "problem/status.h"
#include "problem/tensor_facts.h"
#include "problem/validate.h"

namespace deltarelay {
namespace {

std::string element(const char* array, int64_t i) { return std::string(array) + "[" + std::to_string(i) + "]"; }

void check_alignment(Argument argument, const void* data, int64_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (address % static_cast<uintptr_t>(bytes) == 0) return;
  const auto largest = address & (~address + 1);  // the lowest bit that is set
  fail_invalid(argument.name(), "an address that is a multiple of " + std::to_string(bytes) + " bytes",
               "one that is a multiple of " + std::to_string(largest));
}

void check_present(Argument argument, const void* data) {
  if (data == nullptr) fail_invalid(argument.name(), "a pointer", "NULL");
}

void check_absent(Argument argument, const void* data, const char* reason) {
  if (data != nullptr) fail_invalid(argument.name(), std::string("NULL (") + reason + ")", "a pointer");
}

// Checks that a tensor is present if the problem needs it, and that its address is aligned.
void check_pointer(const TensorFacts& facts, const TensorEntry& entry, const void* data) {
  const Argument argument(is_intermediate(entry.tensor) ? "intermediates" : "tensors", entry.name);
  switch (facts.need) {
    case Need::kIgnored:
      return;
    case Need::kNever:
      check_absent(argument, data, facts.reason);
      return;
    case Need::kAlways:
      check_present(argument, data);
      break;
    case Need::kMay:
      break;
  }
  check_alignment(argument, data, facts.alignment);
}

void check_slots(const char* argument, const StatePool& pool, const void* index, int64_t rows) {
  for (int64_t n = 0; n < rows; ++n) {
    const int64_t slot = slot_of(pool, index, n);
    if (slot < pool.num_slots) continue;
    fail_invalid(element(argument, n),
                 "a slot below num_slots = " + std::to_string(pool.num_slots) + ", or a null slot",
                 std::to_string(slot));
  }
}

// Checks that no two rows write one slot: which row would remain is a matter of chance.
void check_written_once(const char* argument, const StatePool& pool, const void* index, int64_t rows) {
  if (pool.use != StateUse::kSlots) return;
  int64_t first = least_slot_from(pool, index, rows, 0);
  while (first != kNoSlot) {
    SlotWindow window(first);
    for (int64_t n = 0; n < rows; ++n) {
      const int64_t slot = slot_of(pool, index, n);
      if (!window.holds(slot)) continue;
      if (window.contains(slot)) {
        fail_invalid(element(argument, n), "a slot that no other row writes", std::to_string(slot) + " a second time");
      }
      window.insert(slot);
    }
    first = least_slot_from(pool, index, rows, first + SlotWindow::kSlots);
  }
}

// Length of sequence n, from the offsets of the problem or of the tensors. Needs host memory.
int64_t length_of(const Problem& p, const dr_tensors& t, int64_t n) {
  if (p.lengths_known) return p.length(n);
  return load_index(t.seq_offsets, p.offsets_dtype, n + 1) - load_index(t.seq_offsets, p.offsets_dtype, n);
}

// Checks the list of checkpoints of each sequence. Returns its number of rows.
int64_t check_checkpoint_list(const Problem& p, const dr_tensors& t, int64_t num_seqs) {
  constexpr const char* kOffsets = "tensors.checkpoint_offsets";
  constexpr const char* kPositions = "tensors.checkpoint_positions";
  if (t.checkpoint_offsets[0] != 0) fail_invalid(element(kOffsets, 0), "0", std::to_string(t.checkpoint_offsets[0]));
  for (int64_t n = 0; n < num_seqs; ++n) {
    const int64_t begin = t.checkpoint_offsets[n];
    const int64_t end = t.checkpoint_offsets[n + 1];
    if (end < begin) {
      fail_invalid(element(kOffsets, n + 1), "at least " + std::to_string(begin) + ", the offset before it",
                   std::to_string(end));
    }
    if (end > begin) check_present(kPositions, t.checkpoint_positions);
    const int64_t length = length_of(p, t, n);
    int64_t previous = 0;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t position = t.checkpoint_positions[row];
      if (position <= previous || position > length || position % kCheckpointAlignment != 0) {
        fail_invalid(element(kPositions, row),
                     "a multiple of " + std::to_string(kCheckpointAlignment) + " above " + std::to_string(previous) +
                         " and at most the length " + std::to_string(length) + " of sequence " + std::to_string(n),
                     std::to_string(position));
      }
      previous = position;
    }
  }
  return t.checkpoint_offsets[num_seqs];
}

int64_t count_checkpoints(const Problem& p, const dr_tensors& t, int64_t num_seqs) {
  if (p.checkpoints == Checkpoints::kNone) return 0;
  if (p.checkpoints == Checkpoints::kList) return check_checkpoint_list(p, t, num_seqs);
  int64_t rows = 0;
  for (int64_t n = 0; n < num_seqs; ++n) rows += p.checkpoint_rows(length_of(p, t, n));
  return rows;
}

// Checks what only host memory allows: the values of offsets, slots and checkpoint lists.
void check_lists(const Problem& p, const dr_tensors& t, const CallCounts& counts) {
  const int64_t num_seqs = counts.num_seqs;
  if (!p.lengths_known)
    check_offsets("tensors.seq_offsets", t.seq_offsets, p.offsets_dtype, num_seqs, counts.num_tokens);
  if (p.initial.used()) check_slots("tensors.initial_index", p.initial, t.initial_index, num_seqs);
  if (p.final.used()) {
    check_slots("tensors.final_index", p.final, t.final_index, num_seqs);
    check_written_once("tensors.final_index", p.final, t.final_index, num_seqs);
  }
  if (!p.checkpoint.used()) return;
  const int64_t rows = count_checkpoints(p, t, num_seqs);
  if (rows > 0) check_present("tensors.checkpoint", t.checkpoint);
  if (rows > 0 && p.checkpoint.use == StateUse::kSlots) check_present("tensors.checkpoint_index", t.checkpoint_index);
  if (p.checkpoint.use == StateUse::kRows && rows > p.checkpoint.num_slots) {
    fail_invalid("tensors.checkpoint", "at most num_slots = " + std::to_string(p.checkpoint.num_slots) + " rows",
                 std::to_string(rows));
  }
  check_slots("tensors.checkpoint_index", p.checkpoint, t.checkpoint_index, rows);
  check_written_once("tensors.checkpoint_index", p.checkpoint, t.checkpoint_index, rows);
}

// Checks a count of the call: the problem's, or any smaller one if lengths come with the tensors.
void check_count(const char* argument, int64_t found, int64_t most, bool lengths_known) {
  if (found == 0 || found == most || (!lengths_known && found > 0 && found < most)) return;
  const std::string bound = std::to_string(most);
  fail_invalid(
      argument,
      lengths_known ? "0 or " + bound + ", as the problem says" : "0 to " + bound + ", the bound of the problem",
      std::to_string(found));
}

}  // namespace

void check_index_alignment(const char* argument, const void* data, DType dtype) {
  check_alignment(argument, data, static_cast<int64_t>(size_of(dtype)));
}

void check_offsets(const char* argument, const void* offsets, DType dtype, int64_t num_seqs, int64_t num_tokens) {
  int64_t previous = load_index(offsets, dtype, 0);
  if (previous != 0) fail_invalid(element(argument, 0), "0", std::to_string(previous));
  for (int64_t n = 1; n <= num_seqs; ++n) {
    const int64_t offset = load_index(offsets, dtype, n);
    if (offset < previous) {
      fail_invalid(element(argument, n), "at least " + std::to_string(previous) + ", the offset before it",
                   std::to_string(offset));
    }
    if (offset > num_tokens) {
      fail_invalid(element(argument, n), "at most num_tokens = " + std::to_string(num_tokens), std::to_string(offset));
    }
    if (offset - previous > kMaxSequenceTokens) {
      fail_invalid(element(argument, n), "a sequence of at most " + std::to_string(kMaxSequenceTokens) + " tokens",
                   std::to_string(offset - previous) + " of them");
    }
    previous = offset;
  }
}

CallCounts counts_of(const Problem& p, const dr_tensors& t) {
  return {t.num_tokens != 0 ? t.num_tokens : p.num_tokens, t.num_seqs != 0 ? t.num_seqs : p.num_seqs};
}

void validate_tensors(const Problem& p, const dr_tensors& t, bool host_memory) {
  if (t.reserved != 0) fail_invalid("tensors.reserved", "0", std::to_string(t.reserved));
  check_count("tensors.num_tokens", t.num_tokens, p.num_tokens, p.lengths_known);
  check_count("tensors.num_seqs", t.num_seqs, p.num_seqs, p.lengths_known);
  const CallCounts counts = counts_of(p, t);
  if (is_stage(p.op)) {
    check_present("tensors.intermediates", t.intermediates);
    if (t.intermediates->reserved != 0)
      fail_invalid("intermediates.reserved", "0", std::to_string(t.intermediates->reserved));
  } else {
    check_absent("tensors.intermediates", t.intermediates, "the operation is DR_FORWARD");
  }
  for (const TensorEntry& entry : kTensors) check_pointer(facts_of(p, entry), entry, pointer_of(t, entry));
  check_absent("tensors.gradients", t.gradients, "the operation is not DR_BACKWARD");
  check_absent("tensors.drafts", t.drafts, "the operation is no decode step");
  if (host_memory) check_lists(p, t, counts);
}

}  // namespace deltarelay
