// Recurrent layers between their projections, and the output gate of attention.
#include "cuda/recurrent.h"

#include "cuda/launch.h"
#include "native/base/check.h"

namespace capstan::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpSize;

// A column of a state is held by kRowThreads neighboring threads: thread t has the rows t, t + kRowThreads, ….
constexpr int kRowThreads = 4;
constexpr int kColumns = kThreads / kRowThreads;  // per block
constexpr int kChains = 4;                        // of sums over the rows of a thread

__device__ __forceinline__ float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}
__device__ __forceinline__ float silu(float x) {
  return x / (1.0f + expf(-x));
}
__device__ __forceinline__ float softplus(float x) {
  return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
}

__device__ __forceinline__ float* slot_of(const RecurrentArgs& args, int32_t slot) {
  return args.states + slot * args.slot_stride;
}

// The input of the convolution at `index` of a sequence. Negative indexes are before the step.
__device__ __forceinline__ float conv_input(const RecurrentArgs& args, int first_row, int32_t read_slot, int index,
                                            int64_t channel) {
  const int64_t channels = args.shape.conv_channels;
  if (index >= 0) {
    const float* const row = args.projections + (first_row + index) * args.projection_stride;
    return args.mixer == Mixer::kShortConv ? row[channel] * row[2 * channels + channel] : row[channel];
  }
  return read_slot < 0 ? 0.0f : slot_of(args, read_slot)[(args.shape.conv_taps - 1 + index) * channels + channel];
}

// Grid: (tokens, groups of kThreads channels). A short convolution ends here.
template <class T>
__global__ void __launch_bounds__(kThreads) conv_kernel(RecurrentArgs args) {
  const int token = static_cast<int>(blockIdx.x), taps = args.shape.conv_taps;
  const int64_t channel = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  const int64_t channels = args.shape.conv_channels;
  if (channel >= channels) return;
  const int seq = args.token_seqs[token], first_row = args.cu_seqlens[seq];
  const int32_t read_slot = args.state_reads[seq];
  float sum = args.conv[taps * args.conv_stride + channel];
  for (int tap = 0; tap < taps; ++tap)
    sum = fmaf(args.conv[tap * args.conv_stride + channel],
               conv_input(args, first_row, read_slot, token - first_row - (taps - 1) + tap, channel), sum);
  if (args.mixer != Mixer::kShortConv) {
    args.mixed[token * channels + channel] = silu(sum);
    return;
  }
  const float result = sum * args.projections[token * args.projection_stride + channels + channel];
  args.acts[act_index(args.is_row_major, token, args.split.place(channel), args.split.padded())] = to_bits<T>(result);
}

// One block per token: norms of the keys and queries of a delta net, and the decays and scales of the heads.
__global__ void __launch_bounds__(kThreads) recurrent_gates_kernel(RecurrentArgs args) {
  const int64_t token = blockIdx.x;
  const RecurrentShape& shape = args.shape;
  const int num_heads = shape.num_heads, size = shape.state_size;
  const int64_t values = int64_t{num_heads} * shape.head_dim;
  if (args.mixer == Mixer::kDeltaNet)
    for (int i = warp_id(); i < 2 * shape.num_groups; i += kWarps) {
      float* const x = args.mixed + token * shape.conv_channels + values + int64_t{i} * size;
      float square = 0;
      for (int d = lane_id(); d < size; d += kWarpSize)
        square = fmaf(x[d], x[d], square);
      // Queries are divided by the square root of their size as well.
      const float scale = i < shape.num_groups ? 1.0f : 1.0f / sqrtf(static_cast<float>(size));
      const float factor = scale / sqrtf(warp_sum(square) + 1e-6f);
      for (int d = lane_id(); d < size; d += kWarpSize)
        x[d] *= factor;
    }
  const float* const steps = args.projections + token * args.projection_stride + shape.conv_channels + values;
  float* const decays = args.gates + token * 2 * num_heads;
  for (int head = static_cast<int>(threadIdx.x); head < num_heads; head += kThreads) {
    const float step = softplus(steps[head] + args.dt_bias[head]);
    decays[head] = expf(-(expf(args.a_log[head]) * step));
    decays[num_heads + head] = args.mixer == Mixer::kDeltaNet ? sigmoid(steps[num_heads + head]) : step;
  }
}

// The sum over the chains and the threads of a column.
__device__ __forceinline__ float column_sum(const float (&chains)[kChains]) {
  float sum = (chains[0] + chains[1]) + (chains[2] + chains[3]);
#pragma unroll
  for (int bits = 1; bits < kRowThreads; bits *= 2)
    sum += __shfl_xor_sync(0xffffffffu, sum, bits);
  return sum;
}

// Grid: (groups of kColumns columns, heads, sequences). Each thread keeps kRows rows of a column in registers while the
// tokens pass. Shared memory holds the key and the query of this token and of the next one.
template <int kRows, bool kIsDelta>
__global__ void __launch_bounds__(kThreads) recurrence_kernel(RecurrentArgs args) {
  constexpr int kSize = kRows * kRowThreads;  // of a key, padded with zeros
  constexpr int kLoads = 2 * kSize / kThreads;
  const RecurrentShape& shape = args.shape;
  const int thread = static_cast<int>(threadIdx.x), row_thread = thread % kRowThreads;
  const int column = static_cast<int>(blockIdx.x) * kColumns + thread / kRowThreads;
  const int head = static_cast<int>(blockIdx.y), seq = static_cast<int>(blockIdx.z);
  const int group = shape.heads_alternate ? head % shape.num_groups : head / (shape.num_heads / shape.num_groups);
  const int size = shape.state_size, head_dim = shape.head_dim;
  const bool has_column = column < head_dim;
  const int first = args.cu_seqlens[seq], end = args.cu_seqlens[seq + 1];
  const int64_t channels = shape.conv_channels;
  const int64_t keys_at = int64_t{shape.num_heads} * head_dim + int64_t{group} * size;
  const int64_t queries_at = keys_at + int64_t{shape.num_groups} * size;
  const int64_t state_at = (shape.conv_taps - 1) * channels + int64_t{head} * size * head_dim + column;
  float* const shared = reinterpret_cast<float*>(shared_memory());  // (2, 2, kSize)

  float state[kRows];
  const int32_t read_slot = args.state_reads[seq];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = i * kRowThreads + row_thread;
    state[i] = read_slot >= 0 && has_column && row < size ? slot_of(args, read_slot)[state_at + int64_t{row} * head_dim]
                                                          : 0.0f;
  }

  // What a token needs, loaded one token ahead.
  float loaded[kLoads], value = 0, decay = 0, scale = 0;
  const auto load = [&](int64_t token) {
    const float* const row = args.mixed + token * channels;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = i * kThreads + thread, d = at % kSize;
      loaded[i] = d < size ? row[(at < kSize ? keys_at : queries_at) + d] : 0.0f;
    }
    value = has_column ? row[int64_t{head} * head_dim + column] : 0.0f;
    const float* const gates = args.gates + token * 2 * shape.num_heads + head;
    decay = gates[0], scale = gates[shape.num_heads];
  };
  const auto place = [&](int buffer) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      shared[buffer * 2 * kSize + i * kThreads + thread] = loaded[i];
  };
  load(first);
  place(0);
  for (int token = first; token < end; ++token) {
    const int buffer = (token - first) % 2;
    const float now_value = value, now_decay = decay, now_scale = scale;
    // NOTE: after this barrier no thread reads the other buffer, so it may be overwritten below.
    __syncthreads();
    if (token + 1 < end) load(token + 1);
    const float* const key = shared + buffer * 2 * kSize + row_thread;
    const float* const query = key + kSize;
    float error = now_value;
    if constexpr (kIsDelta) {
      float chains[kChains] = {};
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        chains[i % kChains] = fmaf(key[i * kRowThreads], state[i], chains[i % kChains]);
      error = fmaf(-now_decay, column_sum(chains), now_value);
    }
    const float update = now_scale * error;
    float chains[kChains] = {};
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      state[i] = fmaf(key[i * kRowThreads], update, now_decay * state[i]);
      chains[i % kChains] = fmaf(query[i * kRowThreads], state[i], chains[i % kChains]);
    }
    float result = column_sum(chains);
    if constexpr (!kIsDelta) result = fmaf(args.skip[head], now_value, result);
    if (has_column && row_thread == 0) args.mixed[token * channels + int64_t{head} * head_dim + column] = result;
    const int32_t write_slot = args.state_writes[token];
    if (write_slot >= 0 && has_column) {
      float* const to = slot_of(args, write_slot) + state_at;
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        if (const int row = i * kRowThreads + row_thread; row < size) to[int64_t{row} * head_dim] = state[i];
    }
    if (token + 1 < end) place(buffer ^ 1);
  }
}

// Grid: (tokens, norms). The gated norm of the results, as activations.
template <class T>
__global__ void __launch_bounds__(kThreads) gated_norm_kernel(RecurrentArgs args) {
  const RecurrentShape& shape = args.shape;
  const bool is_mamba = args.mixer == Mixer::kMamba2;
  const int64_t token = blockIdx.x, values = int64_t{shape.num_heads} * shape.head_dim;
  const int64_t size = is_mamba ? values / shape.num_groups : shape.head_dim, first = blockIdx.y * size;
  const float* const x = args.mixed + token * shape.conv_channels + first;
  const float* const gates = args.projections + token * args.projection_stride + shape.conv_channels + first;
  const float* const weight = args.norm + (is_mamba ? first : 0);
  // Mamba 2 multiplies by the gate before the norm.
  const auto gated = [&](int64_t i) { return is_mamba ? x[i] * silu(gates[i]) : x[i]; };
  float square = 0;
  for (int64_t i = threadIdx.x; i < size; i += kThreads)
    square = fmaf(gated(i), gated(i), square);
  float* const squares = reinterpret_cast<float*>(shared_memory());
  square = warp_sum(square);
  if (lane_id() == 0) squares[warp_id()] = square;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w)
    sum += squares[w];
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(size) + args.eps);
  for (int64_t i = threadIdx.x; i < size; i += kThreads) {
    const float normed = gated(i) * scale * weight[i];
    args.acts[act_index(args.is_row_major, token, args.split.place(first + i), args.split.padded())] =
        to_bits<T>(is_mamba ? normed : normed * silu(gates[i]));
  }
}

// Grid: (sequences, groups of kThreads channels). Stores the last inputs of the convolution up to each row that has a
// slot to write. Each thread handles one channel of all rows, so no barrier is needed. The slot that the sequence reads
// is written last. Its inputs move to earlier places, so copying in ascending order is safe.
__global__ void __launch_bounds__(kThreads) conv_state_kernel(RecurrentArgs args) {
  const int seq = static_cast<int>(blockIdx.x), num_kept = args.shape.conv_taps - 1;
  const int64_t channel = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  const int64_t channels = args.shape.conv_channels;
  const int first_row = args.cu_seqlens[seq], end = args.cu_seqlens[seq + 1];
  const int32_t read_slot = args.state_reads[seq];
  const auto save = [&](int index, int32_t slot) {
    if (channel >= channels) return;
    float* const to = slot_of(args, slot) + channel;
    for (int i = 0; i < num_kept; ++i)
      to[i * channels] = conv_input(args, first_row, read_slot, index - (num_kept - 1) + i, channel);
  };
  int own = -1;  // the row that writes to the slot that the sequence reads
  for (int base = first_row; base < end; base += kWarpSize) {
    const int row = base + lane_id();
    for (uint32_t mask = warp_mask(row < end && args.state_writes[row] >= 0); mask != 0; mask &= mask - 1) {
      const int index = base + __ffs(static_cast<int>(mask)) - 1;
      const int32_t slot = args.state_writes[index];
      if (slot == read_slot)
        own = index - first_row;
      else
        save(index - first_row, slot);
    }
  }
  if (own >= 0) save(own, read_slot);
}

template <class T>
__global__ void __launch_bounds__(kThreads) output_gate_kernel(OutputGateArgs args) {
  const int64_t token = blockIdx.x, k = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (k >= args.split.parts * args.split.part_cols) return;
  uint16_t& act = args.acts[act_index(args.is_row_major, token, args.split.place(k), args.split.padded())];
  act = to_bits<T>(to_float<T>(act) * sigmoid(args.gates[token * args.gate_stride + k]));
}

dim3 grid_of(int64_t first, int64_t columns) {
  return {static_cast<unsigned>(first), static_cast<unsigned>((columns + kThreads - 1) / kThreads)};
}

template <int kRows>
void launch_recurrence(const RecurrentArgs& args, cudaStream_t stream) {
  const RecurrentShape& shape = args.shape;
  const dim3 grid(static_cast<unsigned>((shape.head_dim + kColumns - 1) / kColumns),
                  static_cast<unsigned>(shape.num_heads), static_cast<unsigned>(args.num_seqs));
  launch(args.mixer == Mixer::kDeltaNet ? recurrence_kernel<kRows, true> : recurrence_kernel<kRows, false>, grid,
         dim3(kThreads), size_t{4} * kRows * kRowThreads * sizeof(float), stream, args);
}

}  // namespace

void launch_recurrent(const RecurrentArgs& args, cudaStream_t stream) {
  const RecurrentShape& shape = args.shape;
  const bool is_conv = args.mixer == Mixer::kShortConv, is_bf16 = args.type == FloatType::kBf16;
  CAPSTAN_CHECK(args.mixer != Mixer::kAttention);
  CAPSTAN_CHECK(args.num_tokens > 0 && args.num_seqs > 0 && args.num_seqs <= args.num_tokens);
  CAPSTAN_CHECK(shape.conv_taps > 0 && shape.conv_taps <= kMaxConvTaps && args.conv_stride >= shape.conv_channels);
  CAPSTAN_CHECK(args.projection_stride >= num_projections(args.mixer, shape));
  CAPSTAN_CHECK(args.slot_stride >= layer_state_floats(shape));
  CAPSTAN_CHECK(args.split.parts * args.split.part_cols == shape.output_size());
  CAPSTAN_CHECK(is_conv || (shape.state_size > 0 && shape.state_size <= kMaxStateSize));
  CAPSTAN_CHECK(is_conv || (shape.num_groups > 0 && shape.num_heads % shape.num_groups == 0));
  CAPSTAN_CHECK(args.mixer != Mixer::kMamba2 || args.skip != nullptr);
  launch(is_bf16 ? conv_kernel<Bf16> : conv_kernel<F16>, grid_of(args.num_tokens, shape.conv_channels), dim3(kThreads),
         0, stream, args);
  if (!is_conv) {
    launch(recurrent_gates_kernel, dim3(static_cast<unsigned>(args.num_tokens)), dim3(kThreads), 0, stream, args);
    if (shape.state_size <= 128)
      launch_recurrence<32>(args, stream);
    else
      launch_recurrence<64>(args, stream);
    const int num_norms = args.mixer == Mixer::kMamba2 ? shape.num_groups : shape.num_heads;
    launch(is_bf16 ? gated_norm_kernel<Bf16> : gated_norm_kernel<F16>,
           dim3(static_cast<unsigned>(args.num_tokens), static_cast<unsigned>(num_norms)), dim3(kThreads),
           kWarps * sizeof(float), stream, args);
  }
  launch(conv_state_kernel, grid_of(args.num_seqs, shape.conv_channels), dim3(kThreads), 0, stream, args);
}

void launch_output_gate(const OutputGateArgs& args, cudaStream_t stream) {
  CAPSTAN_CHECK(args.num_tokens > 0 && args.gates != nullptr && args.acts != nullptr);
  const int64_t size = args.split.parts * args.split.part_cols;
  CAPSTAN_CHECK(args.gate_stride >= size);
  launch(args.type == FloatType::kBf16 ? output_gate_kernel<Bf16> : output_gate_kernel<F16>,
         grid_of(args.num_tokens, size), dim3(kThreads), 0, stream, args);
}

}  // namespace capstan::cuda
