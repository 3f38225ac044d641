#include "problem/aliasing.h"

#include <algorithm>
#include <string>

#include "problem/footprint.h"
#include "problem/slot_window.h"
#include "problem/status.h"
#include "problem/tensor_facts.h"

namespace deltarelay {
namespace {

// Limit on the pairs of slots that are compared when two pools have different strides.
constexpr int64_t kMostPairs = 65536;

std::string tensor_name(const char* field) { return std::string("tensors.") + field; }

// ---- memory that a call touches

struct Region {
  const TensorEntry* entry = nullptr;  // nullptr: the workspace
  bool written = true;
  Footprint footprint;

  bool pool() const { return entry != nullptr && entry->kind == TensorKind::kPool; }
  std::string name() const {
    if (entry == nullptr) return "workspace";
    return is_intermediate(entry->tensor) ? std::string("intermediates.") + entry->name : tensor_name(entry->name);
  }
};

// Number of checkpoint rows of this call. Returns -1 if only the device knows.
int64_t checkpoint_rows(const Problem& p, const dr_tensors& t, int64_t num_seqs, bool host_memory) {
  if (!p.checkpoint.used()) return 0;
  if (p.checkpoints == Checkpoints::kList) return host_memory ? t.checkpoint_offsets[num_seqs] : -1;
  if (p.lengths_known) return p.checkpoint_rows();
  if (!host_memory) return -1;
  int64_t rows = 0;
  for (int64_t n = 0; n < num_seqs; ++n) {
    rows += p.checkpoint_rows(load_index(t.seq_offsets, p.offsets_dtype, n + 1) -
                              load_index(t.seq_offsets, p.offsets_dtype, n));
  }
  return rows;
}

// Chunks of the call's sequences, each with its state. If lengths lie on the device, no sequence may have any token.
int64_t state_rows(const Problem& p, const dr_tensors& t, int64_t num_tokens, int64_t num_seqs, bool host_memory) {
  if (p.op == Op::kCarry) return num_tokens;
  if (p.lengths_known || p.chunks.chunk == 0) return p.chunk_rows(num_tokens, num_seqs);
  int64_t rows = 0;
  for (int64_t n = 0; host_memory && n < num_seqs; ++n) {
    const int64_t length =
        load_index(t.seq_offsets, p.offsets_dtype, n + 1) - load_index(t.seq_offsets, p.offsets_dtype, n);
    rows += (length + p.chunks.chunk - 1) / p.chunks.chunk;
  }
  return rows;
}

// Input rows that the call reads. The caller need not own memory after the last offset.
int64_t rows_read(const Problem& p, const dr_tensors& t, int64_t num_seqs, int64_t num_tokens, bool host_memory) {
  if (p.batched()) return num_tokens;
  if (p.lengths_known) return p.offsets.back();
  return host_memory ? load_index(t.seq_offsets, p.offsets_dtype, num_seqs) : num_tokens;
}

Footprint pool_footprint(const PoolMemory& pool) {
  return {pool.data, pool.width, {{pool.slots, pool.stride_slot}, {pool.heads, pool.stride_head}}};
}

// ---- slots

// The rows of a pool, each with its slot.
struct PoolRows {
  const char* name;  // "final"
  const StatePool& pool;
  const void* index;
  int64_t rows;
  PoolMemory memory;
};

struct Slots {
  const Problem& p;
  const dr_tensors& t;

  int64_t length(int64_t n) const {
    if (p.lengths_known) return p.length(n);
    return load_index(t.seq_offsets, p.offsets_dtype, n + 1) - load_index(t.seq_offsets, p.offsets_dtype, n);
  }
  // Slot that sequence n starts from; -1 if none.
  int64_t initial(int64_t n) const {
    return p.initial_mask && t.has_initial[n] == 0 ? -1 : slot_of(p.initial, t.initial_index, n);
  }
};

[[noreturn]] void fail_slot(const PoolRows& of, int64_t row, const char* expected, int64_t slot, const char* other) {
  const bool listed = of.pool.use == StateUse::kSlots;
  fail_invalid(tensor_name(of.name) + (listed ? "_index[" : "[") + std::to_string(row) + "]", expected,
               std::to_string(slot) + ", which shares memory with tensors." + other);
}

// Throws if a row of `others` uses memory of a slot that `written` writes. `slot_at(row)` gives the slot of a row of
// `others`, or -1 if the row uses none. `may(row, slot)` says whether that row may use exactly this slot.
template <class SlotAt, class May>
void check_slots_apart(const PoolRows& written, const PoolRows& others, const char* expected, const SlotAt& slot_at,
                       const May& may) {
  const SlotShifts shifts = slot_shifts(written.memory, others.memory);
  if (shifts.unlike) {
    if (written.rows > kMostPairs / std::max<int64_t>(1, others.rows)) return;
    const auto matrices = [](const PoolMemory& pool, int64_t slot) {
      return Footprint(static_cast<const std::byte*>(pool.data) + slot * pool.stride_slot, pool.width,
                       {{pool.heads, pool.stride_head}});
    };
    for (int64_t m = 0; m < others.rows; ++m) {
      const int64_t slot = slot_at(m);
      if (slot < 0) continue;
      const Footprint touched = matrices(others.memory, slot);
      for (int64_t n = 0; n < written.rows; ++n) {
        const int64_t to = slot_of(written.pool, written.index, n);
        if (to >= 0 && compare(matrices(written.memory, to), touched) == Shared::kBytes)
          fail_slot(others, m, expected, slot, written.name);
      }
    }
    return;
  }
  if (shifts.count == 0) return;
  int64_t first = least_slot_from(written.pool, written.index, written.rows, 0);
  while (first != kNoSlot) {
    SlotWindow window(first);
    for (int64_t n = 0; n < written.rows; ++n) {
      const int64_t slot = slot_of(written.pool, written.index, n);
      if (window.holds(slot)) window.insert(slot);
    }
    for (int64_t m = 0; m < others.rows; ++m) {
      const int64_t slot = slot_at(m);
      if (slot < 0) continue;
      for (int32_t i = 0; i < shifts.count; ++i) {
        const int64_t to = slot - shifts.shift[i];
        if (!window.holds(to) || !window.contains(to)) continue;
        if (i == shifts.in_place && may(m, to)) continue;
        fail_slot(others, m, expected, slot, written.name);
      }
    }
    first = least_slot_from(written.pool, written.index, written.rows, first + SlotWindow::kSlots);
  }
}

// Are these rows known without reading device memory?
bool known_here(const PoolRows& rows, bool host_memory) {
  return rows.rows >= 0 && (host_memory || rows.pool.use == StateUse::kRows);
}

void check_pools(const Problem& p, const dr_tensors& t, const PoolRows& initial, const PoolRows& final,
                 const PoolRows& checkpoint, bool host_memory) {
  const Slots slots{p, t};
  const bool initial_known = known_here(initial, host_memory) && (host_memory || !p.initial_mask);
  const bool final_known = known_here(final, host_memory), checkpoint_known = known_here(checkpoint, host_memory);
  const auto initial_at = [&](int64_t n) { return slots.initial(n); };
  const auto checkpoint_at = [&](int64_t row) { return slot_of(p.checkpoint, t.checkpoint_index, row); };
  constexpr const char* kReads = "a slot that no other sequence writes in the same memory";
  if (p.initial.used() && p.final.used() && initial_known && final_known) {
    // A sequence may write its final state to the slot of its initial state.
    check_slots_apart(final, initial, kReads, initial_at,
                      [&](int64_t n, int64_t slot) { return slot_of(p.final, t.final_index, n) == slot; });
  }
  if (!p.checkpoint.used() || !checkpoint_known) return;
  if (p.final.used() && final_known) {
    check_slots_apart(final, checkpoint, "a slot that no final state is written to", checkpoint_at,
                      [](int64_t, int64_t) { return false; });
  }
  if (p.initial.used() && initial_known && (host_memory || p.lengths_known)) {
    // A sequence may also write a checkpoint to the slot of its initial state. Sequences are asked about in order, once
    // for each window of slots: rows are counted on from the sequence before.
    int64_t counted = 0, first = 0;  // the first row of sequence `counted`
    const auto own = [&](int64_t n, int64_t slot) {
      if (n < counted) counted = first = 0;
      if (p.checkpoints == Checkpoints::kList) {
        counted = n, first = t.checkpoint_offsets[n];
      } else {
        for (; counted < n; ++counted) first += p.checkpoint_rows(slots.length(counted));
      }
      const int64_t end = p.checkpoints == Checkpoints::kList ? int64_t{t.checkpoint_offsets[n + 1]}
                                                              : first + p.checkpoint_rows(slots.length(n));
      for (int64_t row = first; row < end; ++row)
        if (checkpoint_at(row) == slot) return true;
      return false;
    };
    check_slots_apart(checkpoint, initial, kReads, initial_at, own);
  }
}

// If initial and final states start at the same address, both pools must have the same types, strides and layout. A
// pool of one slot has no distance between slots.
void check_same_pool(const Problem& p, const dr_tensors& t, const PoolMemory& initial, const PoolMemory& final) {
  if (!p.initial.used() || !p.final.used() || t.initial != t.final) return;
  const auto differ = [](const char* what, int64_t of_initial, int64_t of_final) {
    fail_invalid(std::string("tensors.final"),
                 std::string("memory of its own, because problem.final.") + what + " is " + std::to_string(of_final) +
                     " and problem.initial." + what + " is " + std::to_string(of_initial),
                 "the address of tensors.initial");
  };
  if (p.initial.dtype != p.final.dtype) {
    differ("dtype", static_cast<int64_t>(p.initial.dtype), static_cast<int64_t>(p.final.dtype));
  }
  if (initial.slots > 1 && final.slots > 1 && p.initial.stride_slot != p.final.stride_slot)
    differ("stride_slot", p.initial.stride_slot, p.final.stride_slot);
  if (p.initial.stride_head != p.final.stride_head) differ("stride_head", p.initial.stride_head, p.final.stride_head);
  if (p.initial.layout != p.final.layout && p.dk > 1 && p.dv > 1) {
    differ("layout", static_cast<int64_t>(p.initial.layout), static_cast<int64_t>(p.final.layout));
  }
}

}  // namespace

PoolMemory pool_memory(const Problem& problem, const StatePool& pool, const void* data, int64_t rows) {
  if (!pool.used()) return {};
  const auto bytes = static_cast<int64_t>(size_of(pool.dtype));
  return {.data = data,
          .slots = pool.use == StateUse::kSlots ? pool.num_slots : rows,
          .stride_slot = pool.stride_slot * bytes,
          .stride_head = pool.stride_head * bytes,
          .width = int64_t{problem.dk} * problem.dv * bytes,
          .heads = problem.heads_v,
          .dtype = pool.dtype,
          .layout = pool.layout};
}

SlotShifts slot_shifts(const PoolMemory& a, const PoolMemory& b) {
  SlotShifts shifts;
  const Footprint memory_a = pool_footprint(a), memory_b = pool_footprint(b);
  if (compare(memory_a, memory_b) != Shared::kBytes) return shifts;
  // The stride of an axis with one index is not used; take the other pool's.
  const int64_t stride_slot = a.slots > 1 ? a.stride_slot : b.stride_slot;
  shifts.unlike =
      (a.slots > 1 && b.slots > 1 && a.stride_slot != b.stride_slot) || (a.heads > 1 && a.stride_head != b.stride_head);
  if (shifts.unlike) return shifts;
  struct Axis {
    int64_t stride, count_a, count_b;
    bool slots;
  };
  Axis outer{stride_slot, a.slots, b.slots, true}, inner{a.stride_head, a.heads, b.heads, false};
  if (outer.stride < inner.stride) std::swap(outer, inner);
  // A step of n along an axis moves b by n strides relative to a.
  const auto for_each_step = [](const Axis& axis, Wide distance, Wide extent_a, Wide extent_b, const auto& body) {
    const Wide first = std::max<Wide>(1 - axis.count_a, floor_div(-extent_b - distance, axis.stride) + 1);
    const Wide last = std::min<Wide>(axis.count_b - 1, floor_div(extent_a - distance - 1, axis.stride));
    for (Wide n = first; n <= last; ++n) body(static_cast<int64_t>(n), distance + n * axis.stride);
  };
  const Wide start = static_cast<Wide>(memory_b.start()) - static_cast<Wide>(memory_a.start());
  const Wide extent_a = static_cast<Wide>(inner.count_a - 1) * inner.stride + a.width;
  const Wide extent_b = static_cast<Wide>(inner.count_b - 1) * inner.stride + b.width;
  const bool same_matrix = a.dtype == b.dtype && a.layout == b.layout;
  for_each_step(outer, start, extent_a, extent_b, [&](int64_t outer_steps, Wide distance) {
    for_each_step(inner, distance, a.width, b.width, [&](int64_t inner_steps, Wide left) {
      const int64_t shift = outer.slots ? outer_steps : inner_steps;
      const int64_t heads = outer.slots ? inner_steps : outer_steps;
      for (int32_t i = 0; i < shifts.count; ++i)
        if (shifts.shift[i] == shift) return;
      if (shifts.count == SlotShifts::kMost) {
        shifts.unlike = true;
        return;
      }
      if (left == 0 && heads == 0 && same_matrix) shifts.in_place = shifts.count;
      shifts.shift[shifts.count++] = shift;
    });
  });
  return shifts;
}

void check_aliasing(const Problem& p, const dr_tensors& t, const CallCounts& counts, const void* workspace,
                    size_t workspace_bytes, bool host_memory) {
  const int64_t num_seqs = counts.num_seqs, num_tokens = counts.num_tokens;
  const int64_t read = rows_read(p, t, num_seqs, num_tokens, host_memory);
  const int64_t checkpoints = checkpoint_rows(p, t, num_seqs, host_memory);
  // Only the device knows the length of a list that it holds. The list may be empty, and then the pointer may be any.
  const int64_t least_checkpoints = std::max<int64_t>(checkpoints, 0);
  const PoolMemory initial = pool_memory(p, p.initial, t.initial, num_seqs);
  const PoolMemory final = pool_memory(p, p.final, t.final, num_seqs);
  const PoolMemory checkpoint = pool_memory(p, p.checkpoint, t.checkpoint, least_checkpoints);
  TensorSizes sizes_read = sizes_of(p, read, num_seqs, least_checkpoints);
  TensorSizes sizes_written = sizes_of(p, num_tokens, num_seqs, least_checkpoints);
  sizes_read.state_rows = state_rows(p, t, read, num_seqs, host_memory);
  sizes_written.state_rows = state_rows(p, t, num_tokens, num_seqs, host_memory);
  Region regions[kNumTensors + 1];  // the last is the workspace
  regions[kNumTensors].footprint = {workspace, static_cast<int64_t>(workspace_bytes), {}};
  for (int32_t i = 0; i < kNumTensors; ++i) {
    const TensorEntry& entry = kTensors[static_cast<size_t>(i)];
    regions[i].entry = &entry;
    const void* const data = pointer_of(t, entry);
    if (data == nullptr) continue;
    const TensorFacts facts = facts_of(p, entry);
    if (facts.need == Need::kIgnored) continue;
    regions[i].written = facts.written;
    if (entry.kind == TensorKind::kPool) {
      regions[i].footprint = pool_footprint(entry.tensor == Tensor::kInitial ? initial
                                            : entry.tensor == Tensor::kFinal ? final
                                                                             : checkpoint);
    } else {
      const TensorSizes& sizes = regions[i].written ? sizes_written : sizes_read;
      regions[i].footprint = footprint_of(p, entry, facts, sizes, data);
    }
  }
  for (const Region& a : regions) {
    if (!a.written || a.footprint.empty()) continue;
    for (const Region& b : regions) {
      if (&b == &a || (b.written && &b < &a) || (a.pool() && b.pool())) continue;
      if (compare(a.footprint, b.footprint) == Shared::kBytes)
        fail_invalid(a.name(), "memory of its own", "memory shared with " + b.name());
    }
  }
  check_same_pool(p, t, initial, final);
  check_pools(p, t, {"initial", p.initial, t.initial_index, num_seqs, initial},
              {"final", p.final, t.final_index, num_seqs, final},
              {"checkpoint", p.checkpoint, t.checkpoint_index, checkpoints, checkpoint}, host_memory);
}

}  // namespace deltarelay
