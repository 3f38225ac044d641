// Which tensors of a call may share memory. Layouts are described as columns of one arena.
#include "problem/aliasing.h"

#include <chrono>
#include <functional>
#include <random>
#include <set>
#include <vector>

#include "refusal.h"

namespace deltarelay::test {
namespace {

constexpr int64_t kArena = 1 << 20;

// Two packed sequences of 5 and 7 tokens, 2 heads, DK = DV = 8, fp32; every tensor has its own memory.
struct SharedCall {
  Request request;
  dr_tensors tensors{};
  std::vector<unsigned char> memory = std::vector<unsigned char>(kArena + 256);
  unsigned char* arena = nullptr;
  int32_t initial_index[3] = {0, 1, 2};
  int32_t final_index[3] = {0, 1, 2};
  uint8_t has_initial[3] = {1, 1, 1};
  void* workspace = nullptr;
  size_t workspace_bytes = 0;

  SharedCall() {
    request.heads_qk = request.heads_v = 2;
    request.dk = request.dv = 8;
    arena = memory.data() + 256 - reinterpret_cast<uintptr_t>(memory.data()) % 256;
    tensors.size = sizeof tensors;
    tensors.q = at(0), tensors.k = at(4096), tensors.v = at(8192), tensors.g = at(12288), tensors.beta = at(16384);
    tensors.o = at(20480);
  }
  SharedCall(const SharedCall&) = delete;

  unsigned char* at(int64_t byte) { return arena + byte; }

  void use(dr_state& state, int32_t use) {
    state.use = use;
    state.layout = DR_STATE_VALUE_MAJOR;
  }
  // Pools in one arena of 512-byte slots (2 heads of 256 bytes) that begins at byte 65536.
  void use_initial(int32_t kind, int64_t first = 0) {
    use(request.initial, kind);
    tensors.initial = at(65536 + 512 * first);
    tensors.initial_index = kind == DR_STATE_SLOTS ? initial_index : nullptr;
  }
  void use_final(int32_t kind, int64_t first = 0) {
    use(request.final, kind);
    tensors.final = at(65536 + 512 * first);
    tensors.final_index = kind == DR_STATE_SLOTS ? final_index : nullptr;
  }

  void run(bool host_memory = true) const {
    const Problem problem = validate(request);
    validate_tensors(problem, tensors, host_memory);
    check_aliasing(problem, tensors, counts_of(problem, tensors), workspace, workspace_bytes, host_memory);
  }
  void refuse(const std::string& argument, const std::string& expected, const std::string& found) const {
    expect_refusal([&] { run(); }, argument, expected, found);
  }
  void refuse_shared(const std::string& argument, const std::string& other) const {
    for (const bool host_memory : {true, false}) {
      expect_refusal([&] { run(host_memory); }, argument, "memory of its own", "memory shared with " + other);
    }
  }
};

TEST(Aliasing, OutputAndInputs) {
  const struct {
    const char* name;
    const void* dr_tensors::*field;
  } inputs[] = {{"tensors.q", &dr_tensors::q},
                {"tensors.k", &dr_tensors::k},
                {"tensors.v", &dr_tensors::v},
                {"tensors.g", &dr_tensors::g},
                {"tensors.beta", &dr_tensors::beta}};
  constexpr int64_t kOutput = 14 * 2 * 8 * 4;  // bytes
  for (const auto& input : inputs) {
    SharedCall call;
    auto* data = static_cast<unsigned char*>(const_cast<void*>(call.tensors.*input.field));
    EXPECT_NO_THROW(call.run());
    call.tensors.o = data;
    call.refuse_shared("tensors.o", input.name);
    call.tensors.o = data + 64;
    call.refuse_shared("tensors.o", input.name);
    if (data == call.arena) continue;  // nothing lies before it
    call.tensors.o = data - kOutput + 16;
    call.refuse_shared("tensors.o", input.name);
    call.tensors.o = data - kOutput;
    EXPECT_NO_THROW(call.run()) << input.name;
  }
}

// With lengths at execution the states of a pass end with the chunks of this call, not with the most that its counts
// allow: chunks of 5, 7 and no tokens are two, where 14 tokens of three sequences could have three.
TEST(Aliasing, StatesOfLateLengths) {
  SharedCall call;
  dr_chunks chunks;
  dr_chunks_init(&chunks);
  chunks.chunk = 16;
  chunks.given = DR_W | DR_U;
  chunks.wanted = DR_STATES;
  chunks.states_layout = DR_STATE_VALUE_MAJOR;
  call.request.op = DR_STATE_PASS;
  call.request.chunks = &chunks;
  call.request.seq_offsets = nullptr;
  call.tensors.seq_offsets = call.request.offsets;
  call.tensors.q = call.tensors.v = call.tensors.beta = nullptr;
  call.tensors.o = nullptr;
  dr_intermediates intermediates;
  dr_intermediates_init(&intermediates);
  intermediates.w = call.at(0), intermediates.u = call.at(8192), intermediates.states = call.at(65536);
  call.tensors.intermediates = &intermediates;
  call.use_final(DR_STATE_ROWS, 2);
  EXPECT_NO_THROW(call.run());
  EXPECT_NO_THROW(call.run(false)) << "lengths on the device may be shorter";
  call.use_final(DR_STATE_ROWS, 1);
  call.refuse("tensors.final", "memory of its own", "intermediates.states");
  call.request.seq_offsets = call.request.offsets;
  call.tensors.seq_offsets = nullptr;
  call.refuse_shared("tensors.final", "intermediates.states");
  call.use_final(DR_STATE_ROWS, 2);
  EXPECT_NO_THROW(call.run());
}

// 12 of the 14 rows are read; all are written.
TEST(Aliasing, RowsBehindTheLastOffset) {
  SharedCall call;
  constexpr int64_t kRow = 2 * 8 * 4;
  call.tensors.o = call.at(4096 + 12 * kRow);  // k has no row there that is read
  EXPECT_NO_THROW(call.run());
  call.tensors.o = call.at(4096 + 11 * kRow);
  call.refuse_shared("tensors.o", "tensors.k");
  call.tensors.o = call.at(8192 - 14 * kRow);
  EXPECT_NO_THROW(call.run());
  call.tensors.o = call.at(8192 - 13 * kRow);  // the last row is written
  call.refuse_shared("tensors.o", "tensors.v");
}

// q, k, v and o side by side in every row.
TEST(Aliasing, PackedRows) {
  SharedCall call;
  constexpr int64_t kPart = 2 * 8, kRow = 4 * kPart;  // elements
  dr_problem& p = call.request;
  p.layout_q.token = p.layout_k.token = p.layout_v.token = p.layout_o.token = kRow;
  call.tensors.q = call.at(0), call.tensors.k = call.at(4 * kPart), call.tensors.v = call.at(8 * kPart);
  call.tensors.o = call.at(12 * kPart);
  EXPECT_NO_THROW(call.run());
  EXPECT_NO_THROW(call.run(false));
  call.tensors.o = call.at(12 * kPart - 16);
  call.refuse_shared("tensors.o", "tensors.v");
  call.tensors.o = call.at(12 * kPart + 16);  // its last head reaches into q of the next row
  call.refuse_shared("tensors.o", "tensors.q");
  // Heads of v and o alternate.
  p.layout_v.head = p.layout_o.head = 16;
  call.tensors.o = call.at(8 * kPart + 32);
  EXPECT_NO_THROW(call.run());
  // Heads outside tokens; v and o alternate in a row.
  SharedCall outside;
  dr_problem& r = outside.request;
  r.layout_v.token = r.layout_o.token = 16;
  r.layout_v.head = r.layout_o.head = 16 * 14;
  outside.tensors.o = static_cast<unsigned char*>(const_cast<void*>(outside.tensors.v)) + 32;
  EXPECT_NO_THROW(outside.run());
  outside.tensors.o = static_cast<unsigned char*>(outside.tensors.o) - 16;
  outside.refuse_shared("tensors.o", "tensors.v");
}

TEST(Aliasing, BatchedRows) {
  SharedCall call;
  call.request.make_batched();
  dr_problem& p = call.request;
  p.layout_v.token = p.layout_o.token = 32;
  p.layout_v.sequence = p.layout_o.sequence = 32 * 7 + 8;  // padded
  call.tensors.o = static_cast<unsigned char*>(const_cast<void*>(call.tensors.v)) + 64;
  EXPECT_NO_THROW(call.run());
  p.layout_o.sequence = 32 * 7 + 16;  // no longer in step
  call.refuse_shared("tensors.o", "tensors.v");
}

TEST(Aliasing, EverythingElse) {
  const auto refuse = [](const char* argument, const char* other, const std::function<void(SharedCall&)>& spoil) {
    SharedCall call;
    call.request.gate_form = DR_GATE_RAW_SOFTPLUS;
    call.tensors.a_log = call.at(32768);
    call.tensors.dt_bias = call.at(33024);
    call.use_initial(DR_STATE_SLOTS);
    call.use_final(DR_STATE_SLOTS, 8);
    call.request.initial_mask = 1;
    call.tensors.has_initial = call.has_initial;
    call.workspace = call.at(131072);
    call.workspace_bytes = 4096;
    call.tensors.report = reinterpret_cast<uint32_t*>(call.at(40960));
    EXPECT_NO_THROW(call.run());
    spoil(call);
    // Indices in the arena are 0, which the rules for slots would refuse; they are not read here.
    expect_refusal([&] { call.run(false); }, argument, "memory of its own", std::string("memory shared with ") + other);
  };
  refuse("tensors.final", "tensors.v", [](SharedCall& c) { c.tensors.v = c.at(65536 + 512 * 9); });
  refuse("tensors.final", "tensors.initial_index",
         [](SharedCall& c) { c.tensors.initial_index = c.at(65536 + 512 * 9); });
  refuse("tensors.o", "tensors.final", [](SharedCall& c) { c.tensors.o = c.at(65536 + 512 * 10); });
  refuse("tensors.o", "tensors.initial", [](SharedCall& c) { c.tensors.o = c.at(65536); });
  refuse("tensors.o", "workspace", [](SharedCall& c) { c.workspace = c.at(20480); });
  refuse("tensors.o", "tensors.a_log", [](SharedCall& c) { c.tensors.a_log = c.at(20480); });
  refuse("tensors.o", "tensors.dt_bias", [](SharedCall& c) { c.tensors.dt_bias = c.at(20484); });
  refuse("tensors.o", "tensors.has_initial", [](SharedCall& c) { c.tensors.has_initial = c.at(20483); });
  refuse("tensors.o", "tensors.report",
         [](SharedCall& c) { c.tensors.report = reinterpret_cast<uint32_t*>(c.at(20480)); });
  refuse("tensors.report", "tensors.beta",
         [](SharedCall& c) { c.tensors.report = reinterpret_cast<uint32_t*>(c.at(16384)); });
  refuse("workspace", "tensors.q", [](SharedCall& c) { c.workspace_bytes = 4096, c.workspace = c.at(256); });
  refuse("tensors.final", "workspace", [](SharedCall& c) { c.workspace = c.at(65536 + 512 * 8); });
  refuse("workspace", "tensors.final_index", [](SharedCall& c) { c.tensors.final_index = c.at(131072 + 4092); });
  refuse("workspace", "tensors.seq_offsets", [](SharedCall& c) {
    c.request.seq_offsets = nullptr;
    c.tensors.seq_offsets = c.at(131072);
  });
}

TEST(Aliasing, WorkspaceCountsAsFarAsItIsUsed) {
  SharedCall call;
  call.workspace = call.at(0) - 256;
  call.workspace_bytes = 256;
  EXPECT_NO_THROW(call.run());
  call.workspace_bytes = 257;
  call.refuse_shared("workspace", "tensors.q");
  call.workspace_bytes = 0;
  call.workspace = call.at(0);
  EXPECT_NO_THROW(call.run());
}

// ---- pools

TEST(Aliasing, PoolsThatStartAtDifferentSlots) {
  SharedCall call;
  call.use_initial(DR_STATE_SLOTS, 0);
  call.use_final(DR_STATE_SLOTS, 1);  // slot 0 of final is slot 1 of initial
  call.request.initial.num_slots = call.request.final.num_slots = 8;
  call.initial_index[0] = 1, call.initial_index[1] = 2, call.initial_index[2] = 3;  // in place
  EXPECT_NO_THROW(call.run());
  call.initial_index[0] = 2;
  call.refuse("tensors.initial_index[0]", "a slot that no other sequence writes in the same memory",
              "2, which shares memory with tensors.final");
  EXPECT_NO_THROW(call.run(false)) << "indices on a device are not read";
  call.request.initial_mask = 1;
  call.tensors.has_initial = call.has_initial;
  call.has_initial[0] = 0;
  EXPECT_NO_THROW(call.run());
}

TEST(Aliasing, RowsOfPoolsThatOverlap) {
  SharedCall call;
  call.use_initial(DR_STATE_ROWS, 0);
  call.use_final(DR_STATE_ROWS, 0);
  EXPECT_NO_THROW(call.run());
  call.use_final(DR_STATE_ROWS, 2);
  for (const bool host_memory : {true, false}) {  // no index has to be read
    expect_refusal([&] { call.run(host_memory); }, "tensors.initial[2]", "a slot that no other sequence writes",
                   "2, which shares memory with tensors.final");
  }
  call.use_final(DR_STATE_ROWS, 3);
  EXPECT_NO_THROW(call.run());
  // Halfway between two slots: no matrix may be written over another, even of the same sequence.
  call.tensors.final = call.at(65536 + 256);
  EXPECT_THROW(call.run(), Error);
  // Slots of two pools alternate.
  call.request.initial.stride_slot = call.request.final.stride_slot = 256;
  call.tensors.final = call.at(65536 + 512);
  EXPECT_NO_THROW(call.run());
  EXPECT_NO_THROW(call.run(false));
  // Heads outside slots, in place.
  call.request.initial.stride_slot = call.request.final.stride_slot = 64;
  call.request.initial.stride_head = call.request.final.stride_head = 64 * 3;
  call.tensors.final = call.at(65536);
  EXPECT_NO_THROW(call.run());
  call.tensors.final = call.at(65536 + 256);
  EXPECT_THROW(call.run(), Error);
}

struct SharedCheckpointCall : SharedCall {
  int32_t index[4] = {4, 5, 6, 7};

  SharedCheckpointCall() {  // lengths 40, 0 and 70: rows 1, 0 and 2 after 32 tokens each
    request.offsets[1] = request.offsets[2] = 40;
    request.offsets[3] = 110;
    request.num_tokens = 110;
    tensors.q = at(0x40000), tensors.k = at(0x44000), tensors.v = at(0x48000), tensors.g = at(0x4c000);
    tensors.o = at(0x50000);
    request.checkpoints = DR_CHECKPOINTS_EVERY;
    request.checkpoint_every = 32;
    use(request.checkpoint, DR_STATE_SLOTS);
    request.checkpoint.num_slots = 8;
    tensors.checkpoint = at(65536);
    tensors.checkpoint_index = index;
  }
};

TEST(Aliasing, OnePoolForFinalStatesAndCheckpoints) {
  SharedCheckpointCall call;
  call.use_final(DR_STATE_SLOTS);
  call.request.final.num_slots = 8;
  EXPECT_NO_THROW(call.run());
  call.index[2] = 1;
  call.refuse("tensors.checkpoint_index[2]", "a slot that no final state is written to", "1, which shares memory with");
  EXPECT_NO_THROW(call.run(false));
  call.final_index[1] = -1;
  EXPECT_NO_THROW(call.run());
  // The same memory as slots of 16 bits: two fit where one of fp32 was.
  call.request.checkpoint.dtype = DR_BF16;
  call.request.checkpoint.num_slots = 16;
  call.index[0] = 6, call.index[1] = 7, call.index[2] = 8;
  EXPECT_NO_THROW(call.run());
  call.index[1] = 5;
  call.refuse("tensors.checkpoint_index[1]", "a slot that no final state is written to", "5, which shares memory with");
}

// Nothing is written for an empty list, so its pool may begin where another tensor does.
TEST(Aliasing, AnEmptyListOnTheDevice) {
  SharedCheckpointCall call;
  int32_t offsets[4] = {0, 0, 0, 0};
  int32_t positions[1] = {0};
  call.request.checkpoints = DR_CHECKPOINTS_LIST;
  call.request.checkpoint_every = 0;
  call.use(call.request.checkpoint, DR_STATE_ROWS);
  call.request.checkpoint.num_slots = 0;
  call.tensors.checkpoint_index = nullptr;
  call.tensors.checkpoint_offsets = offsets;
  call.tensors.checkpoint_positions = positions;
  call.tensors.checkpoint = offsets;
  EXPECT_NO_THROW(call.run(true));
  EXPECT_NO_THROW(call.run(false));
  offsets[3] = 1;  // which only the host can see
  EXPECT_NO_THROW(call.run(false));
  EXPECT_THROW(call.run(true), Error);
}

TEST(Aliasing, CheckpointsAndInitialStates) {
  SharedCheckpointCall call;
  call.use_initial(DR_STATE_SLOTS);
  call.request.initial.num_slots = 8;
  EXPECT_NO_THROW(call.run());
  call.initial_index[0] = 5;  // a checkpoint of sequence 2 goes there
  call.refuse("tensors.initial_index[0]", "a slot that no other sequence writes in the same memory", "5");
  call.initial_index[0] = 4;  // its own
  EXPECT_NO_THROW(call.run());
}

// Whoever writes a checkpoint over each of the initial states calls with many of them.
TEST(Aliasing, ManyCheckpointsInPlaceTakeNoLonger) {
  constexpr int32_t kMany = 65536;
  std::vector<int32_t> offsets(kMany + 1), slots(kMany);
  for (int32_t n = 0; n < kMany; ++n) offsets[static_cast<size_t>(n) + 1] = n + 1, slots[static_cast<size_t>(n)] = n;
  SharedCheckpointCall call;
  call.request.num_seqs = call.request.num_tokens = kMany;
  call.request.seq_offsets = offsets.data();
  call.request.heads_qk = call.request.heads_v = call.request.dk = call.request.dv = 1;
  call.request.checkpoints = DR_CHECKPOINTS_CHUNKS;
  call.request.checkpoint_every = 0;
  call.use_initial(DR_STATE_SLOTS);
  call.request.initial.num_slots = call.request.checkpoint.num_slots = kMany;
  call.tensors.initial_index = call.tensors.checkpoint_index = slots.data();
  std::vector<float> rows(6 * kMany), pool(kMany);
  const void** const inputs[] = {&call.tensors.q, &call.tensors.k, &call.tensors.v, &call.tensors.g,
                                 &call.tensors.beta};
  size_t used = 0;
  for (const void** input : inputs) *input = rows.data() + kMany * used++;
  call.tensors.o = rows.data() + kMany * used;
  call.tensors.initial = call.tensors.checkpoint = pool.data();
  const Problem problem = validate(call.request);
  const auto begin = std::chrono::steady_clock::now();
  check_aliasing(problem, call.tensors, counts_of(problem, call.tensors), nullptr, 0, true);
  const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - begin;
  RecordProperty("us", static_cast<int>(1000 * taken.count()));
  EXPECT_LT(taken.count(), 300.0);         // far above the usual time, far below one that grows with the square
  std::swap(slots.front(), slots.back());  // of both: rows and sequences are still the same
  EXPECT_NO_THROW(call.run());
  std::vector<int32_t> others = slots;
  std::swap(others[kMany / 2], others[kMany / 2 + 1]);
  call.tensors.checkpoint_index = others.data();
  call.refuse("tensors.initial_index[32768]", "a slot that no other sequence writes in the same memory", "32768");
}

// A pool with one slot has no distance between slots, whatever its stride is: the other pool's is good for both.
TEST(Aliasing, OnePoolOfWhichOneSideUsesASingleSlot) {
  SharedCall call;
  call.request.num_seqs = 1;
  call.request.num_tokens = 5;
  call.use_initial(DR_STATE_ROWS);
  call.use_final(DR_STATE_SLOTS);
  call.request.final.num_slots = 4;
  call.request.initial.stride_slot = call.request.final.stride_slot = 256;  // 128 would do
  call.final_index[0] = 0;
  for (const bool host_memory : {true, false}) EXPECT_NO_THROW(call.run(host_memory));
  call.final_index[0] = 3;
  EXPECT_NO_THROW(call.run());
  call.use_initial(DR_STATE_ROWS, 2);  // 512 bytes each: slot 1 of the pool that has slots of 1,024
  call.final_index[0] = 1;
  EXPECT_NO_THROW(call.run()) << "its own, in place";
  call.use_initial(DR_STATE_SLOTS);
  call.request.initial.num_slots = 2;
  call.request.initial.stride_slot = 384;
  call.refuse("tensors.final", "memory of its own, because problem.final.stride_slot is 256", "tensors.initial");
}

// Pools that overlap in every way, compared with sets of bytes.
TEST(Aliasing, PoolsAgreeWithSetsOfBytes) {
  std::mt19937 random(4);
  const auto pick = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  int refused = 0, accepted = 0, in_place = 0;
  constexpr int kRounds = 1500;
  for (int round = 0; round < kRounds; ++round) {
    SharedCall call;
    call.request.dk = 4, call.request.dv = 4;  // 64 bytes a matrix
    const int64_t strides[][2] = {{32, 16}, {48, 16}, {16, 16 * 6}, {64, 32}};
    const auto& chosen = strides[pick(0, 3)];
    const auto& other = pick(0, 3) == 0 ? strides[pick(0, 3)] : chosen;
    call.use_initial(DR_STATE_SLOTS);
    call.use_final(DR_STATE_SLOTS);
    dr_state& initial = call.request.initial;
    dr_state& final = call.request.final;
    initial.num_slots = final.num_slots = 6;
    initial.stride_slot = chosen[0], initial.stride_head = chosen[1];
    final.stride_slot = other[0], final.stride_head = other[1];
    final.alignment_bytes = 4;
    call.tensors.final = call.at(65536 + 4 * (pick(0, 1) == 0 ? chosen[0] * pick(0, 3) : 4 * pick(0, 40)));
    std::vector<int32_t> slots = {0, 1, 2, 3, 4, 5};
    std::shuffle(slots.begin(), slots.end(), random);
    for (int n = 0; n < 3; ++n) call.final_index[n] = slots[static_cast<size_t>(n)];
    for (int32_t& slot : call.initial_index) slot = static_cast<int32_t>(pick(-1, 5));

    const auto bytes = [&](const void* data, const dr_state& state, int64_t slot) {
      std::set<const unsigned char*> all;
      for (int64_t head = 0; slot >= 0 && head < 2; ++head) {
        for (int64_t i = 0; i < 64; ++i)
          all.insert(static_cast<const unsigned char*>(data) +
                     4 * (slot * state.stride_slot + head * state.stride_head) + i);
      }
      return all;
    };
    bool legal = true;
    for (int n = 0; n < 3; ++n) {
      const auto written = bytes(call.tensors.final, final, call.final_index[n]);
      for (int m = 0; m < 3; ++m) {
        const auto read = bytes(call.tensors.initial, initial, call.initial_index[m]);
        bool meet = false;
        for (const unsigned char* byte : read) meet = meet || written.count(byte) != 0;
        const bool same = n == m && written == read && chosen[0] == other[0] && chosen[1] == other[1];
        in_place += same;
        legal = legal && (!meet || same);
      }
    }
    // One address must mean one view.
    if (call.tensors.final == call.tensors.initial && (chosen[0] != other[0] || chosen[1] != other[1])) legal = false;
    bool passed = true;
    try {
      call.run();
    } catch (const Error&) {
      passed = false;
    }
    ASSERT_EQ(passed, legal) << "round " << round;
    ++(legal ? accepted : refused);
  }
  EXPECT_GT(refused, kRounds / 10);
  EXPECT_GT(accepted, kRounds / 10);
  EXPECT_GT(in_place, 20);
}

// The check is part of every execution, so it must take microseconds only.
TEST(Aliasing, IsCheap) {
  SharedCheckpointCall call;
  call.use_initial(DR_STATE_SLOTS, 16);
  call.use_final(DR_STATE_SLOTS, 16);
  const Problem problem = validate(call.request);
  constexpr int kCalls = 2000;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i)
    check_aliasing(problem, call.tensors, counts_of(problem, call.tensors), nullptr, 0, true);
  const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - begin;
  RecordProperty("ns", static_cast<int>(1000 * taken.count() / kCalls));
  EXPECT_LT(taken.count() / kCalls, 200.0);  // far above the usual time, on any machine and with sanitizers
}

}  // namespace
}  // namespace deltarelay::test
