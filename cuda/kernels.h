#pragma once
// The launchers of the kernels. Pointers are to device memory unless noted. Every launcher checks what its kernel
// relies on, enqueues the kernel and returns. `type` is the 16-bit float type of weights and activations.
#include <cstdint>

#include "cuda/codes_layout.h"
#include "cuda/device.h"
#include "cuda/layout.h"
#include "cuda/tensor_map.h"
#include "native/backend/backend.h"

namespace capstan::cuda {

enum class FloatType : uint8_t { kBf16, kF16 };

// Packed weights (rows rounded up to a multiple of 16, split.padded()): 16-bit floats in the order of weight_index, or
// codes.
struct DeviceMatrix {
  const uint16_t* data = nullptr;  // null with codes
  const float* bias = nullptr;     // (rows) or null; gates and ups in the order of the rows
  int64_t rows = 0;
  DepthSplit split;
  DeviceCodes codes = {};
};

// Whether a matrix has all arrays of its kind.
inline bool has_weights(const DeviceMatrix& matrix) {
  const DeviceCodes& codes = matrix.codes;
  if (codes.kind == CodeKind::kNone) return matrix.data != nullptr;
  return codes.codes != nullptr && codes.records != nullptr && codes.record_bytes > 0 && codes.num_groups > 0 &&
         (codes.kind == CodeKind::kAny6) == (codes.high_bits > 0) && (codes.high_bits == 0 || codes.high != nullptr) &&
         (is_plain(codes.kind) || codes.blocks != nullptr);
}

// Whether kernels can use programmatic dependent launch (`uses_pdl`) on the current device.
bool supports_pdl();

// The id of a row that only pads a batch.
constexpr int32_t kNoToken = -2147483647 - 1;

// hidden (num_tokens, hidden_size) = scale · rows of the table, or zeros for ids of another rank's shard. A negative id
// refers to drawn_ids[-1 - id] (StepInput), or is kNoToken.
struct EmbedArgs {
  FloatType type = FloatType::kBf16;
  DeviceMatrix table;
  int64_t vocab_begin = 0;
  const int32_t* ids = nullptr;  // (num_tokens)
  const int32_t* drawn_ids = nullptr;
  int num_tokens = 0;
  int64_t hidden_size = 0;
  float scale = 1;
  float* hidden = nullptr;
};
void launch_embed(const EmbedArgs& args, cudaStream_t stream);

// acts (num_rows, K) = norm of the given rows of hidden, in operand layout or row-major. An RMS norm has no bias, a
// layer norm has one. Without a weight acts are the rows as they are.
struct NormArgs {
  FloatType type = FloatType::kBf16;
  const float* hidden = nullptr;  // (…, hidden_size)
  const int32_t* rows = nullptr;  // (num_rows) or null: all rows in order. Nothing is written for -1 (launch_norm)
  int num_rows = 0;
  int64_t hidden_size = 0;
  const float* weight = nullptr;  // (hidden_size) or null
  const float* bias = nullptr;    // (hidden_size) or null
  float eps = 0;
  DepthSplit split;
  uint16_t* acts = nullptr;
  bool is_row_major = false;
  bool uses_pdl = false;
};
void launch_norm(const NormArgs& args, cudaStream_t stream);

// acts (num_tokens, K) · weightsᵀ + bias.
enum class GemmOutput : uint8_t {
  kStore,     // out[token][row] = value
  kResidual,  // out[token][row] += residual_scale · value
  kParts,     // out[part][token][row] = partial sum, without bias; launch_gemm only
  // gated[token][row / 2] = activation(gate) * up, in operand layout. Rows alternate: 8 gates, 8 ups, ….
  kGated,
  // gated[token][row] = activation(value) * factor, in operand layout.
  kActivated,
};
// Whether the outputs are activations of the next product, in `gated`.
CAPSTAN_BOTH bool has_acts(GemmOutput output) {
  return output == GemmOutput::kGated || output == GemmOutput::kActivated;
}
struct ActMaps;
struct GemmArgs {
  FloatType type = FloatType::kBf16;
  GemmOutput output = GemmOutput::kStore;
  DeviceMatrix weights;
  const uint16_t* acts = nullptr;  // in operand layout
  // In host memory: tensor maps of row-major acts, for launch_gemm_wgmma.
  const ActMaps* act_maps = nullptr;
  int num_tokens = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  float residual_scale = 1;
  uint16_t* gated = nullptr;
  DepthSplit gated_split;
  Activation activation = Activation::kSilu;
  // Of kActivated: the values of Activation::kXielu, and (num_tokens, factor_stride) or null: factors of 1.
  Xielu xielu = {};
  const float* factors = nullptr;
  int64_t factor_stride = 0;
  // num_tile_flags zeros, reset to zeros by the kernel. With them launch_gemm_wgmma may split a long K.
  int32_t* tile_flags = nullptr;
  bool uses_pdl = false;
};
// shared memory that every supported device offers per block (8.6, 8.9 and 12.0 have the least)
constexpr size_t kMinSharedBytes = 99 << 10;
struct DeviceResources {
  int multiprocessors = 0;
  size_t shared_bytes = 0;  // most shared memory per block
};
void launch_gemm(const GemmArgs& args, const DeviceResources& room, cudaStream_t stream);

// launch_gemm for many tokens on compute capability 9.0. Activations, including `gated`, are row-major. `act_maps` has
// one tensor map per tile width; width 0 lets the launcher choose. The order of sums differs from launch_gemm's, and
// depends on whether there are tile flags.
constexpr int kNumWidths = 4;
struct ActMaps {
  TensorMap of_width[kNumWidths];
};
// Returns false when the driver cannot create a tensor map.
bool make_act_maps(ActMaps& maps, const uint16_t* acts, int64_t rows, int64_t padded_k);
void launch_gemm_wgmma(const GemmArgs& args, int multiprocessors, cudaStream_t stream, int width = 0);
bool supports_gemm_wgmma();  // on the current device

// hidden = factor · (hidden + scale · rms_norm((sum of the partials, as a binary tree over ranks) + bias)). Only
// launch_add_norm has a norm.
struct AddPartialsArgs {
  float* hidden = nullptr;
  const float* partials[8] = {};
  int world_size = 0;
  const float* bias = nullptr;
  int num_tokens = 0;
  int64_t hidden_size = 0;
  bool replaces = false;        // hidden = the sum, without norm, scale and factor
  const float* norm = nullptr;  // (hidden_size); null = no norm
  float eps = 0;                // of the norm
  float scale = 1, factor = 1;
};
void launch_add_partials(const AddPartialsArgs& args, cudaStream_t stream);

// launch_add_partials and launch_norm in one kernel, with the same bits. With norm.rows the hidden states are not
// written, and may lie on other ranks: `owners` by rank, each with `tokens_per_owner` valid tokens.
struct AddNormArgs {
  AddPartialsArgs sum;
  NormArgs norm;  // of the same hidden states
  const float* owners[8] = {};
  int tokens_per_owner = 0;
};
void launch_add_norm(const AddNormArgs& args, cudaStream_t stream);

// The inputs that each layer has for a token:
// inputs = (rms_norm(projection_scale · inputs) + table_scale · rows of the table) · sum_scale. The norm is over the
// `size` inputs of a layer. Ids are those of EmbedArgs.
struct LayerInputArgs {
  FloatType type = FloatType::kBf16;
  DeviceMatrix table;            // (vocab_size, num_layers * size)
  const int32_t* ids = nullptr;  // (num_tokens)
  const int32_t* drawn_ids = nullptr;
  int num_tokens = 0, num_layers = 0;
  int64_t size = 0;
  const float* norm = nullptr;  // (size)
  float eps = 0;
  float projection_scale = 1, table_scale = 1, sum_scale = 1;
  float* inputs = nullptr;  // (num_tokens, num_layers, size): the projections of the hidden states, then the inputs
};
void launch_layer_inputs(const LayerInputArgs& args, cudaStream_t stream);

// Applies QK norm and RoPE to q, k and v of each token. q (num_tokens, num_heads, k_dim) is stored; k and v go to the
// KV cache, unless slot < 0.
struct QkvArgs {
  FloatType type = FloatType::kBf16;
  const float* qkv = nullptr;  // (num_tokens, qkv_stride), or the parts of a product
  int parts = 1;
  const float* bias = nullptr;  // bias of a product in parts
  int64_t qkv_stride = 0;
  int num_tokens = 0;
  int num_heads = 0;
  bool has_kv = true;             // otherwise the product has queries only, and the cache is not written
  bool has_v_norm = false;        // divides each head of v by its root mean square
  const float* q_norm = nullptr;  // (head_dim), (num_heads, head_dim) of norms over all heads, or null
  const float* k_norm = nullptr;  // the same of the KV heads
  float eps = 0;
  bool rotates_before_norm = false;
  // Of norms over all heads of all ranks: what launch_head_squares has written, by rank. Otherwise null.
  const float* squares[8] = {};
  int world_size = 1;
  int total_kv_heads = 0;
  const float* query_scales = nullptr;  // (max_model_len) factors of q, or null
  const float* rope = nullptr;          // (max_model_len, 2, rotary_dim / 2)
  int rotary_dim = 0;
  const int32_t* positions = nullptr;
  const int32_t* slots = nullptr;
  KvLayout layout;
  void* cache = nullptr;  // of the layer; 16-bit floats or e4m3
  uint16_t* q = nullptr;
  bool uses_pdl = false;

  CAPSTAN_BOTH int num_product_heads() const { return num_heads + (has_kv ? 2 * layout.num_kv_heads : 0); }
};
void launch_qkv(const QkvArgs& args, cudaStream_t stream);
// squares (num_tokens, num_heads + num_kv_heads) = the sums of squares of the heads of q and k, of a complete product.
void launch_head_squares(const QkvArgs& args, float* squares, cudaStream_t stream);

// launch_norm, launch_gemm and launch_qkv in one kernel for few tokens, with the same bits. Norms are RMS norms with a
// weight. Heads have neither norms over all heads, of v or after RoPE nor query_scales.
constexpr int kGemvTokens = 4;
struct GemvArgs {
  GemmArgs product;
  bool is_normed = false;  // the kernel computes the norm and does not store its activations
  NormArgs norm;
  bool has_heads = false;  // the product's outputs are q, k and v
  QkvArgs heads;
  int32_t* rows_done = nullptr;  // (heads of q, k and v) zeros, reset to zeros by the kernel
  int max_blocks = 0;
};
void launch_gemv(const GemvArgs& args, cudaStream_t stream);
bool supports_gemv(const DeviceMatrix& weights);  // all but codes of CodeKind::kAny4, kAny6 and kAny8
size_t gemv_shared_bytes(const GemvArgs& args);   // Shared memory of a block, which may exceed the device's limit.

// A tile of rows of one sequence: (token, query head of the group) pairs, 16 per tile, or `wide_rows` for
// launch_attention_wgmma.
struct AttentionTile {
  int32_t seq = 0;        // -1: padding, nothing is written
  int32_t first_row = 0;  // within the sequence: token * group + head
};
struct AttentionArgs {
  FloatType type = FloatType::kBf16;
  const uint16_t* q = nullptr;
  int num_heads = 0;
  KvLayout layout;
  const void* cache = nullptr;
  const AttentionTile* tiles = nullptr;  // (num_tiles)
  int num_tiles = 0;
  const int32_t* cu_seqlens_q = nullptr;
  const int32_t* context_lens = nullptr;
  const int32_t* block_tables = nullptr;
  int max_blocks_per_seq = 0;
  int window = 0;  // 0 = all positions
  int reach = 0;   // how many keys after its own position a row sees, if the sequence has them; 0 = causal
  // Added to the scaled scores: of head h and a key d positions after the row, biases[h * bias_stride + d]; or null.
  const float* biases = nullptr;
  int bias_stride = 0;
  float scale = 0;
  float soft_cap = 0;             // c: scores become c · tanh(score / c); 0 = none
  const float* sinks = nullptr;   // (num_heads) logits of a key without value, or null
  int num_chunks = 1;             // chunks of kChunk keys that blocks share; 1: every block has all chunks
  bool is_warp_per_tile = false;  // a warp has a tile of rows, instead of a block
  float* scratch = nullptr;       // (attention_scratch_floats), with num_chunks > 1
  bool uses_pdl = false;          // not with is_warp_per_tile
  DepthSplit split;               // of num_heads * head_dim
  uint16_t* acts = nullptr;       // output, in operand layout or row-major
  bool is_row_major = false;
};
void launch_attention(const AttentionArgs& args, cudaStream_t stream);
// `num_splits` is num_tiles * num_kv_heads * num_chunks.
int64_t attention_scratch_floats(int64_t num_splits, const KvLayout& layout);
// Attention of sequences with many rows on compute capability 9.0: 16-bit cache, row-major outputs, no padding tiles.
// num_chunks is ignored, and there are no biases. The order of sums differs from launch_attention's.
void launch_attention_wgmma(const AttentionArgs& args, cudaStream_t stream);
bool supports_attention_wgmma();  // on the current device

// logits = soft cap of scale · logits, where a cap c makes x to c · tanh(x / c).
struct LogitsArgs {
  float* logits = nullptr;  // (num_rows, stride); the first num_ids of a row are changed
  int num_rows = 0;
  int64_t num_ids = 0, stride = 0;
  float scale = 1;
  float soft_cap = 0;  // 0 = none
};
void launch_logits(const LogitsArgs& args, cudaStream_t stream);

// One row to sample: a SampleRow (backend.h) whose lists are ranges of `words`.
struct SampleItem {
  const int32_t* words = nullptr;
  int32_t logits_row = 0;  // -1: padding, nothing is written
  int32_t target_id = -1;  // used when wants_sample is 0
  int32_t wants_sample = 1;
  int32_t num_logprobs = -1;  // at most kMaxTopLogprobs
  float temperature = 1, top_p = 1, min_p = 0;
  int32_t top_k = 0;
  float presence_penalty = 0, frequency_penalty = 0, repetition_penalty = 1;
  uint32_t seed_low = 0, seed_high = 0, position = 0, choice_idx = 0;
  struct Range {
    int32_t begin = 0, count = 0;
  };
  Range prompt_ids;         // ascending
  Range completion_counts;  // (id, times) pairs, ascending
  Range logit_bias;         // (id, bits of the bias) pairs
  Range banned_ids;
  Range allowed_mask;  // words of 32 ids; empty: all ids are allowed
};

constexpr int kMaxTopLogprobs = 64;
constexpr int kIdBits = 18;
constexpr int64_t kMaxVocab = int64_t{1} << kIdBits;

// The scratch row has the same offset from a 16-byte boundary as its row of logits.
CAPSTAN_BOTH constexpr int64_t sample_scratch_floats(int64_t vocab_size) {
  return (vocab_size + 3 + 3) / 4 * 4;
}

struct SampleOutput {
  int32_t token_id = -1;
  int32_t rank = 0;
  float logprob = 0;
  int32_t num_top = 0;  // -1: the row contains NaN or Inf, or no id can be drawn
  int32_t top_ids[kMaxTopLogprobs];
  float top_logprobs[kMaxTopLogprobs];
};

struct SampleArgs {
  const float* logits = nullptr;  // (…, logits_stride); vocab_size of each row are used
  int64_t vocab_size = 0, logits_stride = 0;
  int64_t num_token_ids = 0;
  const SampleItem* items = nullptr;  // (num_items)
  int num_items = 0;
  float* scores = nullptr;  // (num_items, sample_scratch_floats), scratch
  SampleOutput* outputs = nullptr;
  int32_t* drawn_ids = nullptr;  // (num_items) copies of the ids for the next step's embedding; -1 when no id was drawn
};
void launch_sample(const SampleArgs& args, cudaStream_t stream);

}  // namespace capstan::cuda
