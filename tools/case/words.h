// Words of the grammar and their values. parse.cpp and print.cpp read the same tables.
#pragma once
#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "case/case.h"

namespace deltarelay::cases {

template <typename T>
struct Word {
  std::string_view text;
  T value;
};

inline constexpr std::array<Word<int32_t>, 2> kRules = {{{"kda", DR_KDA}, {"gdn", DR_GDN}}};
inline constexpr std::array<Word<int32_t>, 9> kOps = {{{"forward", DR_FORWARD},
                                                       {"backward", DR_BACKWARD},
                                                       {"chunk-local", DR_CHUNK_LOCAL},
                                                       {"state-pass", DR_STATE_PASS},
                                                       {"outputs", DR_OUTPUTS},
                                                       {"summary", DR_SUMMARY},
                                                       {"carry", DR_CARRY},
                                                       {"step", DR_STEP},
                                                       {"commit", DR_COMMIT}}};
inline constexpr std::array<Word<int32_t>, 3> kFloatTypes = {{{"fp32", DR_FP32}, {"bf16", DR_BF16}, {"fp16", DR_FP16}}};
inline constexpr std::array<Word<int32_t>, 2> kIntTypes = {{{"int32", DR_INT32}, {"int64", DR_INT64}}};
inline constexpr std::array<Word<int32_t>, 4> kGateForms = {{{"log", DR_GATE_LOG},
                                                             {"linear", DR_GATE_LINEAR},
                                                             {"softplus", DR_GATE_RAW_SOFTPLUS},
                                                             {"bounded", DR_GATE_RAW_BOUNDED}}};
inline constexpr std::array<Word<GateProfile>, 4> kGateProfiles = {{{"zero", GateProfile::kZero},
                                                                    {"extreme", GateProfile::kExtreme},
                                                                    {"inf", GateProfile::kInf},
                                                                    {"mixed", GateProfile::kMixed}}};
inline constexpr std::array<Word<BetaProfile>, 6> kBetaProfiles = {{{"value", BetaProfile::kValue},
                                                                    {"one", BetaProfile::kOne},
                                                                    {"zero", BetaProfile::kZero},
                                                                    {"near2", BetaProfile::kNear2},
                                                                    {"logit", BetaProfile::kLogit},
                                                                    {"twice", BetaProfile::kTwice}}};
inline constexpr std::array<Word<KeyProfile>, 3> kKeyProfiles = {
    {{"normal", KeyProfile::kNormal}, {"correlated", KeyProfile::kCorrelated}, {"uneven", KeyProfile::kUneven}}};
inline constexpr std::array<Word<Strides>, 4> kStrides = {{{"contiguous", Strides::kContiguous},
                                                           {"packed", Strides::kPacked},
                                                           {"padded", Strides::kPadded},
                                                           {"head-first", Strides::kHeadFirst}}};
inline constexpr std::array<Word<LengthsAt>, 2> kLengthsAt = {
    {{"plan", LengthsAt::kPlan}, {"execute", LengthsAt::kExecute}}};
inline constexpr std::array<Word<int32_t>, 2> kStateUses = {{{"rows", DR_STATE_ROWS}, {"slots", DR_STATE_SLOTS}}};
inline constexpr std::array<Word<int32_t>, 2> kLayouts = {
    {{"value", DR_STATE_VALUE_MAJOR}, {"key", DR_STATE_KEY_MAJOR}}};
inline constexpr std::array<Word<int32_t>, 2> kCarries = {
    {{"exact", DR_CARRY_EXACT}, {"truncated", DR_CARRY_TRUNCATED}}};

// Token tensors and pools, in the order of the list.
constexpr bool can_be_aligned(const TensorEntry& entry) {
  return entry.kind == TensorKind::kRows || entry.kind == TensorKind::kPool;
}
inline constexpr size_t kNumAligned =
    static_cast<size_t>(std::count_if(kTensors.begin(), kTensors.end(), can_be_aligned));
inline constexpr std::array<Word<Tensor>, kNumAligned> kAlignedTensors = [] {
  std::array<Word<Tensor>, kNumAligned> words{};
  size_t count = 0;
  for (const TensorEntry& entry : kTensors)
    if (can_be_aligned(entry)) words[count++] = {entry.name, entry.tensor};
  return words;
}();

// Intermediates of the stages, as bits, in the order of the list.
inline constexpr size_t kNumIntermediates = kTensors.size() - kCallTensors.size();
inline constexpr std::array<Word<int32_t>, kNumIntermediates> kIntermediates = [] {
  std::array<Word<int32_t>, kNumIntermediates> words{};
  for (size_t i = 0; i < kNumIntermediates; ++i) {
    const TensorEntry& entry = kTensors[kCallTensors.size() + i];
    words[i] = {entry.name, bit_of(entry.tensor)};
  }
  return words;
}();
inline constexpr std::array<Word<bool>, 2> kSums = {{{"natural", false}, {"base2", true}}};

inline constexpr std::array<Word<int32_t>, 2> kMaths = {{{"default", DR_MATH_DEFAULT}, {"tf32", DR_MATH_TF32}}};

template <typename T, size_t N>
const T* find_word(const std::array<Word<T>, N>& words, std::string_view text) {
  for (const Word<T>& word : words)
    if (word.text == text) return &word.value;
  return nullptr;
}

template <typename T, size_t N>
std::string_view text_of(const std::array<Word<T>, N>& words, T value) {
  for (const Word<T>& word : words)
    if (word.value == value) return word.text;
  return "?";
}

// "a, b or c", for messages.
template <typename T, size_t N>
std::string list_words(const std::array<Word<T>, N>& words) {
  std::string list;
  for (size_t i = 0; i < N; ++i) {
    if (i > 0) list += i + 1 == N ? " or " : ", ";
    list += words[i].text;
  }
  return list;
}

}  // namespace deltarelay::cases
