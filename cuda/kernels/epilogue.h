#pragma once
// The epilogue of a product. All GEMM kernels with the promise of equal bits use it; the arithmetic leaves the compiler
// no choice of fusing.
#include "cuda/kernels.h"

namespace capstan::cuda {

// Adds the parts of an output as a binary tree. They lie `stride` floats apart, and their number is a power of two up
// to 8.
__device__ __forceinline__ float tree_sum(const float* at, int64_t stride, int parts) {
  if (parts == 1) return at[0];
  if (parts == 2) return at[0] + at[stride];
  const float low = (at[0] + at[stride]) + (at[2 * stride] + at[3 * stride]);
  if (parts == 4) return low;
  return low + ((at[4 * stride] + at[5 * stride]) + (at[6 * stride] + at[7 * stride]));
}

__device__ __forceinline__ float activate(Activation kind, float x) {
  switch (kind) {
    case Activation::kSilu:
      return x / (1.0f + expf(-x));
    case Activation::kGelu:
      return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case Activation::kGeluTanh:
      return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * fmaf(0.044715f * x * x, x, x)));
    case Activation::kRelu:
      return x < 0.0f ? 0.0f : x;  // unlike fmaxf, keeps NaN
    case Activation::kTanh:
      return tanhf(x);
    default:
      break;  // kIdentity; the others have more arguments
  }
  return x;
}

// Of a product without gates. expm1f keeps the digits that exp(x) - 1 - x loses near 0.
__device__ __forceinline__ float activate(Activation kind, const Xielu& xielu, float x) {
  if (kind != Activation::kXielu) return activate(kind, x);
  const float positive = fmaxf(x, 0.0f), negative = fminf(x, 0.0f);
  const float below = fmaf(expm1f(negative) - negative, xielu.exponential, positive * positive * xielu.square);
  return fmaf(x, xielu.linear, below);
}

// An output of GemmOutput::kActivated.
__device__ __forceinline__ float activated_value(const GemmArgs& args, int64_t token, int64_t row, float value) {
  const float active = activate(args.activation, args.xielu, value);
  return args.factors == nullptr ? active : active * args.factors[token * args.factor_stride + row];
}

__device__ __forceinline__ float gated_value(Activation kind, float gate, float up) {
  if (kind != Activation::kClampedSwish) return activate(kind, gate) * up;
  const float low = fminf(gate, 7.0f);
  return low / (1.0f + expf(-1.702f * low)) * (fminf(fmaxf(up, -7.0f), 7.0f) + 1.0f);
}

// Outputs per tile of 16 rows. A gated output takes two rows, the gate and the up.
__device__ __forceinline__ int outputs_of_tile(const GemmArgs& args) {
  return args.output == GemmOutput::kGated ? kTileRows / 2 : kTileRows;
}

// Stores one output. Its parts start at `at`; with kGated the parts of the up start `up_distance` floats later.
template <class T>
__device__ __forceinline__ void finish_output(const GemmArgs& args, int64_t tile, int row_in_tile, int token,
                                              const float* at, int64_t stride, int up_distance) {
  const int64_t row = tile * kTileRows + row_in_tile;
  if (row >= args.weights.rows || token >= args.num_tokens) return;
  const int parts = args.weights.split.parts;
  const float* bias = args.weights.bias;
  float value = tree_sum(at, stride, parts);
  if (bias != nullptr) value += bias[row];
  if (has_acts(args.output)) {
    const bool is_gated = args.output == GemmOutput::kGated;
    const int64_t feature = is_gated ? tile * (kTileRows / 2) + row_in_tile : row;
    if (feature >= args.gated_split.parts * args.gated_split.part_cols) return;
    if (is_gated) {
      float up = tree_sum(at + up_distance, stride, parts);
      if (bias != nullptr) up += bias[row + kTileRows / 2];
      value = gated_value(args.activation, value, up);
    } else {
      value = activated_value(args, token, row, value);
    }
    args.gated[operand_index(token, args.gated_split.place(feature), args.gated_split.padded())] = to_bits<T>(value);
    return;
  }
  float* out = args.out + token * args.out_stride + row;
  *out = args.output == GemmOutput::kResidual ? fmaf(value, args.residual_scale, *out) : value;
}

}  // namespace capstan::cuda
