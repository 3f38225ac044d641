// Orders of the same work under trial, chosen when a kernel is compiled. Each is off unless its macro is defined.
#pragma once

namespace deltarelay::cuda::sm90 {

// The values times their strengths while K S runs; behind it one FFMA a number is left. What is selected for tokens past the end is these, for
// their K S is 0: the branch to it also keeps the compiler from moving the products of the values behind the wait.
#ifdef DR_VALUES_FIRST
constexpr bool kValuesFirst = true;
#else
constexpr bool kValuesFirst = false;
#endif
#ifdef DR_VALUES_FIRST_EMIT
constexpr bool kValuesFirstEmit = true;
#else
constexpr bool kValuesFirstEmit = false;
#endif

// K S of the first 64 channels starts before the others are scaled and packed.
#ifdef DR_READ_HALVES
constexpr bool kReadHalves = true;
#else
constexpr bool kReadHalves = false;
#endif

// The state is updated by halves of the channels: the first is scaled while the second is still at work.
#ifdef DR_UPDATE_HALVES
constexpr bool kUpdateHalves = true;
#else
constexpr bool kUpdateHalves = false;
#endif

// A lane's column in an accumulator stays in a register, where the compiler would read the thread's number again, and wait for it.
#ifdef DR_COLUMN_KEPT
constexpr bool kColumnKept = true;
#else
constexpr bool kColumnKept = false;
#endif

// Emit: the state is scaled before P U is waited for.
#ifdef DR_SCALE_BEFORE_OUT
constexpr bool kScaleBeforeOut = true;
#else
constexpr bool kScaleBeforeOut = false;
#endif

// Emit: a stage is released behind the next K S, not at the end of the chunk, where the copy of its output may still be reading.
#ifdef DR_RELEASE_LATER
constexpr bool kReleaseLater = true;
#else
constexpr bool kReleaseLater = false;
#endif

// Emit: the output is sent off behind the update, which takes longer than T R.
#ifdef DR_SEND_LATER
constexpr bool kSendLater = true;
#else
constexpr bool kSendLater = false;
#endif

// The score group asks for the next write strength behind the fence of its sums, which may wait for loads.
#ifdef DR_BETA_LATER
constexpr bool kBetaLater = true;
#else
constexpr bool kBetaLater = false;
#endif

// Pairs too fill their rings step by step, the chunks that are needed first ahead of the others.
#ifdef DR_FEW_FIRST
constexpr bool kFewFirst = true;
#else
constexpr bool kFewFirst = false;
#endif

// A table that came with the launch is read before the grid before is waited for, from the constant bank; and in phase 3 only those who need a
// state wait: inputs and records were complete before carry could start, for nobody lets the next grid start before he has waited himself.
#ifdef DR_EARLY
constexpr bool kEarly = true;
#else
constexpr bool kEarly = false;
#endif

}  // namespace deltarelay::cuda::sm90
