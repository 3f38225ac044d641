// Host memory: a plan that cannot be allocated reports it and leaks nothing, and an execution allocates nothing for its
// result and needs no memory to succeed. This program's allocation functions replace those of the library.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <thread>

#include "small_call.h"

namespace {

// Counts per thread, so that threads of the test framework and workers of the library do not count.
thread_local int64_t live = 0;            // blocks not freed
thread_local int64_t allocations = 0;     // ever made
thread_local int64_t allowance = -1;      // allocations until one fails; negative: none fails
std::atomic<bool> none_elsewhere{false};  // threads other than this one get no memory
thread_local bool is_this_one = false;

void* allocate(std::size_t bytes, std::size_t alignment) noexcept {
  if (allowance == 0 || (none_elsewhere.load() && !is_this_one)) return nullptr;
  if (allowance > 0) --allowance;
  const std::size_t rounded = (bytes + alignment) / alignment * alignment;
  void* memory = alignment <= alignof(std::max_align_t) ? std::malloc(rounded) : std::aligned_alloc(alignment, rounded);
  if (memory != nullptr) {
    ++live;
    ++allocations;
  }
  return memory;
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  void* memory = allocate(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void release(void* memory) noexcept {
  if (memory == nullptr) return;
  --live;
  std::free(memory);
}

constexpr std::size_t kUsual = alignof(std::max_align_t);

}  // namespace

void* operator new(std::size_t n) { return allocate_or_throw(n, kUsual); }
void* operator new[](std::size_t n) { return allocate_or_throw(n, kUsual); }
void* operator new(std::size_t n, std::align_val_t a) { return allocate_or_throw(n, static_cast<std::size_t>(a)); }
void* operator new[](std::size_t n, std::align_val_t a) { return allocate_or_throw(n, static_cast<std::size_t>(a)); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return allocate(n, kUsual); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return allocate(n, kUsual); }
void operator delete(void* p) noexcept { release(p); }
void operator delete[](void* p) noexcept { release(p); }
void operator delete(void* p, std::size_t) noexcept { release(p); }
void operator delete[](void* p, std::size_t) noexcept { release(p); }
void operator delete(void* p, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, std::align_val_t) noexcept { release(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { release(p); }

namespace contract {
namespace {

// A call with segments, long enough to use every table.
struct LongCall : SmallCall {
  LongCall() {
    dr_options_init(&options);
    options.segments = DR_SEGMENTS_COUNT;
    options.segment_value = 2;
  }
  dr_options options;
};

// Every test first makes a plan that must be counted, to show that counting works. That plan also creates everything
// that is created once and kept.
class Memory : public testing::Test {
 protected:
  void SetUp() override {
    const LongCall call;
    const int64_t before = allocations;
    const PlanOwner owner(call.problem, &call.options);
    const int64_t counted = allocations - before;
    ASSERT_NE(owner.plan, nullptr) << dr_last_error();
    ASSERT_GT(counted, 3) << "the library allocates by other functions than this program's";
  }
};

TEST_F(Memory, EveryAllocationOfAPlanMayFail) {
  const LongCall call;
  dr_plan* plan = nullptr;
  int64_t failures = 0;
  for (int64_t room = 0;; ++room) {
    plan = nullptr;
    const int64_t before = live;
    allowance = room;
    const dr_status status = dr_plan_create(&call.problem, &call.options, &plan);
    allowance = -1;
    if (status == DR_SUCCESS) {
      dr_plan_destroy(plan);
      ASSERT_EQ(live, before);
      break;
    }
    ASSERT_EQ(status, DR_OUT_OF_MEMORY) << dr_last_error() << " with room for " << room;
    ASSERT_EQ(live, before) << "leaked with room for " << room;
    ASSERT_EQ(plan, nullptr);
    ASSERT_STREQ(dr_last_error(),
                 "host memory: expected enough for this call, found none left; "
                 "free memory or use a smaller problem");
    ++failures;
  }
  EXPECT_GT(failures, 3);
}

TEST_F(Memory, RefusalsLeakNothing) {
  SmallCall call;
  call.problem.heads_v = 3;
  dr_plan* plan = nullptr;
  const int64_t before = live;
  for (int i = 0; i < 3; ++i) ASSERT_EQ(dr_plan_create(&call.problem, nullptr, &plan), DR_INVALID);
  EXPECT_EQ(live, before);
}

// Runs a call of several phases on several threads, with memory for `room` allocations of this thread.
dr_status execute_with_room(int32_t threads, int64_t room, std::vector<float>* o) {
  LongCall call;
  call.options.backend = "cpu";
  call.options.threads = threads;
  call.problem.seq_offsets = nullptr;  // and a table that is written at execution
  call.tensors.seq_offsets = call.offsets;
  const PlanOwner owner(call.problem, &call.options);
  size_t bytes = 0;
  EXPECT_EQ(dr_plan_workspace_bytes(owner.plan, &bytes), DR_SUCCESS);
  void* workspace = call.workspace(bytes);
  allowance = room;
  const dr_status status = dr_execute(owner.plan, &call.tensors, workspace, bytes, nullptr);
  allowance = -1;
  *o = call.o;
  return status;
}

// A call that fails after it has begun to write would leave a state in place half advanced. So what memory there is
// only decides how many threads share the work.
TEST_F(Memory, ExecutionNeedsNoMemory) {
  std::vector<float> expected, found;
  ASSERT_EQ(execute_with_room(1, -1, &expected), DR_SUCCESS) << dr_last_error();
  int32_t threads = 2;
  for (int64_t room = 0; room < 12; ++room) {  // the first without room for a pool, the later with a few threads
    ASSERT_EQ(execute_with_room(threads += 2, room, &found), DR_SUCCESS) << dr_last_error() << ", room for " << room;
    ASSERT_EQ(found, expected) << "room for " << room;
  }
}

TEST_F(Memory, ThreadsOfThePoolNeedNoMemory) {
  is_this_one = true;
  none_elsewhere = true;
  std::vector<float> expected, found;
  ASSERT_EQ(execute_with_room(1, -1, &expected), DR_SUCCESS) << dr_last_error();
  ASSERT_EQ(execute_with_room(60, -1, &found), DR_SUCCESS) << dr_last_error();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // until the last of the new threads has begun
  none_elsewhere = false;
  is_this_one = false;
  EXPECT_EQ(found, expected);
}

TEST_F(Memory, ExecutionAllocatesNothing) {
  for (const char* backend : {"cpu", "reference"}) {
    for (const bool later : {false, true}) {
      LongCall call;
      call.options.backend = backend;
      call.options.threads = 1;
      if (later || std::string(backend) == "reference") {  // force cuts if the backend allows them
        call.options.segments = DR_SEGMENTS_AUTO;
        call.options.segment_value = 0;
      }
      if (later) {
        call.problem.seq_offsets = nullptr;
        call.tensors.seq_offsets = call.offsets;
      }
      const PlanOwner owner(call.problem, &call.options);
      ASSERT_NE(owner.plan, nullptr);
      size_t bytes = 0;
      ASSERT_EQ(dr_plan_workspace_bytes(owner.plan, &bytes), DR_SUCCESS);
      void* workspace = call.workspace(bytes);
      ASSERT_EQ(dr_execute(owner.plan, &call.tensors, workspace, bytes, nullptr), DR_SUCCESS) << dr_last_error();
      const int64_t before = allocations;
      ASSERT_EQ(dr_execute(owner.plan, &call.tensors, workspace, bytes, nullptr), DR_SUCCESS) << dr_last_error();
      EXPECT_EQ(allocations, before) << backend << (later ? ", lengths at execution" : "");
    }
  }
}

}  // namespace
}  // namespace contract
