#pragma once
// The inner loops, once per instruction set: a table of functions that each work on one thread. Layouts are shared by
// all sets.
//
// Order of sums (architecture, contract 3): every output element is one chain of fused multiply-adds over K (per part
// of K for row-parallel matrices, parts added by a fixed tree), whatever the rows, threads or tile. All sets give the
// same bits: float sums are FMAs in K order; products of bf16 with bf16 go pair by pair, the odd element of a pair
// before the even one, denormals flushed, because that is what `vdpbf16ps` does.
//
// NOTE: the files that implement this are built with flags of their instruction set. They hold everything in an
// anonymous namespace and instantiate no template of the library, or the linker could give another file their code
// (`make -C test/native odr` checks it).
#include <cstdint>

#include "native/backend/backend.h"
#include "native/backend/panel_reader.h"

namespace capstan {

constexpr int kMaxTileRows = 8;  // over all instruction sets
constexpr int kKvTile = 64;      // keys of one softmax update; tiles begin at absolute multiples
constexpr int kSlotGroup = 16;   // slots of the KV cache that lie together
constexpr int kMaxHeadDim = 512;
constexpr int kAttentionRows = 64;  // (position, head) rows of one attention item, unless one position has more heads
constexpr int kNoiseBlock = 64;     // ids whose sampling noise is made together
constexpr float kLog2E = 1.44269504088896340736f;

// Activations as the matrix kernels read them: tiles of `tile_rows` rows, each tile (words, rows of the tile) so that
// one step of K lies together.
enum class ActFormat : uint8_t {
  kF32,          // a word is one float
  kBf16Rounded,  // a word is one float that was rounded to bf16
  kBf16Pairs,    // a word is two bf16, the even element low
};

struct ActTiles {
  uint32_t* data = nullptr;
  int64_t rows = 0;
  int64_t words = 0;  // per row: K rounded up to even, or half of it for pairs
  int tile_rows = 1;
  ActFormat format = ActFormat::kF32;
};

enum class GemmOutput : uint8_t {
  kStore,     // out = sum + bias
  kResidual,  // out = out + (sum + bias)
  kGated,     // gated = act(gate) * up; a panel holds 8 gates, then their 8 ups
};

// Panels [panel_begin, panel_end) of activations · weightsᵀ.
// Weights: (panels, K, 16) of f32 or f16; (panels, K / 2, 16, 2) of bf16; K even, zero padded.
struct GemmArgs {
  ActTiles acts;
  const void* weights = nullptr;
  DType weight_dtype = DType::kF32;
  int64_t k = 0;      // padded to even
  int num_parts = 1;  // chains over K, a power of two up to 8
  int64_t panel_begin = 0, panel_end = 0;
  int64_t num_features = 0;     // valid output features; for kGated valid (gate, up) pairs
  const float* bias = nullptr;  // (panels * 16) or null
  GemmOutput output = GemmOutput::kStore;
  float* out = nullptr;  // (rows, out_stride)
  int64_t out_stride = 0;
  ActTiles gated;  // kGated: (rows, num_features)
  Activation activation = Activation::kSilu;
};

// The KV cache of one layer. K: (num_blocks, kv_heads, block_size / 16, k_dim, 16 slots) of f32 or f16, (…, k_dim / 2,
// 16 slots, 2) of bf16; V: (num_blocks, kv_heads, block_size, v_dim).
struct KvLayout {
  DType dtype = DType::kF32;
  int block_size = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int k_dim = 0;  // head_dim rounded up to 2
  int v_dim = 0;  // head_dim rounded up to 16
};

struct KvCache {
  KvLayout layout;
  void* k = nullptr;
  void* v = nullptr;
};

// One row of the QKV projection: head norms, rotation, scale of q; k and v to their slot of the cache.
struct QkvRowArgs {
  float* qkv = nullptr;  // ((num_heads + 2 kv_heads) * head_dim): q is changed in place
  int num_heads = 0;
  const float* q_norm = nullptr;  // (head_dim) or null
  const float* k_norm = nullptr;
  float eps = 0;
  float q_scale = 1;
  const float* rope = nullptr;  // cos then sin, (2, rotary_dim / 2), of the row's position
  int rotary_dim = 0;
  KvCache cache;
  int64_t slot = 0;
};

// Attention of some positions and some query heads of one KV head of one sequence. q is scaled by attention_scale ·
// log2(e); the result goes in its place.
struct AttentionArgs {
  float* q = nullptr;  // row i, head h at q + i * q_stride + h * head_dim
  int64_t q_stride = 0;
  int num_rows = 0;   // positions
  int num_heads = 0;  // query heads
  int first_position = 0;
  int window = 0;  // a position sees itself and window - 1 before; 0 = all
  int kv_head = 0;
  const int32_t* block_table = nullptr;
  KvCache cache;
  float* scratch = nullptr;  // attention_scratch_floats
};

constexpr int64_t attention_scratch_floats(int64_t rows, int64_t k_dim, int64_t v_dim) {
  return rows * (k_dim + v_dim + 2) + kMaxTileRows * kKvTile + 64;
}

struct CpuKernels {
  int tile_rows;
  ActFormat bf16_act_format;  // of bf16 activations
  void (*gemm)(const GemmArgs& args);
  // acts row `row` = x * w / rms(x); x, w (k). Both readable up to a multiple of 16.
  void (*rms_norm)(const float* x, const float* w, int64_t k, float eps, const ActTiles& acts, int64_t row);
  // acts row `row` = x.
  void (*pack_row)(const float* x, int64_t k, const ActTiles& acts, int64_t row);
  void (*qkv_row)(const QkvRowArgs& args);
  void (*attention)(const AttentionArgs& args);
  // hidden += (partials added by the fixed tree) + bias; all (n), num_partials a power of two up to 8.
  void (*add_partials)(float* hidden, const float* const* partials, int num_partials, const float* bias, int64_t n);
  // words[i] = the first word of philox4x32({position, choice, first_id + i, 0}, seed); words (kNoiseBlock).
  void (*noise_words)(uint64_t seed, uint32_t position, uint32_t choice, uint32_t first_id, uint32_t* words);
};

extern const CpuKernels kPortableKernels;
#if defined(__x86_64__)
extern const CpuKernels kAvx2Kernels, kAvx512Kernels, kAvx512Bf16Kernels;
#endif

}  // namespace capstan
