#pragma once
// The inner loops, compiled once per instruction set: a table of functions that run on one thread. All
// instruction sets share the data layouts.
//
// Order of sums (architecture, contract 3): every output element is one chain of fused multiply-adds over K, or one
// chain per part of K for row-parallel matrices, whose parts are added by a fixed tree. The chain does not depend on
// the number of rows, threads or tiles. All instruction sets give the same bits: float sums are FMAs in K order;
// products of bf16 with bf16 add the odd element of each pair before the even one and flush denormals, as `vdpbf16ps`
// does. Only AMX adds products of bf16 with bf16 in another order (amx.inl).
//
// Quantized weights are multiplied as integers with activations in 8 bits. A run of columns has one scale (and offset)
// per output feature; a span of runs has one scale per row of activations. The products of a run are added exactly. The
// chain over the runs of a part is FMAs of these sums in K order; with offsets, each is followed by an FMA of -total
// and the offset.
//
// NOTE: each implementing file is compiled with the flags of its instruction set. It keeps everything in an anonymous
// namespace and instantiates no library template. Otherwise the linker could use its code for other files, which run on
// every machine (`make -C test/native odr` checks this).
#include <cstdint>

#include "native/backend/backend.h"
#include "native/backend/cpu/recurrent_kernels.h"
#include "native/backend/cpu/sample_kernels.h"
#include "native/backend/panel_reader.h"
#include "native/backend/quant_groups.h"

namespace capstan {

constexpr int kMaxTileRows = 8;     // the largest kTileRows of all instruction sets
constexpr int kBlockRows = 16;      // rows of a tile register of AMX
constexpr int kBlockK = 32;         // columns of one: AMX adds K in blocks of 32 from the start of each part
constexpr int kBlockWords = 16;     // the same in words of two bf16
constexpr int kMaxFewRows = 4;      // up to this many rows, the AMX kernels multiply without tile registers
constexpr int kMaxFewInt8Rows = 8;  // the same for quantized weights
constexpr int kMaxTilePanels = 3;   // the largest kTilePanels
constexpr int kQuantSpan = 32;      // columns of activations that share a scale, at most, for weights of a file
constexpr int kKvTile = 64;         // keys per softmax update; tiles begin at absolute multiples
constexpr int kKvChunk = 1024;  // keys per softmax that begins with an empty state; chunks begin at absolute multiples
constexpr int kSlotGroup = 16;  // slots whose keys are interleaved in the KV cache
constexpr int kMaxHeadDim = 512;
constexpr int kAttentionRows = 128;  // (position, head) rows per attention item, unless one position has more heads
constexpr float kLog2E = 1.44269504088896340736f;

// The meaning of one 4-byte word of activations.
enum class ActFormat : uint8_t {
  kF32,          // one float
  kBf16Rounded,  // one float, rounded to bf16
  kBf16Pairs,    // two bf16, the even element in the low half
  kBf16Blocks,   // two bf16; a tile is (blocks of K, rows of the tile, kBlockWords), each part padded with zeros
  kInt8,         // four signed codes; value = code * scale of the row's run
  kInt8Blocks,   // the same; a tile is (blocks of K, rows of the tile, kBlockWords), each run padded with zeros
};

constexpr bool is_int8(ActFormat format) {
  return format == ActFormat::kInt8 || format == ActFormat::kInt8Blocks;
}

// Columns with one scale: a group of quantized weights, or what a part of K holds of one.
struct QuantRun {
  int32_t begin = 0;      // first column
  int32_t count = 0;      // columns
  int32_t num_words = 0;  // words of four codes, padded to an even number
  int32_t block = 0;      // index of the f16 that its scale and offset are multiplied by, for kTimesF16
  int32_t span_runs = 0;  // the first run of a span: its runs, whose activations share a scale; otherwise 0
  bool ends_part = false;
};

// Quantized weights. A panel holds
//   the scales   (num_runs, 16) in f32, f16 or in bytes,
//   the offsets  (num_runs, 16) in f16 or in bytes, if the type has offsets,
//   the blocks' scales and then their offsets, (num_blocks, 16) each in f16, if the type has them,
//   or the factors of scales in e4m3, (high and low, 16) in f32,
//   zeros up to a multiple of 64 bytes,
//   the codes: pairs of words, each (quant_pair_bytes).
// A pair holds 2 words of four codes in 16 lanes. 8 bits: (2 words, 16 lanes, 4) bytes. Fewer bits: (16 lanes, 4) bytes
// with the low four bits of the first word in the low nibbles and of the second word in the high nibbles; then the high
// bits, 16 bytes for each bit. They are fields of 1 or 2 bits: the first field of every byte is of the first codes of
// the first word in order, the second field of the codes after them, and so on.
struct QuantWeights {
  QuantType type;
  const QuantRun* runs = nullptr;
  int num_runs = 0;
  int64_t num_words = 0;                                                            // of all runs
  int64_t num_block_words = 0;                                                      // of activations in kInt8Blocks
  int64_t offsets_at = 0, block_scales_at = 0, block_offsets_at = 0, codes_at = 0;  // bytes from a panel's start
  int64_t panel_bytes = 0;
};

constexpr int64_t quant_pair_bytes(int bits) {
  return bits == 8 ? 128 : 64 + 16 * (bits - 4);
}

// Activations in the layout of the matrix kernels: tiles of `tile_rows` rows, each (words, rows of the tile), so that
// the values of one step of K are contiguous. kBf16Blocks and kInt8Blocks order a tile differently.
struct ActTiles {
  uint32_t* data = nullptr;
  int64_t rows = 0;
  int64_t words = 0;  // per row: K rounded up to even, half of it for pairs, or the words of all runs
  int tile_rows = 1;
  ActFormat format = ActFormat::kF32;
  int64_t part_k = 0;  // kBf16Blocks: columns of one part of K
  // kInt8 and kInt8Blocks: the runs, and by tile (num_runs, rows of the tile) the scales, the sums of the codes, and
  // their products.
  const QuantRun* runs = nullptr;
  int num_runs = 0;
  float* scales = nullptr;
  int32_t* sums = nullptr;
  float* totals = nullptr;  // scale * sum: what an offset of the weights is multiplied by
};

// What a panel of output features takes from t = A · x: `count` values from the index `first` on. Both are even.
struct LoraPanel {
  int32_t first = 0, count = 0;
  int64_t offset = 0;  // bytes from the start of the weights
};

// B of the update of a matrix: for each of its panels (count, 16) values in f32 or f16, or (count / 2, 16, 2) in bf16.
struct LoraPanels {
  const char* weights = nullptr;
  DType dtype = DType::kF32;
  const LoraPanel* panels = nullptr;  // (panels of the matrix)
  bool is_gated = false;  // t is (values, 16): those that the 8 gates are multiplied with, then those of their ups
};

// The update of one row of a step.
struct LoraRow {
  const LoraPanels* update = nullptr;  // null = none
  const float* t = nullptr;            // already multiplied by the scale
};

enum class GemmOutput : uint8_t {
  kStore,      // out = sum + update + bias
  kResidual,   // out = out + (sum + update + bias)
  kGated,      // gated = act(gate, up); a panel holds 8 gates, then their 8 ups
  kActivated,  // gated = act(sum + update + bias)
};

// Computes panels [panel_begin, panel_end) of activations · weightsᵀ.
// Weights: (panels, K, 16) in f32 or f16; (panels, K / 2, 16, 2) in bf16. K is even, zero padded. Or quantized.
// kPanelSlackBytes of zeros follow the last panel.
struct GemmArgs {
  ActTiles acts;
  const void* weights = nullptr;  // the panel weights_panel and those after it
  int64_t weights_panel = 0;
  DType weight_dtype = DType::kF32;
  QuantWeights quant;        // type.bits > 0: replaces weight_dtype
  float* scratch = nullptr;  // of quantized weights: (dequantized_floats), or (int8_scratch_floats) of kInt8Blocks
  int num_parts = 1;         // chains over K, a power of two up to 8
  int64_t panel_begin = 0, panel_end = 0;
  int64_t num_features = 0;       // output features without padding; kGated: (gate, up) pairs without padding
  const float* bias = nullptr;    // (panels * 16) or null
  const LoraRow* lora = nullptr;  // (rows) or null: updates, which are chains in the order of t
  GemmOutput output = GemmOutput::kStore;
  float* out = nullptr;  // (rows, out_stride)
  int64_t out_stride = 0;
  ActTiles gated;  // kGated and kActivated: (rows, num_features)
  Activation activation = Activation::kSilu;
  Xielu xielu;             // kActivated
  bool prefetches = true;  // false: one row leaves it to the processor to prefetch the weights
};

// The KV cache of one layer. K: (num_blocks, num_kv_heads, block_size / 16, k_dim, 16 slots) in f32 or f16,
// (num_blocks, num_kv_heads, block_size / 16, k_dim / 2, 16 slots, 2) in bf16.
// V: (num_blocks, num_kv_heads, block_size, v_dim) in f32 or f16, (num_blocks, num_kv_heads, block_size / 2, v_dim, 2)
// in bf16.
// int8: (num_blocks, num_kv_heads, block_size / 16) groups of 16 slots. A group holds its codes, then 16 scales in f32.
// K: (k_dim / 4, 16 slots, 4) codes, V: (4, v_dim, 4 slots). Four codes are in the order 0, 2, 1, 3, so that codes 0
// and 1 are the low bytes of words in 16 bits.
struct KvLayout {
  DType dtype = DType::kF32;
  int block_size = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int k_dim = 0;  // head_dim rounded up to 2, int8: to 4
  int v_dim = 0;  // head_dim rounded up to 16
};

// Returns the bytes of the keys (or the values) of one slot and KV head: `dim` items, and the scale of codes.
constexpr int64_t slot_bytes(DType dtype, int64_t dim) {
  return dim * static_cast<int64_t>(dtype_size(dtype)) + (dtype == DType::kInt8 ? 4 : 0);
}

struct KvCache {
  KvLayout layout;
  void* k = nullptr;
  void* v = nullptr;
};

// The norm of the heads of q or k.
struct HeadNorm {
  const float* weight = nullptr;  // (head_dim), or (heads * head_dim) for a norm over all heads; null = no norm
  bool is_of_all_heads = false;   // x * weight * inverse_rms; otherwise each head is normalized by itself
  float inverse_rms = 0;          // over all heads of the row
};

// Finishes one row of the QKV projection: norms, RoPE and the scale of q, in place; stores k and v in their slot.
struct QkvRowArgs {
  float* qkv = nullptr;  // ((num_heads + 2 * num_kv_heads) * head_dim); only q is written
  int num_heads = 0;
  HeadNorm q_norm, k_norm;
  bool has_v_norm = false;  // without a weight
  bool stores_kv = true;    // false: the row holds q only
  float eps = 0;
  bool rotates_before_norm = false;
  float q_scale = 1;
  const float* rope = nullptr;  // (2, rotary_dim / 2) cosines, then sines, of the row's position
  int rotary_dim = 0;
  KvCache cache;
  int64_t slot = 0;
};

// Attention of a range of positions and a range of query heads of one KV head of one sequence, over a range of chunks
// of keys. q is already scaled by attention_scale · log2(e).
struct AttentionArgs {
  float* q = nullptr;  // row i, head h at q + i * q_stride + h * head_dim
  int64_t q_stride = 0;
  int num_rows = 0;   // positions
  int num_heads = 0;  // query heads
  int first_position = 0;
  int window = 0;     // as in first_visible_key
  int num_keys = 0;   // as in end_visible_key
  int first_key = 0;  // as in DeviceLayer
  int first_chunk = 0, end_chunk = 0;
  bool has_bf16_products = false;  // for a bf16 cache: q and the weights of the values are rounded to bf16
  int kv_head = 0;
  const int32_t* block_table = nullptr;
  KvCache cache;
  float soft_cap = 0;             // in the unit of the scores: c · log2(e); 0 = none
  const float* biases = nullptr;  // added to the scores, times log2(e): head h, key k - query q = d at h * stride + d
  int64_t bias_stride = 0;
  const float* sinks = nullptr;  // (num_heads) logits of a key without value, in nats; null = none
  float* states = nullptr;       // (chunks, chunk_state_floats) or null
  float* scratch = nullptr;      // (attention_scratch_floats)
};

// AMX reads whole blocks of K, also at the end of a panel.
constexpr int64_t kPanelSlackBytes = kBlockWords * kPanelFeatures * int64_t{4};

// rows: positions × query heads.
constexpr int64_t chunk_state_floats(int64_t rows, int64_t v_dim) {
  return rows * (v_dim + 2);
}
constexpr int64_t attention_scratch_floats(int64_t rows, int64_t k_dim, int64_t v_dim) {
  return rows * (k_dim + 16) + 2 * chunk_state_floats(rows, v_dim) + kMaxTileRows * kKvTile + 64;
}

// Activations that are not quantized need the values of a few panels, kInt8Blocks the codes of two panels in bytes.
constexpr int64_t dequantized_floats(int64_t padded_k) {
  return kMaxTilePanels * padded_k * kPanelFeatures;
}
constexpr int64_t decoded_floats(int64_t num_words) {
  return 2 * (num_words + kBlockWords) * kPanelFeatures;
}

// hidden += scale * norm(sum + update + bias). All are (n).
struct ResidualArgs {
  float* hidden = nullptr;
  const float* const* partials = nullptr;  // added by the fixed tree
  int num_partials = 1;                    // a power of two up to 8
  const float* bias = nullptr;             // or null
  const float* norm = nullptr;             // weight of an RMS norm, readable up to a multiple of 16, or null
  float eps = 0;
  float scale = 1;
  int64_t n = 0;
  const float* update = nullptr;  // from lora_update, or null
};

// For each layer: inputs = (norm(inputs * projection_scale) + table * table_scale) * sum_scale.
struct PerLayerInputArgs {
  float* inputs = nullptr;       // (num_layers, size) the projected hidden state of a token
  const float* table = nullptr;  // (num_layers, size) its row of the table
  const float* norm = nullptr;   // (size) weight of an RMS norm, readable up to a multiple of 16
  int num_layers = 0;
  int64_t size = 0;
  float eps = 0, projection_scale = 1, table_scale = 1, sum_scale = 1;
};

// out = (x - mean) / deviation * weight + bias. All are (n), and readable up to a multiple of 16. out may be x.
struct LayerNormArgs {
  const float* x = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;
  float* out = nullptr;
  int64_t n = 0;
  float eps = 0;
};

// out = Σ weights[i] * (sum of row i + updates[i] + biases[i]), in order. All rows are (n).
struct WeightedSumArgs {
  float* out = nullptr;
  int num_rows = 0;
  const float* const* partials = nullptr;  // (num_rows, num_partials): those of a row are added by the fixed tree
  int num_partials = 1;                    // a power of two up to 8
  const float* const* biases = nullptr;    // (num_rows), each null or readable up to a multiple of 16
  const float* const* updates = nullptr;   // (num_rows) from lora_update, each may be null
  const float* weights = nullptr;          // (num_rows)
  int64_t n = 0;
};

// One group of weights in codes: value = (code - 2^(bits - 1)) * scale.
struct QuantGroupArgs {
  const float* values = nullptr;  // (count)
  int count = 0;                  // at most kMaxQuantGroup
  int bits = 0;                   // 4 or 8
  uint8_t* codes = nullptr;       // (count rounded up to 16), padded with codes of value 0
};

struct CpuKernels {
  int tile_rows;
  int tile_panels;            // of the widest tile
  ActFormat bf16_act_format;  // of many rows (act_tiles.h): kBf16Rounded, kBf16Pairs or kBf16Blocks
  ActFormat int8_act_format;  // of many rows: kInt8 or kInt8Blocks
  void (*gemm)(const GemmArgs& args);
  // Row `row` of acts = x * w / rms(x). x and w: (k), readable up to a multiple of 16.
  void (*rms_norm)(const float* x, const float* w, int64_t k, float eps, const ActTiles& acts, int64_t row);
  // Rows [row, row + count) of acts = x (count, stride), k values each, readable up to a multiple of 16.
  void (*pack_rows)(const float* x, int64_t stride, int64_t k, const ActTiles& acts, int64_t row, int64_t count);
  // Row `row` of acts (kInt8 or kInt8Blocks) = x (k), or x * norm / rms(x) when `norm` is given. x and norm are
  // readable up to a multiple of 16. A run that holds NaN or Inf gets the scale NaN.
  void (*quantize_row)(const float* x, const float* norm, int64_t k, float eps, const ActTiles& acts, int64_t row);
  // Returns the scale as f16 bits; Inf when a value is too large.
  uint16_t (*quantize_group)(const QuantGroupArgs& args);
  void (*qkv_row)(const QkvRowArgs& args);
  // Without states: the chunks are all that the rows see, and the result replaces q. With states: stores the state of
  // each chunk.
  void (*attention)(const AttentionArgs& args);
  // Replaces q by the result of the states of all chunks that the rows see.
  void (*combine_chunks)(const AttentionArgs& args);
  void (*add_residual)(const ResidualArgs& args);
  void (*layer_norm)(const LayerNormArgs& args);
  // x (n) = activation(x). x is readable up to a multiple of 16.
  void (*activate)(float* x, int64_t n, Activation activation);
  // to (n) += x (n). Both are readable up to a multiple of 16.
  void (*add_row)(float* to, const float* x, int64_t n);
  void (*weighted_sum)(const WeightedSumArgs& args);
  // out (panels, 16) = the update of a row.
  void (*lora_update)(const LoraRow& row, int64_t num_panels, float* out);
  // squares[h] = Σ x² of head h of x (num_heads, head_dim).
  void (*head_squares)(const float* x, int num_heads, int head_dim, float* squares);
  // logits (n) = cap · tanh(scale · logits / cap), or scale · logits when cap is 0.
  void (*scale_logits)(float* logits, int64_t n, float scale, float cap);
  // gate (n) = act(gate, up).
  void (*gated_row)(float* gate, const float* up, int64_t n, Activation activation);
  void (*per_layer_inputs)(const PerLayerInputArgs& args);
  SampleKernels sample;
  RecurrentKernels recurrent;
};

extern const CpuKernels kPortableKernels;
#if defined(__x86_64__)
extern const CpuKernels kAvx2Kernels, kAvxVnniKernels, kAvx512Kernels, kAvx512VnniKernels, kAvx512Bf16Kernels,
    kAmxKernels;
#ifdef CAPSTAN_AMX_TWIN
extern const CpuKernels kAmxTwinKernels;
#endif
#elif defined(__aarch64__)
extern const CpuKernels kNeonKernels, kNeonDotKernels, kNeonBf16Kernels;
#endif

}  // namespace capstan
