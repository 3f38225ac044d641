// `checkpoint`: advances states from the start of a chunk, where the walk stored them, to the requested token inside
// that chunk. Uses the recurrence of the definition, in fp32. There are fewer tokens than a chunk, so it takes a few
// microseconds. Also copies states from the workspace to the pool, including those between two chunks.
//
// A CTA has 32 value columns of one head and some checkpoints of one sequence. Four lanes share a column; each has
// every fourth channel.
#include "kernels/cuda/launch/checkpoint.cuh"
#include "kernels/cuda/launch/launch.h"
#include "kernels/cuda/launch/spread.h"
#include "kernels/cuda/ptx/grid.cuh"
#include "kernels/cuda/tile/activation.cuh"
#include "kernels/cuda/tile/state_io.cuh"

namespace deltarelay::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kLanes = 4;  // per column
constexpr int kColumns = kThreads / kLanes;
static_assert(kColumns == kCheckpointColumns);
constexpr int kTokens = static_cast<int>(kCheckpointAlignment);  // loaded at a time

// kWidth: DK, rounded up.
template <int kWidth>
struct Inputs {
  float k[kTokens][kWidth];      // normalised with l2norm
  float decay[kTokens][kWidth];  // GDN: [.][0] only
  float beta[kTokens];
};

// Loads keys, decays and write strengths of tokens `first` .. `first` + kTokens - 1, one warp per token.
template <int kWidth, bool kKda>
__device__ __forceinline__ void load_tokens(Inputs<kWidth>& inputs, const CheckpointArgs& args, int sequence,
                                            int64_t first, int head) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int key_head = head / (args.heads_v / args.heads_qk);
  const Activation& activation = args.activation;
  const int64_t n = args.tables.batched ? sequence : 0;
  auto at = [n](const TensorView& view, int64_t token, int of) {
    return n * view.sequence + token * view.token + of * view.head;
  };
#pragma unroll 1
  for (int t = warp; t < kTokens; t += kThreads / 32) {
    const int64_t token = first + t;
    float square = 0.0f;
    float key[kWidth / 32];
#pragma unroll
    for (int i = 0; i < kWidth / 32; ++i) {
      const int channel = 32 * i + lane;
      key[i] = channel < args.dk ? load_number(args.k.data, args.k.dtype, at(args.k, token, key_head) + channel) : 0.0f;
      square = fmaf(key[i], key[i], square);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) square += __shfl_xor_sync(~0u, square, step);
    const float norm = activation.l2norm ? rsqrtf(square + kL2NormEpsilon) : 1.0f;
#pragma unroll
    for (int i = 0; i < kWidth / 32; ++i) {
      const int channel = 32 * i + lane;
      inputs.k[t][channel] = key[i] * norm;
      if (!kKda && channel > 0) continue;
      const bool exists = channel < args.dk;
      const TensorView& g = activation.g;
      const GateParams gate = gate_params(activation, head, exists ? channel : 0, kKda ? args.dk : 1);
      inputs.decay[t][channel] =
          exists ? exp2f(log2_decay(load_number(g.data, g.dtype, at(g, token, head) + channel), gate)) : 0.0f;
    }
    const TensorView& beta = activation.beta;
    if (lane == 0)
      inputs.beta[t] = write_strength(load_number(beta.data, beta.dtype, at(beta, token, head)), activation.beta_form);
  }
}

// One token, for this lane's channels of one column: S <- diag(decay) S;  S <- S + beta k (v - S^T k)
template <int kWidth, bool kKda>
__device__ __forceinline__ void step(float (&state)[kWidth / kLanes], const Inputs<kWidth>& inputs, int t, float value,
                                     int member) {
  float predicted = 0.0f;
#pragma unroll
  for (int i = 0; i < kWidth / kLanes; ++i) {
    const int channel = kLanes * i + member;
    state[i] *= inputs.decay[t][kKda ? channel : 0];
    predicted = fmaf(state[i], inputs.k[t][channel], predicted);
  }
#pragma unroll
  for (int s = 1; s < kLanes; s *= 2) predicted += __shfl_xor_sync(~0u, predicted, s);
  const float update = inputs.beta[t] * (value - predicted);
#pragma unroll
  for (int i = 0; i < kWidth / kLanes; ++i) state[i] = fmaf(inputs.k[t][kLanes * i + member], update, state[i]);
}

// Advances the state in slot `walked` of args.walked over tokens [begin, end) of a sequence. Stores it in `slot` of the
// pool.
template <int kWidth, bool kKda>
__device__ __forceinline__ void advance_state(Inputs<kWidth>& inputs, const CheckpointArgs& args, int sequence,
                                              int64_t walked, int64_t slot, int head, int column0, int64_t begin,
                                              int64_t end) {
  const int member = static_cast<int>(threadIdx.x) % kLanes, column = column0 + static_cast<int>(threadIdx.x) / kLanes;
  const bool exists = column < args.dv;
  // One element at a time: all addresses at once would fill the registers.
  auto for_each_element = [&](const StateView& states, int64_t number, auto&& use) {
    const bool value_major = states.layout == StateLayout::kValueMajor;
    const int64_t bytes = float_bytes(states.dtype);
    const int64_t first = number * states.stride_slot + head * states.stride_head +
                          (value_major ? int64_t{column} * args.dk + member : int64_t{member} * args.dv + column);
    uint8_t* at = static_cast<uint8_t*>(states.data) + first * bytes;
    int64_t step = kLanes * bytes * (value_major ? 1 : args.dv);
#pragma unroll
    for (int i = 0; i < kWidth / kLanes; ++i) {
      asm volatile("" : "+l"(at), "+l"(step));
      use(i, at, exists && kLanes * i + member < args.dk);
      at += step;
    }
  };
  float state[kWidth / kLanes];
  for_each_element(args.walked, walked, [&](int i, const uint8_t* at, bool there) {
    state[i] = there ? load_number(at, args.walked.dtype, 0) : 0.0f;
  });
  const int64_t first_token = args.tables.batched ? 0 : args.tables.token_begin()[sequence];
  const int64_t values = (args.tables.batched ? sequence * args.v.sequence : 0) + head * args.v.head + column;
#pragma unroll 1
  for (int64_t token = begin; token < end; token += kTokens) {  // `begin` and `end` are multiples of kTokens
    __syncthreads();                                            // the previous tokens have been used
    load_tokens<kWidth, kKda>(inputs, args, sequence, first_token + token, head);
    __syncthreads();
#pragma unroll 1
    for (int t = 0; t < kTokens; ++t) {
      const float value =
          exists ? load_number(args.v.data, args.v.dtype, values + (first_token + token + t) * args.v.token) : 0.0f;
      step<kWidth, kKda>(state, inputs, t, value, member);
    }
  }
  const StateView& pool = args.checkpoints.pool;
  for_each_element(pool, slot, [&](int i, uint8_t* at, bool there) {
    if (there) store_number(at, pool.dtype, 0, state[i]);
  });
}

template <int kWidth, bool kKda>
__global__ void __launch_bounds__(kThreads) checkpoint_kernel(const __grid_constant__ CheckpointArgs args, int ctas) {
  __shared__ Inputs<kWidth> inputs;
  __shared__ unsigned long long sum;
  wait_for_previous_grid();
  allow_next_grid();
  const int tiles = (args.dv + kColumns - 1) / kColumns;
  const int cta = static_cast<int>(blockIdx.x % ctas), item = static_cast<int>(blockIdx.x / ctas);
  const int tile = item % tiles, head = item / tiles % args.heads_v, sequence = item / tiles / args.heads_v;
  const SequenceCheckpoints own = find_checkpoints<kThreads>(args.tables, args.checkpoints, sequence, sum);
  const bool waits = args.walked.data != args.checkpoints.pool.data;
  for (int64_t row = own.first + cta; row < own.end; row += ctas) {
    const int64_t position = own.position(args.checkpoints, row);
    if (position < 0) {
      if (threadIdx.x == 0 && args.report != nullptr)
        atomicOr(args.report, static_cast<uint32_t>(DR_REPORT_CHECKPOINTS));
      continue;
    }
    const int64_t begin = position / args.chunk * args.chunk;
    // A walk that stores by number (not by slot) has not checked the slot yet.
    const int64_t slot = slot_of(args.checkpoints.pool, row, args.report), walked = slot_of(args.walked, row);
    if ((begin == position && !waits) || slot < 0 || walked < 0) continue;
    advance_state<kWidth, kKda>(inputs, args, sequence, walked, slot, head, tile * kColumns, begin, position);
  }
}

using Kernel = void (*)(CheckpointArgs, int);
constexpr Kernel kKernels[2][3] = {
    {checkpoint_kernel<64, false>, checkpoint_kernel<128, false>, checkpoint_kernel<256, false>},
    {checkpoint_kernel<64, true>, checkpoint_kernel<128, true>, checkpoint_kernel<256, true>}};

}  // namespace

cudaError_t launch_checkpoint(const CheckpointArgs& args, bool kda, const Step& step, cudaStream_t stream) {
  const Kernel kernel = kKernels[kda ? 1 : 0][args.dk <= 64 ? 0 : args.dk <= 128 ? 1 : 2];
  return launch_dependent(kernel, dim3(static_cast<unsigned>(step.ctas)), kThreads, 0, stream, args, int{step.each});
}

cudaError_t load_checkpoint() {
  cudaFuncAttributes attributes;
  for (const auto& kernels : kKernels) {
    for (const Kernel kernel : kernels) {
      const cudaError_t status = cudaFuncGetAttributes(&attributes, kernel);
      if (status != cudaSuccess) return status;
    }
  }
  return cudaSuccess;
}

}  // namespace deltarelay::cuda
