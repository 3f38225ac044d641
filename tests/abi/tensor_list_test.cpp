// The list of tensors has every pointer of dr_tensors, in the order of the fields.
#include "deltarelay/tensor_list.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace contract {
namespace {

using namespace deltarelay;

TEST(TensorList, HasEveryPointerOnce) {
  std::set<size_t> offsets, stages;
  for (int32_t i = 0; i < kNumTensors; ++i) {
    const TensorEntry& entry = kTensors[static_cast<size_t>(i)];
    EXPECT_EQ(static_cast<int32_t>(entry.tensor), i) << entry.name;
    EXPECT_EQ(&entry_of(entry.tensor), &entry);
    EXPECT_TRUE((is_intermediate(entry.tensor) ? stages : offsets).insert(entry.offset).second) << entry.name;
    EXPECT_NE(entry.operations, 0u) << entry.name;
  }
  EXPECT_EQ(kCallTensors.size() + stages.size(), static_cast<size_t>(kNumTensors));
  // Between q and the structures of other operations there are only tensor pointers, so a field without an entry is a
  // gap.
  for (size_t at = offsetof(dr_tensors, q); at < offsetof(dr_tensors, intermediates); at += sizeof(void*))
    EXPECT_EQ(offsets.count(at), 1u) << "no tensor of the list is at byte " << at << " of dr_tensors";
  for (size_t at = offsetof(dr_intermediates, aqk); at < sizeof(dr_intermediates); at += sizeof(void*))
    EXPECT_EQ(stages.count(at), 1u) << "no tensor of the list is at byte " << at << " of dr_intermediates";
}

TEST(TensorList, PointersAreReadAndSet) {
  dr_tensors tensors;
  dr_tensors_init(&tensors);
  int32_t memory[2] = {};
  for (const TensorEntry& entry : kCallTensors) {
    EXPECT_EQ(pointer_of(tensors, entry), nullptr) << entry.name;
    set_pointer(tensors, entry, &memory[1]);
    EXPECT_EQ(pointer_of(tensors, entry), &memory[1]) << entry.name;
  }
  EXPECT_EQ(tensors.q, &memory[1]);
  EXPECT_EQ(tensors.report, reinterpret_cast<uint32_t*>(&memory[1]));
  EXPECT_EQ(tensors.intermediates, nullptr);

  const TensorEntry& aqk = entry_of(Tensor::kAqk);
  EXPECT_EQ(pointer_of(tensors, aqk), nullptr) << "without dr_intermediates";
  dr_intermediates intermediates;
  dr_intermediates_init(&intermediates);
  tensors.intermediates = &intermediates;
  set_pointer(intermediates, entry_of(Tensor::kComposed), &memory[0]);
  EXPECT_EQ(pointer_of(tensors, aqk), nullptr);
  EXPECT_EQ(intermediates.composed, &memory[0]);
  EXPECT_EQ(pointer_of(tensors, entry_of(Tensor::kComposed)), &memory[0]);
}

TEST(TensorList, Counts) {
  const TensorSizes kda = {
      .tokens = 7, .sequences = 3, .heads_qk = 2, .heads_v = 4, .dk = 8, .dv = 6, .gates = 8, .checkpoint_rows = 5};
  EXPECT_EQ(count_of(kda, entry_of(Tensor::kQ)), 7 * 2 * 8);
  EXPECT_EQ(count_of(kda, entry_of(Tensor::kDtBias)), 4 * 8);
  EXPECT_EQ(count_of(kda, entry_of(Tensor::kBeta)), 7 * 4);
  EXPECT_EQ(count_of(kda, entry_of(Tensor::kSeqOffsets)), 4);
  EXPECT_EQ(count_of(kda, entry_of(Tensor::kCheckpointPositions)), 5);
  EXPECT_EQ(count_of(kda, entry_of(Tensor::kReport)), 1);
}

}  // namespace
}  // namespace contract
