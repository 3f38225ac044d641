#include <functional>
#include <vector>

#include "problem/aliasing.h"
#include "refusal.h"

namespace deltarelay::test {
namespace {

// A problem with all its tensors, each in memory that is large enough. The rules read only the lists through these
// pointers.
struct Call {
  Request request;
  dr_tensors tensors{};
  alignas(64) unsigned char memory[16][1 << 14] = {};
  int32_t initial_index[3] = {0, 1, 2};
  int32_t final_index[3] = {0, 1, 2};
  uint8_t has_initial[3] = {1, 1, 1};

  Call() {
    tensors.size = sizeof tensors;
    tensors.q = memory[0];
    tensors.k = memory[1];
    tensors.v = memory[2];
    tensors.g = memory[3];
    tensors.beta = memory[4];
    tensors.o = memory[5];
  }
  Call(const Call&) = delete;

  void use_initial(int32_t use) {
    request.initial.use = use;
    request.initial.layout = DR_STATE_VALUE_MAJOR;
    tensors.initial = use == DR_STATE_NONE ? nullptr : memory[6];
    tensors.initial_index = use == DR_STATE_SLOTS ? initial_index : nullptr;
  }
  void use_final(int32_t use) {
    request.final.use = use;
    request.final.layout = DR_STATE_VALUE_MAJOR;
    tensors.final = use == DR_STATE_NONE ? nullptr : memory[7];
    tensors.final_index = use == DR_STATE_SLOTS ? final_index : nullptr;
  }
  void run(bool host_memory = true) const {
    const Problem problem = validate(request);
    validate_tensors(problem, tensors, host_memory);
    check_aliasing(problem, tensors, counts_of(problem, tensors), nullptr, 0, host_memory);
  }
  void refuse(const std::string& argument, const std::string& expected, const std::string& found) const {
    expect_refusal([&] { run(); }, argument, expected, found);
  }
};

TEST(TensorRules, CompleteTensorsAreAccepted) {
  Call call;
  EXPECT_NO_THROW(call.run());
  call.use_initial(DR_STATE_ROWS);
  call.use_final(DR_STATE_SLOTS);
  EXPECT_NO_THROW(call.run());
  uint32_t report = 0;
  call.tensors.report = &report;
  EXPECT_NO_THROW(call.run());
}

TEST(TensorRules, Reserved) {
  Call call;
  call.tensors.reserved = 3;
  call.refuse("tensors.reserved", "0", "3");
}

TEST(TensorRules, CountsOfACall) {
  Call call;
  call.tensors.num_tokens = call.request.num_tokens;
  call.tensors.num_seqs = call.request.num_seqs;
  EXPECT_NO_THROW(call.run());
  call.tensors.num_tokens -= 1;
  call.refuse("tensors.num_tokens", "as the problem says", std::to_string(call.tensors.num_tokens));
  call.tensors.num_tokens = 0;
  call.tensors.num_seqs += 1;
  call.refuse("tensors.num_seqs", "as the problem says", std::to_string(call.tensors.num_seqs));

  Call late;
  const int32_t offsets[] = {0, 4, 9, 11};
  late.request.seq_offsets = nullptr;
  late.tensors.seq_offsets = offsets;
  EXPECT_NO_THROW(late.run());
  late.tensors.num_tokens = 9;
  late.tensors.num_seqs = 2;  // the third offset is not read
  EXPECT_NO_THROW(late.run());
  late.tensors.num_tokens = 8;
  late.refuse("tensors.seq_offsets[2]", "at most num_tokens = 8", "9");
  late.tensors.num_tokens = late.request.num_tokens + 1;
  late.refuse("tensors.num_tokens", "the bound of the problem", std::to_string(late.tensors.num_tokens));
  late.tensors.num_tokens = -1;
  late.refuse("tensors.num_tokens", "0 to ", "-1");
}

TEST(TensorRules, StructuresOfOtherOperationsAreRefused) {
  Call call;
  call.tensors.gradients = reinterpret_cast<const dr_gradients*>(call.memory[0]);
  call.refuse("tensors.gradients", "NULL", "a pointer");
}

TEST(TensorRules, NullTensors) {
  const struct {
    const char* name;
    const void* dr_tensors::*field;
  } inputs[] = {{"tensors.q", &dr_tensors::q},
                {"tensors.k", &dr_tensors::k},
                {"tensors.v", &dr_tensors::v},
                {"tensors.g", &dr_tensors::g},
                {"tensors.beta", &dr_tensors::beta}};
  for (const auto& input : inputs) {
    Call call;
    call.tensors.*input.field = nullptr;
    call.refuse(input.name, "a pointer", "NULL");
  }
  Call call;
  call.tensors.o = nullptr;
  call.refuse("tensors.o", "a pointer", "NULL");
}

TEST(TensorRules, TensorsWithoutTokensMayBeNull) {
  Call call;
  const int32_t offsets[4] = {0, 0, 0, 0};
  call.request.num_tokens = 0;
  call.request.seq_offsets = offsets;
  call.tensors = dr_tensors{};
  call.tensors.size = sizeof(dr_tensors);
  EXPECT_NO_THROW(call.run());
}

TEST(TensorRules, Alignment) {
  Call call;
  call.tensors.k = call.memory[1] + 8;
  call.refuse("tensors.k", "a multiple of 16 bytes", "multiple of 8");
  call.request.layout_k.alignment_bytes = 8;
  EXPECT_NO_THROW(call.run());
  call.request.layout_k.alignment_bytes = 1;  // never below the element
  call.tensors.k = call.memory[1] + 2;
  call.refuse("tensors.k", "a multiple of 4 bytes", "multiple of 2");
  call.request.dtype = DR_FP16;
  EXPECT_NO_THROW(call.run());
  call.tensors.k = call.memory[1] + 1;
  call.refuse("tensors.k", "a multiple of 2 bytes", "multiple of 1");
  call.tensors.k = call.memory[1];
  call.request.layout_k.alignment_bytes = 1 << 30;
  EXPECT_THROW(call.run(), Error);
}

TEST(TensorRules, AlignmentOfEveryPointer) {
  const auto refuse = [](const char* name, const std::function<void(Call&)>& spoil) {
    Call call;
    call.request.gate_form = DR_GATE_RAW_SOFTPLUS;
    call.tensors.a_log = call.memory[8];
    call.use_initial(DR_STATE_SLOTS);
    call.use_final(DR_STATE_SLOTS);
    EXPECT_NO_THROW(call.run());
    spoil(call);
    call.refuse(name, "a multiple of", "multiple of 2");
  };
  const auto skewed = [](Call& call, int i) -> void* { return call.memory[i] + 2; };
  refuse("tensors.q", [&](Call& call) { call.tensors.q = skewed(call, 0); });
  refuse("tensors.v", [&](Call& call) { call.tensors.v = skewed(call, 2); });
  refuse("tensors.g", [&](Call& call) { call.tensors.g = skewed(call, 3); });
  refuse("tensors.beta", [&](Call& call) { call.tensors.beta = skewed(call, 4); });
  refuse("tensors.o", [&](Call& call) { call.tensors.o = skewed(call, 5); });
  refuse("tensors.initial", [&](Call& call) { call.tensors.initial = skewed(call, 6); });
  refuse("tensors.final", [&](Call& call) { call.tensors.final = skewed(call, 7); });
  refuse("tensors.a_log", [&](Call& call) { call.tensors.a_log = skewed(call, 8); });
  refuse("tensors.dt_bias", [&](Call& call) { call.tensors.dt_bias = skewed(call, 9); });
  refuse("tensors.initial_index", [&](Call& call) { call.tensors.initial_index = skewed(call, 10); });
  refuse("tensors.final_index", [&](Call& call) { call.tensors.final_index = skewed(call, 10); });
  refuse("tensors.report", [&](Call& call) { call.tensors.report = static_cast<uint32_t*>(skewed(call, 11)); });
}

TEST(TensorRules, GateParameters) {
  Call call;
  call.request.gate_form = DR_GATE_RAW_SOFTPLUS;
  call.refuse("tensors.a_log", "a pointer", "NULL");
  call.request.gate_form = DR_GATE_RAW_BOUNDED;
  call.request.lower_bound = -5.0f;
  EXPECT_NO_THROW(call.run());
  // Gate parameters that this gate form does not need are ignored.
  call.request.gate_form = DR_GATE_LOG;
  call.request.lower_bound = 0.0f;
  call.tensors.a_log = call.memory[8];
  call.tensors.dt_bias = call.tensors.a_log;
  EXPECT_NO_THROW(call.run());
}

TEST(TensorRules, StatesThatTheProblemHasNot) {
  const auto refuse = [](const char* name, const std::function<void(Call&)>& spoil) {
    Call call;
    spoil(call);
    call.refuse(name, "NULL (", "a pointer");
  };
  refuse("tensors.initial", [](Call& call) { call.tensors.initial = call.memory[6]; });
  refuse("tensors.initial_index", [](Call& call) { call.tensors.initial_index = call.initial_index; });
  refuse("tensors.has_initial", [](Call& call) { call.tensors.has_initial = call.has_initial; });
  refuse("tensors.final", [](Call& call) { call.tensors.final = call.memory[7]; });
  refuse("tensors.final_index", [](Call& call) { call.tensors.final_index = call.final_index; });
  refuse("tensors.checkpoint", [](Call& call) { call.tensors.checkpoint = call.memory[8]; });
  refuse("tensors.checkpoint_index", [](Call& call) { call.tensors.checkpoint_index = call.final_index; });
  refuse("tensors.checkpoint_offsets", [](Call& call) { call.tensors.checkpoint_offsets = call.final_index; });
  refuse("tensors.checkpoint_positions", [](Call& call) { call.tensors.checkpoint_positions = call.final_index; });
  refuse("tensors.seq_offsets", [](Call& call) { call.tensors.seq_offsets = call.request.offsets; });
  refuse("tensors.initial_index", [](Call& call) {
    call.use_initial(DR_STATE_ROWS);
    call.tensors.initial_index = call.initial_index;
  });
}

TEST(TensorRules, StatesThatTheProblemNeeds) {
  Call call;
  call.use_initial(DR_STATE_SLOTS);
  call.use_final(DR_STATE_SLOTS);
  call.tensors.initial = nullptr;
  call.refuse("tensors.initial", "a pointer", "NULL");
  call.tensors.initial = call.memory[6];
  call.tensors.initial_index = nullptr;
  call.refuse("tensors.initial_index", "a pointer", "NULL");
  call.tensors.initial_index = call.initial_index;
  call.tensors.final = nullptr;
  call.refuse("tensors.final", "a pointer", "NULL");
  call.tensors.final = call.memory[7];
  call.tensors.final_index = nullptr;
  call.refuse("tensors.final_index", "a pointer", "NULL");
  call.tensors.final_index = call.final_index;
  call.request.initial_mask = 1;
  call.refuse("tensors.has_initial", "a pointer", "NULL");
  call.tensors.has_initial = call.has_initial;
  EXPECT_NO_THROW(call.run());
}

TEST(TensorRules, SlotsInRange) {
  Call call;
  call.use_initial(DR_STATE_SLOTS);
  call.use_final(DR_STATE_SLOTS);
  call.initial_index[1] = 3;
  call.refuse("tensors.initial_index[1]", "a slot below num_slots = 3", "3");
  EXPECT_NO_THROW(call.run(false));  // device memory is not read
  call.request.initial.num_slots = 4;
  EXPECT_NO_THROW(call.run());
  call.final_index[2] = 1000;
  call.refuse("tensors.final_index[2]", "a slot below num_slots = 3", "1000");
  call.request.final.has_null_index = 1;
  call.request.final.null_index = 1000;
  EXPECT_NO_THROW(call.run());
  call.final_index[2] = -9;
  EXPECT_NO_THROW(call.run());
}

TEST(TensorRules, SlotsOfSixtyFourBits) {
  Call call;
  call.use_final(DR_STATE_SLOTS);
  call.request.final.index_dtype = DR_INT64;
  int64_t index[3] = {0, int64_t{1} << 32, 2};  // low half 0: a 32-bit read would see slot 0
  call.tensors.final_index = index;
  call.refuse("tensors.final_index[1]", "a slot below num_slots = 3", "4294967296");
  index[1] = 1;
  EXPECT_NO_THROW(call.run());
}

TEST(TensorRules, SlotsAreWrittenOnce) {
  Call call;
  call.use_final(DR_STATE_SLOTS);
  call.final_index[2] = 0;
  call.refuse("tensors.final_index[2]", "a slot that no other row writes", "0 a second time");
  call.final_index[0] = call.final_index[2] = -1;  // null slots are not written
  EXPECT_NO_THROW(call.run());
  call.use_initial(DR_STATE_SLOTS);
  call.initial_index[2] = call.initial_index[0];  // reading twice is fine
  EXPECT_NO_THROW(call.run());
}

// More slots than one window of the check holds, far apart and in random order.
TEST(TensorRules, SlotsAreWrittenOnceInLargePools) {
  constexpr int64_t kRows = 3000;
  Call call;
  std::vector<int32_t> offsets(kRows + 1);
  std::vector<int64_t> index(kRows);
  for (int64_t n = 0; n < kRows; ++n) index[static_cast<size_t>(n)] = (n * 7919) % kRows * 1009;
  call.request.num_seqs = kRows;
  call.request.seq_offsets = offsets.data();
  call.use_final(DR_STATE_SLOTS);
  call.request.final.index_dtype = DR_INT64;
  call.request.final.num_slots = kRows * 1009;
  call.tensors.final_index = index.data();
  EXPECT_NO_THROW(call.run());
  for (const size_t row : {size_t{1}, size_t{1500}, size_t{2999}}) {
    const int64_t kept = index[row];
    index[row] = index[0];
    call.refuse("tensors.final_index[" + std::to_string(row) + "]", "a slot that no other row writes",
                std::to_string(index[0]) + " a second time");
    index[row] = kept;
  }
}

TEST(TensorRules, InPlace) {
  Call call;
  call.use_initial(DR_STATE_SLOTS);
  call.use_final(DR_STATE_SLOTS);
  call.tensors.final = call.memory[6];
  EXPECT_NO_THROW(call.run());
  call.initial_index[0] = 1;  // sequence 0 reads what sequence 1 writes
  call.refuse("tensors.initial_index[0]", "a slot that no other sequence writes in the same memory", "1");
  call.tensors.final = call.memory[7];
  EXPECT_NO_THROW(call.run());
  call.tensors.final = call.memory[6];
  call.request.initial_mask = 1;
  call.has_initial[0] = 0;  // not read
  call.tensors.has_initial = call.has_initial;
  EXPECT_NO_THROW(call.run());
  call.has_initial[0] = 1;
  call.final_index[1] = -1;  // not written
  EXPECT_NO_THROW(call.run());
}

TEST(TensorRules, InPlaceRowsAgainstSlots) {
  Call call;
  call.use_initial(DR_STATE_ROWS);
  call.use_final(DR_STATE_SLOTS);
  call.tensors.final = call.memory[6];
  EXPECT_NO_THROW(call.run());
  call.final_index[0] = 2;
  call.final_index[2] = 0;
  call.refuse("tensors.initial[0]", "a slot that no other sequence writes in the same memory", "0");
}

TEST(TensorRules, InPlaceNeedsOneView) {
  Call call;
  call.use_initial(DR_STATE_ROWS);
  call.use_final(DR_STATE_ROWS);
  call.tensors.final = call.memory[6];
  EXPECT_NO_THROW(call.run());
  call.request.final.dtype = DR_BF16;
  call.refuse("tensors.final", "memory of its own, because problem.final.dtype", "the address of tensors.initial");
  EXPECT_THROW(call.run(false), Error) << "needs no memory to be read";
  call.request.final.dtype = DR_FP32;
  call.request.final.layout = DR_STATE_KEY_MAJOR;
  call.refuse("tensors.final", "memory of its own, because problem.final.layout", "the address of tensors.initial");
  call.request.final.layout = DR_STATE_VALUE_MAJOR;
  call.request.final.stride_slot = 4096;
  call.refuse("tensors.final", "problem.final.stride_slot is 4096", "the address of tensors.initial");
  call.request.final.stride_slot = 0;
  call.request.final.stride_head = 64;
  call.request.final.stride_slot = 192;
  call.request.heads_qk = call.request.heads_v = 3;
  call.request.initial.stride_slot = 192;
  call.refuse("tensors.final", "problem.final.stride_head is 64", "the address of tensors.initial");
}

// Lengths that come with the tensors.
struct LaterCall : Call {
  LaterCall() {
    request.seq_offsets = nullptr;
    tensors.seq_offsets = request.offsets;
  }
};

TEST(TensorRules, OffsetsAtExecution) {
  LaterCall call;
  EXPECT_NO_THROW(call.run());
  call.request.offsets[0] = 2;
  call.refuse("tensors.seq_offsets[0]", "0", "2");
  call.request.offsets[0] = 0;
  call.request.offsets[2] = 4;
  call.refuse("tensors.seq_offsets[2]", "at least 5", "4");
  call.request.offsets[2] = 12;
  call.request.offsets[3] = 15;
  call.refuse("tensors.seq_offsets[3]", "at most num_tokens = 14", "15");
  EXPECT_NO_THROW(call.run(false));
  call.tensors.seq_offsets = nullptr;
  call.refuse("tensors.seq_offsets", "a pointer", "NULL");
  call.tensors.seq_offsets = reinterpret_cast<const char*>(call.request.offsets) + 1;
  call.refuse("tensors.seq_offsets", "a multiple of 4 bytes", "multiple of 1");
}

// Lengths 40, 0 and 70 with a checkpoint pool.
struct CheckpointCall : Call {
  int32_t offsets_of_rows[4] = {0, 2, 2, 5};
  int32_t positions[5] = {16, 32, 16, 32, 64};
  int32_t index[16] = {4, 3, 2, 1, 0, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

  explicit CheckpointCall(int32_t mode, int32_t use = DR_STATE_ROWS) {
    request.offsets[1] = request.offsets[2] = 40;
    request.offsets[3] = 110;
    request.num_tokens = 110;
    request.checkpoints = mode;
    request.checkpoint_every = mode == DR_CHECKPOINTS_EVERY ? 32 : 0;
    request.checkpoint.use = use;
    request.checkpoint.layout = DR_STATE_VALUE_MAJOR;
    tensors.checkpoint = memory[8];
    tensors.checkpoint_index = use == DR_STATE_SLOTS ? index : nullptr;
    if (mode != DR_CHECKPOINTS_LIST) return;
    tensors.checkpoint_offsets = offsets_of_rows;
    tensors.checkpoint_positions = positions;
  }
};

TEST(CheckpointLists, EveryModeIsAccepted) {
  for (const int32_t mode : {DR_CHECKPOINTS_EVERY, DR_CHECKPOINTS_LIST, DR_CHECKPOINTS_CHUNKS}) {
    for (const int32_t use : {DR_STATE_ROWS, DR_STATE_SLOTS}) {
      CheckpointCall call(mode, use);
      call.request.checkpoint.num_slots = use == DR_STATE_SLOTS ? 16 : 0;
      EXPECT_NO_THROW(call.run()) << mode << " " << use;
      call.tensors.checkpoint = nullptr;
      call.refuse("tensors.checkpoint", "a pointer", "NULL");
      call.tensors.checkpoint = call.memory[8] + 1;
      call.refuse("tensors.checkpoint", "a multiple of 16 bytes", "multiple of 1");
    }
  }
}

TEST(CheckpointLists, AreGiven) {
  CheckpointCall call(DR_CHECKPOINTS_LIST);
  call.tensors.checkpoint_positions = nullptr;
  call.refuse("tensors.checkpoint_positions", "a pointer", "NULL");
  call.tensors.checkpoint_offsets = nullptr;
  call.refuse("tensors.checkpoint_offsets", "a pointer", "NULL");
}

TEST(CheckpointLists, EmptyListsNeedNoMemory) {
  CheckpointCall call(DR_CHECKPOINTS_LIST);
  for (int32_t& offset : call.offsets_of_rows) offset = 0;
  call.tensors.checkpoint_positions = nullptr;
  call.tensors.checkpoint = nullptr;
  EXPECT_NO_THROW(call.run());
}

TEST(CheckpointLists, Offsets) {
  CheckpointCall call(DR_CHECKPOINTS_LIST);
  call.offsets_of_rows[0] = 1;
  call.refuse("tensors.checkpoint_offsets[0]", "0", "1");
  call.offsets_of_rows[0] = 0;
  call.offsets_of_rows[2] = 1;
  call.refuse("tensors.checkpoint_offsets[2]", "at least 2", "1");
  call.offsets_of_rows[2] = 3;  // an empty sequence has no checkpoints
  call.refuse("tensors.checkpoint_positions[2]", "at most the length 0 of sequence 1", "16");
}

TEST(CheckpointLists, Positions) {
  CheckpointCall call(DR_CHECKPOINTS_LIST);
  const auto refuse = [&call](size_t row, int32_t position, const char* expected) {
    const int32_t kept = call.positions[row];
    call.positions[row] = position;
    call.refuse("tensors.checkpoint_positions[" + std::to_string(row) + "]", expected, std::to_string(position));
    call.positions[row] = kept;
  };
  refuse(0, 0, "a multiple of 16 above 0");
  refuse(0, -16, "a multiple of 16 above 0");
  refuse(0, 17, "a multiple of 16 above 0");
  refuse(1, 16, "above 16 and at most the length 40 of sequence 0");
  refuse(1, 48, "at most the length 40 of sequence 0");
  refuse(4, 80, "at most the length 70 of sequence 2");
  EXPECT_NO_THROW(call.run());
}

TEST(CheckpointLists, RowsFitThePool) {
  CheckpointCall call(DR_CHECKPOINTS_LIST);
  call.request.checkpoint.num_slots = 4;
  call.refuse("tensors.checkpoint", "at most num_slots = 4 rows", "5");
  call.request.checkpoint.num_slots = 5;
  EXPECT_NO_THROW(call.run());

  CheckpointCall later(DR_CHECKPOINTS_CHUNKS);  // 1 + 0 + 2 rows
  later.request.seq_offsets = nullptr;
  later.tensors.seq_offsets = later.request.offsets;
  later.request.checkpoint.num_slots = 2;
  later.refuse("tensors.checkpoint", "at most num_slots = 2 rows", "3");
}

TEST(CheckpointLists, Slots) {
  CheckpointCall call(DR_CHECKPOINTS_EVERY, DR_STATE_SLOTS);  // 1 + 0 + 2 rows, slots 4, 3, 2
  call.refuse("tensors.checkpoint_index[0]", "a slot below num_slots = 3", "4");
  call.request.checkpoint.num_slots = 5;
  EXPECT_NO_THROW(call.run());
  call.index[2] = 4;
  call.refuse("tensors.checkpoint_index[2]", "a slot that no other row writes", "4 a second time");
  call.tensors.checkpoint_index = nullptr;
  call.refuse("tensors.checkpoint_index", "a pointer", "NULL");
}

}  // namespace
}  // namespace deltarelay::test
