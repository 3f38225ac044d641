#include <limits>

#include "refusal.h"

namespace deltarelay::test {
namespace {

struct Pool {
  std::string name;
  dr_state dr_problem::*state;
  int64_t rows;  // of the request below
};

const Pool kPools[] = {{"problem.initial", &dr_problem::initial, 3},
                       {"problem.final", &dr_problem::final, 3},
                       {"problem.checkpoint", &dr_problem::checkpoint, 2}};

// Lengths 32, 32 and 0; checkpoints, where there are any, every 32 tokens.
struct StateRequest : Request {
  explicit StateRequest(const Pool& pool, int32_t use = DR_STATE_ROWS) {
    offsets[1] = 32;
    offsets[2] = offsets[3] = 64;
    num_tokens = 64;
    (this->*pool.state).use = use;
    (this->*pool.state).layout = DR_STATE_VALUE_MAJOR;
    if (pool.state == &dr_problem::checkpoint) {
      checkpoints = DR_CHECKPOINTS_EVERY;
      checkpoint_every = 32;
    }
  }
};

StatePool resolved(const dr_problem& request, const Pool& pool) {
  const Problem p = validate(request);
  if (pool.state == &dr_problem::initial) return p.initial;
  return pool.state == &dr_problem::final ? p.final : p.checkpoint;
}

TEST(StateRules, DefaultsAreResolved) {
  for (const Pool& pool : kPools) {
    const StateRequest request(pool);
    const StatePool state = resolved(request, pool);
    EXPECT_EQ(state.use, StateUse::kRows);
    EXPECT_EQ(state.layout, StateLayout::kValueMajor);
    EXPECT_EQ(state.dtype, DType::kFp32);
    EXPECT_EQ(state.index_dtype, DType::kInt32);
    EXPECT_EQ(state.num_slots, pool.rows) << pool.name;
    EXPECT_EQ(state.stride_head, 48);
    EXPECT_EQ(state.stride_slot, 4 * 48);
    EXPECT_TRUE(state.is_null(-1));
    EXPECT_FALSE(state.is_null(0));
  }
}

TEST(StateRules, LayoutHasNoDefault) {
  for (const Pool& pool : kPools) {
    StateRequest request(pool);
    for (const int32_t layout : {0, 3, -1}) {
      (request.*pool.state).layout = layout;
      expect_refusal(request, pool.name + ".layout", "DR_STATE_VALUE_MAJOR (1) or DR_STATE_KEY_MAJOR (2)",
                     std::to_string(layout));
    }
  }
}

TEST(StateRules, Enumerations) {
  for (const Pool& pool : kPools) {
    StateRequest request(pool);
    (request.*pool.state).use = 3;
    expect_refusal(request, pool.name + ".use", "DR_STATE_SLOTS (2)", "3");
    (request.*pool.state).use = DR_STATE_SLOTS;
    (request.*pool.state).dtype = DR_INT32;
    expect_refusal(request, pool.name + ".dtype", "DR_FP16 (3)", "4");
    (request.*pool.state).dtype = DR_FP16;
    (request.*pool.state).index_dtype = DR_FP32;
    expect_refusal(request, pool.name + ".index_dtype", "DR_INT32 (4) or DR_INT64 (5)", "1");
    (request.*pool.state).index_dtype = DR_INT64;
    (request.*pool.state).reserved[2] = 7;
    expect_refusal(request, pool.name + ".reserved", "0", "7");
    (request.*pool.state).reserved[2] = 0;
    EXPECT_EQ(resolved(request, pool).index_dtype, DType::kInt64);
  }
}

TEST(StateRules, SlotCounts) {
  for (const Pool& pool : kPools) {
    StateRequest request(pool);
    (request.*pool.state).num_slots = -1;
    expect_refusal(request, pool.name + ".num_slots", "the states in the pool", "-1");
    (request.*pool.state).num_slots = pool.rows - 1;
    expect_refusal(request, pool.name + ".num_slots", "at least " + std::to_string(pool.rows) + " rows",
                   std::to_string(pool.rows - 1));
    (request.*pool.state).use = DR_STATE_SLOTS;  // rows may share a smaller pool with null slots
    EXPECT_EQ(resolved(request, pool).num_slots, pool.rows - 1);
    (request.*pool.state).num_slots = 1000;
    EXPECT_EQ(resolved(request, pool).num_slots, 1000);
  }
}

TEST(StateRules, NullIndex) {
  for (const Pool& pool : kPools) {
    StateRequest request(pool, DR_STATE_SLOTS);
    (request.*pool.state).null_index = 5;
    expect_refusal(request, pool.name + ".null_index", "0 while has_null_index is 0", "5");
    (request.*pool.state).has_null_index = 1;
    const StatePool state = resolved(request, pool);
    EXPECT_TRUE(state.is_null(5));
    EXPECT_TRUE(state.is_null(-7));
    EXPECT_FALSE(state.is_null(0));
    (request.*pool.state).use = DR_STATE_ROWS;
    expect_refusal(request, pool.name + ".has_null_index", "0 unless use is DR_STATE_SLOTS", "1");
  }
}

TEST(StateRules, Strides) {
  for (const Pool& pool : kPools) {
    StateRequest request(pool);
    (request.*pool.state).stride_head = -1;
    expect_refusal(request, pool.name + ".stride_head", "a positive number of elements", "-1");
    (request.*pool.state).stride_head = 47;
    expect_refusal(request, pool.name + ".stride_head", "at least 48", "47");
    (request.*pool.state).stride_head = 50;
    EXPECT_EQ(resolved(request, pool).stride_slot, 200);
    (request.*pool.state).stride_slot = -4;
    expect_refusal(request, pool.name + ".stride_slot", "a positive number of elements", "-4");
    (request.*pool.state).stride_slot = 197;
    expect_refusal(request, pool.name + ".stride_slot", "at least 198", "197");
    (request.*pool.state).stride_slot = std::numeric_limits<int64_t>::max();
    expect_refusal(request, pool.name + ".stride_slot", "at most 2^63 - 1 bytes", "steps of 9223372036854775807");
  }
}

TEST(StateRules, AnUnusedPoolIsNotLookedAt) {
  for (const Pool& pool : {kPools[0], kPools[1]}) {
    StateRequest request(pool, DR_STATE_NONE);
    (request.*pool.state).num_slots = -5;
    (request.*pool.state).layout = 9;
    EXPECT_NO_THROW(validate(request));
  }
}

TEST(StateRules, InitialMaskNeedsAnInitialState) {
  Request request;
  request.initial_mask = 1;
  expect_refusal(request, "problem.initial_mask", "0 while initial.use is DR_STATE_NONE", "1");
  request.initial.use = DR_STATE_ROWS;
  request.initial.layout = DR_STATE_KEY_MAJOR;
  EXPECT_TRUE(validate(request).initial_mask);
}

TEST(CheckpointRules, Modes) {
  StateRequest request(kPools[2]);
  request.checkpoints = 4;
  expect_refusal(request, "problem.checkpoints", "DR_CHECKPOINTS_CHUNKS (3)", "4");
  request.checkpoints = DR_CHECKPOINTS_NONE;
  request.checkpoint_every = 0;
  expect_refusal(request, "problem.checkpoint.use", "DR_STATE_NONE while checkpoints is DR_CHECKPOINTS_NONE", "1");
  request.checkpoints = DR_CHECKPOINTS_LIST;
  request.checkpoint.use = DR_STATE_NONE;
  expect_refusal(request, "problem.checkpoint.use", "DR_STATE_ROWS or DR_STATE_SLOTS", "0");
}

TEST(CheckpointRules, Period) {
  StateRequest request(kPools[2]);
  for (const int64_t every : {0, -16, 8, 24}) {
    request.checkpoint_every = every;
    expect_refusal(request, "problem.checkpoint_every", "a positive multiple of 16", std::to_string(every));
  }
  request.checkpoint_every = 16;
  for (const int32_t mode : {DR_CHECKPOINTS_LIST, DR_CHECKPOINTS_CHUNKS, DR_CHECKPOINTS_NONE}) {
    request.checkpoints = mode;
    expect_refusal(request, "problem.checkpoint_every", "0 unless checkpoints is DR_CHECKPOINTS_EVERY", "16");
  }
}

TEST(CheckpointRules, RowCounts) {
  StateRequest request(kPools[2]);  // lengths 32, 32, 0
  const auto slots = [&] { return validate(request).checkpoint.num_slots; };
  request.checkpoint_every = 16;
  EXPECT_EQ(slots(), 4);
  request.checkpoint_every = 48;
  EXPECT_EQ(slots(), 0);
  request.checkpoint_every = 0;
  request.checkpoints = DR_CHECKPOINTS_CHUNKS;
  EXPECT_EQ(slots(), 2);
  request.checkpoints = DR_CHECKPOINTS_LIST;
  EXPECT_EQ(slots(), 4);
  request.checkpoint.num_slots = 1;  // the list may be short
  EXPECT_EQ(slots(), 1);

  request.checkpoint.num_slots = 0;
  request.seq_offsets = nullptr;  // bounds from 64 tokens and 3 sequences
  EXPECT_EQ(slots(), 4);
  request.checkpoints = DR_CHECKPOINTS_CHUNKS;
  EXPECT_EQ(slots(), 4);
  request.checkpoints = DR_CHECKPOINTS_EVERY;
  request.checkpoint_every = 32;
  EXPECT_EQ(slots(), 2);

  request.make_batched();
  request.seq_len = 100;
  EXPECT_EQ(slots(), 9);
}

}  // namespace
}  // namespace deltarelay::test
