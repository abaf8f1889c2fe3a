#pragma once
// How a tile of launch_gemm_wgmma ends, for the 16 rows of a warp. In whole tiles lanes read and write 16 bytes of a
// token; at the edges of a matrix, and where rows of the output begin anywhere, numbers one by one. The same bits
// either way.
#include "cuda/kernels/epilogue.h"
#include "cuda/wgmma_layout.h"

namespace capstan::cuda {

template <class T, int kTokens>
struct TileEnd {
  const GemmArgs& args;
  int64_t tile;
  int first_token;  // of the tile of tokens
  int lane;
  float* turning;  // kTurnFloats of the warp
  bool is_later;   // of a K that is cut, behind the first part
  bool is_whole = false;
  float4 before[kTurnTokens / 8];  // what the first tokens are added to

  // Where a tile is whole and added to something, the first of that is on its way when this returns.
  __device__ __forceinline__ TileEnd(const GemmArgs& args, int64_t tile, int first_token, int lane, float* turning,
                                     bool is_later)
      : args(args), tile(tile), first_token(first_token), lane(lane), turning(turning), is_later(is_later) {
    is_whole =
        (tile + 1) * kTileRows <= args.weights.rows &&
        (is_gated() ? is_gated_whole() : args.out_stride % 4 == 0 && reinterpret_cast<uintptr_t>(args.out) % 16 == 0);
    if (is_whole && is_added()) load(before, 0);
  }

  // acc[4 j + r] as wgmma_m64k16 leaves it: rows lane / 4 and eight further, tokens 8 j + lane % 4 * 2 + {0, 1}.
  __device__ __forceinline__ void store(float (&acc)[kTokens / 2]) {
    if (tile * kTileRows >= args.weights.rows) return;
    add_bias(acc);
    if (is_gated()) {
      gate(acc);
      is_whole ? store_gated(acc) : store_gated_edge(acc);
    } else {
      !is_whole ? store_rows_edge(acc) : is_added() ? store_rows<true>(acc) : store_rows<false>(acc);
    }
  }

 private:
  __device__ __forceinline__ bool is_added() const { return is_later || args.output == GemmOutput::kResidual; }
  __device__ __forceinline__ bool is_gated() const { return args.output == GemmOutput::kGated; }
  __device__ __forceinline__ bool is_gated_whole() const {
    const DepthSplit& split = args.gated_split;
    return split.part_cols % 8 == 0 && (tile + 1) * (kTileRows / 2) <= split.parts * split.part_cols &&
           reinterpret_cast<uintptr_t>(args.gated) % 16 == 0;
  }

  __device__ __forceinline__ void add_bias(float (&acc)[kTokens / 2]) const {
    const float* bias = args.weights.bias;
    if (bias == nullptr || is_later) return;
    const int64_t row = tile * kTileRows + lane / 4;
    const float low = row < args.weights.rows ? bias[row] : 0.0f,
                high = row + 8 < args.weights.rows ? bias[row + 8] : 0.0f;
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i)
      acc[i] += i / 2 % 2 == 0 ? low : high;
  }

  // Gates become outputs.
  __device__ __forceinline__ void gate(float (&acc)[kTokens / 2]) const {
    const auto each = [&](auto&& activation) {
#pragma unroll
      for (int i = 0; i < kTokens / 2; i += 4)
        acc[i] = activation(acc[i]) * acc[i + 2], acc[i + 1] = activation(acc[i + 1]) * acc[i + 3];
    };
    switch (args.activation) {
      case Activation::kSilu:
        return each([](float x) { return x * reciprocal_near(1.0f + exp2_near(x * -kLog2E)); });
      case Activation::kGelu:
        return each([](float x) { return activate(Activation::kGelu, x); });
      case Activation::kGeluTanh:
        return each([](float x) { return activate(Activation::kGeluTanh, x); });
    }
  }

  // ---- whole tiles
  // ----------------------------------------------------------------------------------------------------------------------------

  __device__ __forceinline__ int token_of(int first, int turn) const {
    return first_token + first + turned_token(lane, turn);
  }
  __device__ __forceinline__ float* place_of(int token) const {
    return args.out + token * args.out_stride + tile * kTileRows + lane % 4 * 4;
  }

  __device__ __forceinline__ void load(float4 (&to)[kTurnTokens / 8], int first) const {
#pragma unroll
    for (int turn = 0; turn < kTurnTokens / 8; ++turn) {
      const int token = token_of(first, turn);
      if (token < args.num_tokens) to[turn] = *reinterpret_cast<const float4*>(place_of(token));
    }
  }

  template <bool kIsAdded>
  __device__ __forceinline__ void store_rows(const float (&acc)[kTokens / 2]) {
#pragma unroll
    for (int first = 0; first < kTokens; first += kTurnTokens) {
      float4 next[kTurnTokens / 8];
      if (kIsAdded && first + kTurnTokens < kTokens) load(next, first + kTurnTokens);
#pragma unroll
      for (int i = 0; i < kTurnTokens / 2; ++i)
        turning[(i / 4 * 8 + lane % 4 * 2 + i % 2) * kTurnStride + i / 2 % 2 * 8 + lane / 4] = acc[first / 2 + i];
      __syncwarp();
      float4 values[kTurnTokens / 8];
#pragma unroll
      for (int turn = 0; turn < kTurnTokens / 8; ++turn)
        values[turn] =
            *reinterpret_cast<const float4*>(turning + turned_token(lane, turn) * kTurnStride + lane % 4 * 4);
#pragma unroll
      for (int turn = 0; turn < kTurnTokens / 8; ++turn) {
        float4& value = values[turn];
        if (kIsAdded)
          value = {before[turn].x + value.x, before[turn].y + value.y, before[turn].z + value.z,
                   before[turn].w + value.w};
        const int token = token_of(first, turn);
        store_four_if(token < args.num_tokens, place_of(token), value);
        if (kIsAdded) before[turn] = next[turn];
      }
      __syncwarp();
    }
  }

  // Eight features are 16 bytes of a token.
  __device__ __forceinline__ void store_gated(const float (&acc)[kTokens / 2]) {
    auto* const turned = reinterpret_cast<uint16_t*>(turning);
    uint16_t* const to = args.gated + args.gated_split.place(tile * (kTileRows / 2));
#pragma unroll
    for (int first = 0; first < kTokens; first += kTurnTokens) {
#pragma unroll
      for (int i = 0; i < kTurnTokens / 2; i += 4) {
        const uint32_t pair = to_bits_pair<T>(acc[first / 2 + i], acc[first / 2 + i + 1]);
        uint16_t* const at = turned + (i * 2 + lane % 4 * 2) * 8 + lane / 4;
        at[0] = static_cast<uint16_t>(pair), at[8] = static_cast<uint16_t>(pair >> 16);
      }
      __syncwarp();
      const int token = first_token + first + lane;
      if (token < args.num_tokens)
        *reinterpret_cast<uint4*>(to + token * args.gated_split.padded()) =
            reinterpret_cast<const uint4*>(turned)[lane];
      __syncwarp();
    }
  }

  // ---- edges
  // ------------------------------------------------------------------------------------------------------------------------------------

  __device__ __forceinline__ int token_at(int i) const { return first_token + i / 4 * 8 + lane % 4 * 2 + i % 2; }

  __device__ __forceinline__ void store_rows_edge(const float (&acc)[kTokens / 2]) const {
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      const int64_t row = tile * kTileRows + lane / 4 + i / 2 % 2 * 8;
      if (row >= args.weights.rows || token_at(i) >= args.num_tokens) continue;
      float* const out = args.out + token_at(i) * args.out_stride + row;
      *out = is_added() ? *out + acc[i] : acc[i];
    }
  }

  __device__ __forceinline__ void store_gated_edge(const float (&acc)[kTokens / 2]) const {
    const int64_t feature = tile * (kTileRows / 2) + lane / 4;
    if (feature >= args.gated_split.parts * args.gated_split.part_cols) return;
    uint16_t* const to = args.gated + args.gated_split.place(feature);
#pragma unroll
    for (int i = 0; i < kTokens / 2; i += i % 4 == 0 ? 1 : 3)
      if (token_at(i) < args.num_tokens) to[token_at(i) * args.gated_split.padded()] = to_bits<T>(acc[i]);
  }
};

}  // namespace capstan::cuda
