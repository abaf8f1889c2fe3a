#pragma once
// Index arithmetic of weights, activations and the KV cache, for kernels, packing and tests.
// "Operand layout": memory holds the operands of matrix instructions in the order of a warp's lanes (device.h,
// mma_m16n8k16). A lane loads 16 bytes and a warp 512 contiguous bytes, without shared memory. Weights are always the
// operand of 16 rows, for any number of tokens.
#include <cstdint>

#if defined(__CUDACC__)
#define CAPSTAN_BOTH __host__ __device__ __forceinline__
#else
#define CAPSTAN_BOTH inline
#endif

namespace capstan::cuda {

constexpr int kTileRows = 16;   // features per tile of weights
constexpr int kTileTokens = 8;  // tokens per tile of activations
constexpr int kTileDepth = 32;  // K per tile, of two instructions
constexpr int kMaxParts = 8;

CAPSTAN_BOTH constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// How K is split: a product is the sum of `parts` chains, added as a binary tree (architecture, contract 3). Each part
// is padded with zeros to whole tiles.
struct DepthSplit {
  int parts = 1;
  int64_t part_cols = 0;    // of the matrix
  int64_t padded_part = 0;  // in memory, a multiple of kTileDepth

  CAPSTAN_BOTH int64_t padded() const { return parts * padded_part; }
  // The position of column k in memory. k < 2^32, because 32-bit division is faster on a device.
  CAPSTAN_BOTH int64_t place(int64_t k) const {
    const auto at = static_cast<uint32_t>(k), cols = static_cast<uint32_t>(part_cols);
    return at / cols * padded_part + at % cols;
  }
};

// `total_parts` is P of the whole matrix (row_parallel_parts). A rank holds cols / total_cols of them.
CAPSTAN_BOTH DepthSplit split_depth(int64_t cols, int64_t total_cols, int total_parts) {
  const int64_t part_cols = total_cols / total_parts;
  return {static_cast<int>(cols / part_cols), part_cols, round_up(part_cols, kTileDepth)};
}

// Weights (rows, padded K): tiles of 16 rows, each with its K tiles in sequence. A K tile is the A operands of two
// instructions, 16 bytes per lane each.
CAPSTAN_BOTH int64_t weight_index(int64_t row, int64_t k, int64_t padded_k) {
  const int64_t tile = row / kTileRows, step = k / 16;
  const int r = static_cast<int>(row % kTileRows), c = static_cast<int>(k % 16);
  const int lane = r % 8 * 4 + c % 8 / 2;
  const int element = c / 8 * 4 + r / 8 * 2 + c % 2;
  return ((tile * (padded_k / 16) + step) * 32 + lane) * 8 + element;
}

// B operands (n, padded K): tiles of 8 n, each with its K tiles in sequence, 16 bytes per lane for two instructions.
// Used for activations (n = token), keys (n = slot, K = dimension) and values (n = dimension, K = slot).
CAPSTAN_BOTH int64_t operand_index(int64_t n, int64_t k, int64_t padded_k) {
  const int64_t tile = n / 8, step = k / kTileDepth;
  const int c = static_cast<int>(k % kTileDepth);
  const int lane = static_cast<int>(n % 8) * 4 + c % 8 / 2;
  const int element = c / 16 * 4 + c % 16 / 8 * 2 + c % 2;
  return ((tile * (padded_k / kTileDepth) + step) * 32 + lane) * 8 + element;
}

// Activations are in operand layout, or row-major (tokens, padded K) for launch_gemm_wgmma, which copies boxes of them.
CAPSTAN_BOTH int64_t act_index(bool is_row_major, int64_t token, int64_t k, int64_t padded_k) {
  return is_row_major ? token * padded_k + k : operand_index(token, k, padded_k);
}

// The KV cache of one layer. Each block holds, per KV head, the keys (block_size, k_dim) and then the values (v_dim,
// block_size), both in operand layout. An 8-bit cache also has the exponents of the keys and of the values (block_size
// each, fp8.h).
struct KvLayout {
  int block_size = 0;  // a multiple of 32
  int num_kv_heads = 0;
  int head_dim = 0;
  int k_dim = 0;  // key_dim(head_dim), padded with zeros
  int v_dim = 0;  // head_dim rounded up to a multiple of 8; the padding is never read
  bool is_fp8 = false;

  CAPSTAN_BOTH int64_t head_elements() const { return int64_t{block_size} * (k_dim + v_dim + (is_fp8 ? 2 : 0)); }
  CAPSTAN_BOTH int64_t block_bytes() const { return block_elements() * (is_fp8 ? 1 : 2); }
  CAPSTAN_BOTH int64_t block_elements() const { return num_kv_heads * head_elements(); }
  CAPSTAN_BOTH int64_t keys_of(int64_t block, int kv_head) const {
    return block * block_elements() + kv_head * head_elements();
  }
  CAPSTAN_BOTH int64_t values_of(int64_t block, int kv_head) const {
    return keys_of(block, kv_head) + int64_t{block_size} * k_dim;
  }
  CAPSTAN_BOTH int64_t key(int64_t slot, int kv_head, int dim) const {
    return keys_of(slot / block_size, kv_head) + operand_index(slot % block_size, dim, k_dim);
  }
  CAPSTAN_BOTH int64_t value(int64_t slot, int kv_head, int dim) const {
    return values_of(slot / block_size, kv_head) + operand_index(dim, slot % block_size, block_size);
  }
  CAPSTAN_BOTH int64_t exponents_of(int64_t block, int kv_head, bool is_value) const {
    return values_of(block, kv_head) + int64_t{block_size} * (v_dim + (is_value ? 1 : 0));
  }
  CAPSTAN_BOTH int64_t exponent(int64_t slot, int kv_head, bool is_value) const {
    return exponents_of(slot / block_size, kv_head, is_value) + slot % block_size;
  }
};

// The attention kernels are compiled for these sizes of keys only. launch_attention_wgmma has smaller heads.
constexpr int kMaxHeadDim = 512, kMaxWideHeadDim = 256;
constexpr int kMaxBiasedHeadDim = 64;  // with AttentionArgs::biases
CAPSTAN_BOTH constexpr int key_dim(int head_dim) {
  return static_cast<int>(round_up(head_dim, head_dim > 256 ? 512 : head_dim > 128 ? 64 : 32));
}

CAPSTAN_BOTH KvLayout make_kv_layout(int block_size, int num_kv_heads, int head_dim, bool is_fp8 = false) {
  return {block_size, num_kv_heads, head_dim, key_dim(head_dim), static_cast<int>(round_up(head_dim, 8)), is_fp8};
}

// Attention processes the keys in chunks at absolute positions, so that the bits of a row depend only on its position
// and the window.
constexpr int kChunk = 256;

}  // namespace capstan::cuda
