// The rules of dr_chunks, and which tensors a stage reads and writes.
#include <set>
#include <string>
#include <vector>

#include "problem/aliasing.h"
#include "problem/tensor_facts.h"
#include "refusal.h"

namespace deltarelay::test {
namespace {

struct StageRequest : Request {
  dr_chunks asked{};

  StageRequest(int32_t which_op, int32_t given, int32_t wanted) {
    op = which_op;
    chunks = &asked;
    dr_chunks_init(&asked);
    asked.given = given;
    asked.wanted = wanted;
    if (((given | wanted) & DR_STATES) != 0) asked.states_layout = DR_STATE_VALUE_MAJOR;
  }
};

// Names of the tensors that a call must bring, in the order of the list; those that are written after a bar.
std::string needed(const dr_problem& request) {
  const Problem problem = validate(request);
  std::string in, out;
  for (const TensorEntry& entry : kTensors) {
    const TensorFacts facts = facts_of(problem, entry);
    if (facts.need != Need::kAlways) continue;
    (facts.written ? out : in) += std::string(" ") + entry.name;
  }
  return in + " |" + out;
}

TEST(StageRules, ReadsWhatIsNotGiven) {
  const int32_t local = DR_CHUNK_LOCAL, pass = DR_STATE_PASS;
  EXPECT_EQ(needed(StageRequest(local, 0, DR_AQK | DR_INVERSE)), " q k g beta | aqk inverse");
  EXPECT_EQ(needed(StageRequest(local, 0, DR_AQK)), " q k g | aqk");
  EXPECT_EQ(needed(StageRequest(local, 0, DR_W | DR_U | DR_K_TO_END)), " k v g beta | w u k_to_end");
  EXPECT_EQ(needed(StageRequest(local, DR_INVERSE, DR_U)), " v beta inverse | u");
  EXPECT_EQ(needed(StageRequest(local, DR_INVERSE | DR_GATE_SUMS, DR_W | DR_U | DR_Q_FROM_START)),
            " q k v beta inverse gate_sums | w u q_from_start");
  EXPECT_EQ(needed(StageRequest(local, 0, DR_GATE_SUMS)), " g | gate_sums");
  EXPECT_EQ(needed(StageRequest(pass, DR_W | DR_U, DR_STATES)), " k g w u | states");
  EXPECT_EQ(needed(StageRequest(pass, DR_W | DR_U | DR_K_TO_END | DR_GATE_SUMS, DR_STATES | DR_V_NEW)),
            " w u k_to_end gate_sums | v_new states");
  EXPECT_EQ(needed(StageRequest(DR_OUTPUTS, DR_V_NEW | DR_STATES, 0)), " q k g v_new states | o");
  EXPECT_EQ(needed(StageRequest(DR_OUTPUTS, DR_V_NEW | DR_STATES | DR_AQK | DR_GATE_SUMS, 0)),
            " q aqk gate_sums v_new states | o");
  EXPECT_EQ(needed(StageRequest(DR_OUTPUTS, DR_V_NEW | DR_STATES | DR_AQK | DR_Q_FROM_START, 0)),
            " aqk q_from_start v_new states | o");
  EXPECT_EQ(needed(StageRequest(DR_SUMMARY, 0, DR_SUMMARIES)), " k v g beta | summaries");
  EXPECT_EQ(needed(StageRequest(DR_SUMMARY, DR_W | DR_U | DR_K_TO_END | DR_GATE_SUMS, DR_SUMMARIES)),
            " w u k_to_end gate_sums | summaries");
  EXPECT_EQ(needed(StageRequest(DR_CARRY, DR_SUMMARIES, DR_STATES | DR_COMPOSED)), " summaries | states composed");
}

TEST(StageRules, Bits) {
  const auto refuse = [](const StageRequest& request, const char* argument, const char* expected, const char* found) {
    expect_refusal(request, argument, expected, found);
  };
  refuse({DR_CHUNK_LOCAL, DR_W, DR_U}, "chunks.given", "of DR_INVERSE, DR_GATE_SUMS in chunk-local", "DR_W");
  refuse({DR_CHUNK_LOCAL, 0, DR_STATES}, "chunks.wanted", "of DR_AQK, DR_INVERSE", "DR_STATES");
  refuse({DR_CHUNK_LOCAL, 0, 0}, "chunks.wanted", "at least one of DR_AQK", "0");
  refuse({DR_CHUNK_LOCAL, DR_INVERSE, DR_INVERSE}, "chunks.wanted", "nothing that is given", "DR_INVERSE");
  refuse({DR_CHUNK_LOCAL, 1 << 20, DR_W}, "chunks.given", "DR_INVERSE", "unknown bits 1048576");
  refuse({DR_STATE_PASS, DR_W, DR_STATES}, "chunks.given", "DR_W, DR_U in state-pass", "DR_W");
  refuse({DR_STATE_PASS, DR_W | DR_U, 0}, "chunks.wanted", "something to write", "final.use is DR_STATE_NONE");
  refuse({DR_OUTPUTS, DR_V_NEW, 0}, "chunks.given", "DR_V_NEW, DR_STATES in outputs", "DR_V_NEW");
  refuse({DR_SUMMARY, DR_W, DR_SUMMARIES}, "chunks.given", "0, or DR_W and DR_U", "DR_W");
  refuse({DR_SUMMARY, DR_GATE_SUMS, DR_SUMMARIES}, "chunks.given", "0, or DR_W and DR_U", "DR_GATE_SUMS");
  refuse({DR_CARRY, 0, DR_COMPOSED}, "chunks.given", "DR_SUMMARIES in carry", "0");
}

TEST(StageRules, OtherFields) {
  StageRequest request(DR_CHUNK_LOCAL, 0, DR_W);
  for (const int32_t chunk : {-16, 8, 48, 128}) {
    request.asked.chunk = chunk;
    expect_refusal(request, "chunks.chunk", "16, 32 or 64", std::to_string(chunk));
  }
  request.asked.chunk = 0;
  EXPECT_EQ(validate(request).chunks.chunk, 64);
  request.asked.dtype = 9;
  expect_refusal(request, "chunks.dtype", "DR_FP32", "9");
  request.asked.dtype = 0;
  request.dtype = DR_BF16;
  EXPECT_EQ(validate(request).chunks.dtype, DType::kBf16);
  request.asked.states_layout = DR_STATE_KEY_MAJOR;
  expect_refusal(request, "chunks.states_layout", "0 unless DR_STATES", "2");
  request.asked.states_layout = 0;
  request.initial.use = DR_STATE_ROWS;
  request.initial.layout = DR_STATE_VALUE_MAJOR;
  expect_refusal(request, "problem.initial.use", "DR_STATE_NONE in chunk-local", "states");
  request.initial.use = DR_STATE_NONE;
  request.checkpoints = DR_CHECKPOINTS_CHUNKS;
  request.checkpoint.use = DR_STATE_ROWS;
  request.checkpoint.layout = DR_STATE_VALUE_MAJOR;
  expect_refusal(request, "problem.checkpoints", "DR_CHECKPOINTS_NONE in chunk-local", "chunks");
  request.checkpoints = DR_CHECKPOINTS_NONE;
  request.checkpoint.use = DR_STATE_NONE;
  request.asked.size = 12;
  expect_refusal(request, "chunks.size", "at least 32", "12");
  request.chunks = nullptr;
  expect_refusal(request, "problem.chunks", "a pointer with the operation chunk-local", "NULL");
  Request forward;
  forward.chunks = &request.asked;
  expect_refusal(forward, "problem.chunks", "NULL with the operation forward", "a pointer");
}

TEST(StageRules, StatesOfACarryAreFp32ByDefault) {
  StageRequest carry(DR_CARRY, DR_SUMMARIES, DR_STATES);
  carry.dtype = DR_BF16;
  EXPECT_EQ(validate(carry).chunks.dtype_states, DType::kFp32);
  carry.asked.chunk = 64;
  expect_refusal(carry, "chunks.chunk", "0 in carry", "64");
  StageRequest pass(DR_STATE_PASS, DR_W | DR_U, DR_STATES);
  pass.dtype = DR_BF16;
  EXPECT_EQ(validate(pass).chunks.dtype_states, DType::kBf16);
  pass.asked.states_layout = 0;
  expect_refusal(pass, "chunks.states_layout", "DR_STATE_VALUE_MAJOR (1) or DR_STATE_KEY_MAJOR (2)", "0");
}

// States and summaries have rows of up to 768 x 256 numbers, so those of a carry may have more bytes than an int64_t
// counts, with fewer tokens times heads than are allowed.
TEST(StageRules, IntermediatesHaveASizeThatCanBeCounted) {
  StageRequest request(DR_CARRY, DR_SUMMARIES, DR_STATES);
  request.rule = DR_GDN;
  request.num_seqs = 1;
  request.num_tokens = 0;
  request.seq_offsets = nullptr;
  request.heads_qk = 1;
  request.heads_v = 65536;
  request.dk = 256;
  request.dv = 512;
  request.seq_len = int64_t{1} << 27;
  EXPECT_NO_THROW(validate(request));
  request.seq_len = int64_t{1} << 28;
  expect_refusal(request, "problem.num_tokens", "intermediates.states of at most 2^63 - 1 bytes in carry",
                 "268435456 rows of 34359738368 bytes");
  request.dv = 1;
  EXPECT_NO_THROW(validate(request));
}

TEST(StageRules, ChunkRows) {
  StageRequest request(DR_STATE_PASS, DR_W | DR_U, DR_STATES);  // lengths 5, 7, 0
  request.asked.chunk = 16;
  EXPECT_EQ(validate(request).chunk_rows(request.num_tokens, request.num_seqs), 2);
  request.make_batched();
  request.seq_len = 33;
  EXPECT_EQ(validate(request).chunk_rows(99, 3), 9);
  request.seq_len = 0;
  request.num_tokens = 100;  // lengths at execution
  EXPECT_EQ(validate(request).chunk_rows(100, 3), 100 / 16 + 3);
  EXPECT_EQ(validate(request).chunk_rows(2, 3), 2);
}

// A call of the state pass, in memory that is large enough.
struct Call {
  StageRequest request{DR_STATE_PASS, DR_W | DR_U | DR_K_TO_END | DR_GATE_SUMS, DR_STATES | DR_V_NEW};
  dr_tensors tensors{};
  dr_intermediates stages{};
  alignas(64) unsigned char memory[8][1 << 14] = {};

  Call() {
    dr_tensors_init(&tensors);
    dr_intermediates_init(&stages);
    tensors.intermediates = &stages;
    void** const fields[] = {&stages.w, &stages.u, &stages.k_to_end, &stages.gate_sums, &stages.v_new, &stages.states};
    for (size_t i = 0; i < 6; ++i) *fields[i] = memory[i];
  }
  void refuse(const std::string& argument, const std::string& expected, const std::string& found) const {
    const Problem problem = validate(request);
    expect_refusal(
        [&] {
          validate_tensors(problem, tensors, true);
          check_aliasing(problem, tensors, counts_of(problem, tensors), nullptr, 0, true);
        },
        argument, expected, found);
  }
};

TEST(StageRules, Intermediates) {
  Call call;
  const Problem problem = validate(call.request);
  EXPECT_NO_THROW(validate_tensors(problem, call.tensors, true));
  call.stages.aqk = call.memory[6];
  call.refuse("intermediates.aqk", "NULL (neither chunks.given nor chunks.wanted names it)", "a pointer");
  call.stages.aqk = nullptr;
  call.stages.w = nullptr;
  call.refuse("intermediates.w", "a pointer", "NULL");
  call.stages.w = call.memory[0] + 8;
  call.refuse("intermediates.w", "a multiple of 16 bytes", "8");
  call.stages.w = call.memory[0];
  call.stages.v_new = call.stages.u;
  call.refuse("intermediates.v_new", "memory of its own", "intermediates.u");
  call.stages.v_new = call.memory[4];
  call.tensors.k = call.memory[7];
  call.refuse("tensors.k", "NULL (the operation of the problem does not use it)", "a pointer");
  call.tensors.k = nullptr;
  call.stages.reserved = 1;
  call.refuse("intermediates.reserved", "0", "1");
  call.stages.reserved = 0;
  call.tensors.intermediates = nullptr;
  call.refuse("tensors.intermediates", "a pointer", "NULL");
}

// States are in rows of chunks: what is written ends with the last chunk.
TEST(StageRules, ExtentOfStates) {
  Call call;
  call.request.asked.chunk = 16;
  const int64_t bytes = 2 * call.request.heads_v * call.request.dk * call.request.dv * int64_t{4};
  call.stages.v_new = static_cast<unsigned char*>(call.stages.states) + bytes;
  EXPECT_EQ(bytes % 16, 0);
  const Problem problem = validate(call.request);
  EXPECT_NO_THROW(check_aliasing(problem, call.tensors, counts_of(problem, call.tensors), nullptr, 0, true));
  call.stages.v_new = static_cast<unsigned char*>(call.stages.states) + bytes - 16;
  call.refuse("intermediates.v_new", "memory of its own", "intermediates.states");
}

}  // namespace
}  // namespace deltarelay::test
