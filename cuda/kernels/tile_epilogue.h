#pragma once
// The epilogue of launch_gemm_wgmma, for a warp's tile of 16 rows. In full tiles a lane reads and writes 16 bytes of a
// token. At the edges of a matrix, and with unaligned output rows, it accesses single elements. The bits are the same.
#include "cuda/kernels/epilogue.h"
#include "cuda/wgmma_layout.h"

namespace capstan::cuda {

template <class T, int kTokens>
struct TileEpilogue {
  const GemmArgs& args;
  int64_t tile;
  int first_token;  // of the block of tokens
  int lane;
  float* transpose_buffer;  // kTransposeFloats for this warp
  bool is_later_split;      // this is not the first part of a split K
  bool is_whole = false;
  float4 before[kTransposeTokens / 8];  // old outputs of the first tokens

  // When a full tile accumulates, the loads of the first old outputs start here.
  __device__ __forceinline__ TileEpilogue(const GemmArgs& args, int64_t tile, int first_token, int lane,
                                          float* transpose_buffer, bool is_later_split)
      : args(args),
        tile(tile),
        first_token(first_token),
        lane(lane),
        transpose_buffer(transpose_buffer),
        is_later_split(is_later_split) {
    is_whole = (tile + 1) * kTileRows <= args.weights.rows &&
               (has_acts(args.output) ? are_acts_whole()
                                      : args.out_stride % 4 == 0 && reinterpret_cast<uintptr_t>(args.out) % 16 == 0);
    if (is_whole && accumulates()) load(before, 0);
  }

  // acc[4 j + r] as wgmma_m64nNk16 leaves it: rows lane / 4 and lane / 4 + 8, tokens 8 j + lane % 4 * 2 + {0, 1}.
  __device__ __forceinline__ void store(float (&acc)[kTokens / 2]) {
    if (tile * kTileRows >= args.weights.rows) return;
    add_bias(acc);
    if (has_acts(args.output))
      store_acts(acc);
    else
      !is_whole ? store_rows_edge(acc) : accumulates() ? store_rows<true>(acc) : store_rows<false>(acc);
  }

 private:
  __device__ __forceinline__ bool accumulates() const { return is_later_split || args.output == GemmOutput::kResidual; }
  __device__ __forceinline__ bool is_gated() const { return args.output == GemmOutput::kGated; }
  __device__ __forceinline__ int64_t features_of_tile() const { return is_gated() ? kTileRows / 2 : kTileRows; }
  __device__ __forceinline__ bool are_acts_whole() const {
    const DepthSplit& split = args.gated_split;
    return split.part_cols % 8 == 0 && (tile + 1) * features_of_tile() <= split.parts * split.part_cols &&
           reinterpret_cast<uintptr_t>(args.gated) % 16 == 0;
  }

  __device__ __forceinline__ void add_bias(float (&acc)[kTokens / 2]) const {
    const float* bias = args.weights.bias;
    if (bias == nullptr || is_later_split) return;
    const int64_t row = tile * kTileRows + lane / 4;
    const float low = row < args.weights.rows ? bias[row] : 0.0f,
                high = row + 8 < args.weights.rows ? bias[row + 8] : 0.0f;
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i)
      acc[i] += i / 2 % 2 == 0 ? low : high;
  }

  // A lane has eight features per turn: those with its first rows as gates, or the first rows and then the second ones.
  __device__ __forceinline__ void store_acts(float (&acc)[kTokens / 2]) {
    const int64_t end = (tile + 1) * features_of_tile();
#pragma unroll 1
    for (int64_t first = tile * features_of_tile(); first < end; first += kTileRows / 2) {
      activate_rows(acc);
      if (args.factors != nullptr) multiply_rows(acc, first + lane / 4);
      is_whole ? store_features(acc, first) : store_features_edge(acc, first);
#pragma unroll
      for (int i = 0; i < kTokens / 2; i += 4)
        acc[i] = acc[i + 2], acc[i + 1] = acc[i + 3];
    }
  }

  // Replaces the values of the first rows by their activations, times the ups if they are gates.
  __device__ __forceinline__ void activate_rows(float (&acc)[kTokens / 2]) const {
    const bool has_ups = is_gated();
    const auto each = [&](auto&& value) {
#pragma unroll
      for (int i = 0; i < kTokens / 2; i += i % 4 == 0 ? 1 : 3)
        acc[i] = value(acc[i], has_ups ? acc[i + 2] : 1.0f);
    };
    switch (args.activation) {
      case Activation::kSilu:
        return each([](float x, float up) { return x * rcp_approx(1.0f + ex2_approx(x * -kLog2E)) * up; });
      case Activation::kGelu:
        return each([](float x, float up) { return gated_value(Activation::kGelu, x, up); });
      case Activation::kGeluTanh:
        return each([](float x, float up) { return gated_value(Activation::kGeluTanh, x, up); });
      case Activation::kClampedSwish:
        return each([](float x, float up) { return gated_value(Activation::kClampedSwish, x, up); });
      case Activation::kRelu:
        return each([](float x, float up) { return gated_value(Activation::kRelu, x, up); });
      case Activation::kTanh:
        return each([](float x, float up) { return gated_value(Activation::kTanh, x, up); });
      case Activation::kXielu:
        return each([&](float x, float) { return activate(Activation::kXielu, args.xielu, x); });
      case Activation::kIdentity:
        return each([](float x, float up) { return x * up; });
    }
  }

  __device__ __forceinline__ void multiply_rows(float (&acc)[kTokens / 2], int64_t row) const {
#pragma unroll
    for (int i = 0; i < kTokens / 2; i += i % 4 == 0 ? 1 : 3)
      if (row < args.weights.rows && token_at(i) < args.num_tokens)
        acc[i] *= args.factors[token_at(i) * args.factor_stride + row];
  }

  // ---- full tiles

  __device__ __forceinline__ int token_of(int first, int iteration) const {
    return first_token + first + transposed_token(lane, iteration);
  }
  __device__ __forceinline__ float* place_of(int token) const {
    return args.out + token * args.out_stride + tile * kTileRows + lane % 4 * 4;
  }

  __device__ __forceinline__ void load(float4 (&to)[kTransposeTokens / 8], int first) const {
#pragma unroll
    for (int iteration = 0; iteration < kTransposeTokens / 8; ++iteration) {
      const int token = token_of(first, iteration);
      if (token < args.num_tokens) to[iteration] = *reinterpret_cast<const float4*>(place_of(token));
    }
  }

  template <bool kIsAdded>
  __device__ __forceinline__ void store_rows(const float (&acc)[kTokens / 2]) {
#pragma unroll
    for (int first = 0; first < kTokens; first += kTransposeTokens) {
      float4 next[kTransposeTokens / 8];
      if (kIsAdded && first + kTransposeTokens < kTokens) load(next, first + kTransposeTokens);
#pragma unroll
      for (int i = 0; i < kTransposeTokens / 2; ++i)
        transpose_buffer[(i / 4 * 8 + lane % 4 * 2 + i % 2) * kTransposeStride + i / 2 % 2 * 8 + lane / 4] =
            acc[first / 2 + i];
      __syncwarp();
      float4 values[kTransposeTokens / 8];
#pragma unroll
      for (int iteration = 0; iteration < kTransposeTokens / 8; ++iteration)
        values[iteration] = *reinterpret_cast<const float4*>(
            transpose_buffer + transposed_token(lane, iteration) * kTransposeStride + lane % 4 * 4);
#pragma unroll
      for (int iteration = 0; iteration < kTransposeTokens / 8; ++iteration) {
        float4& value = values[iteration];
        if (kIsAdded) {
          const float4& old = before[iteration];
          const float scale = args.residual_scale;
          value = {fmaf(value.x, scale, old.x), fmaf(value.y, scale, old.y), fmaf(value.z, scale, old.z),
                   fmaf(value.w, scale, old.w)};
        }
        const int token = token_of(first, iteration);
        st_global_v4_if(token < args.num_tokens, place_of(token), value);
        if (kIsAdded) before[iteration] = next[iteration];
      }
      __syncwarp();
    }
  }

  // A lane stores eight features of a token, 16 bytes.
  __device__ __forceinline__ void store_features(const float (&acc)[kTokens / 2], int64_t first_feature) {
    auto* const transposed = reinterpret_cast<uint16_t*>(transpose_buffer);
    uint16_t* const to = args.gated + args.gated_split.place(first_feature);
#pragma unroll
    for (int first = 0; first < kTokens; first += kTransposeTokens) {
#pragma unroll
      for (int i = 0; i < kTransposeTokens / 2; i += 4) {
        const uint32_t pair = to_bits_pair<T>(acc[first / 2 + i], acc[first / 2 + i + 1]);
        uint16_t* const at = transposed + (i * 2 + lane % 4 * 2) * 8 + lane / 4;
        at[0] = static_cast<uint16_t>(pair), at[8] = static_cast<uint16_t>(pair >> 16);
      }
      __syncwarp();
      const int token = first_token + first + lane;
      if (token < args.num_tokens)
        *reinterpret_cast<uint4*>(to + token * args.gated_split.padded()) =
            reinterpret_cast<const uint4*>(transposed)[lane];
      __syncwarp();
    }
  }

  // ---- edges

  __device__ __forceinline__ int token_at(int i) const { return first_token + i / 4 * 8 + lane % 4 * 2 + i % 2; }

  __device__ __forceinline__ void store_rows_edge(const float (&acc)[kTokens / 2]) const {
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      const int64_t row = tile * kTileRows + lane / 4 + i / 2 % 2 * 8;
      if (row >= args.weights.rows || token_at(i) >= args.num_tokens) continue;
      float* const out = args.out + token_at(i) * args.out_stride + row;
      *out = accumulates() ? fmaf(acc[i], args.residual_scale, *out) : acc[i];
    }
  }

  __device__ __forceinline__ void store_features_edge(const float (&acc)[kTokens / 2], int64_t first_feature) const {
    const int64_t feature = first_feature + lane / 4;
    if (feature >= args.gated_split.parts * args.gated_split.part_cols) return;
    uint16_t* const to = args.gated + args.gated_split.place(feature);
#pragma unroll
    for (int i = 0; i < kTokens / 2; i += i % 4 == 0 ? 1 : 3)
      if (token_at(i) < args.num_tokens) to[token_at(i) * args.gated_split.padded()] = to_bits<T>(acc[i]);
  }
};

}  // namespace capstan::cuda
