#pragma once
// The launchers of the kernels. Pointers are to device memory unless said otherwise; every launcher checks what a
// kernel relies on and returns at once. 16-bit floats are of the type named by `type`, weights and activations alike.
#include <cstdint>

#include "cuda/device.h"
#include "cuda/layout.h"
#include "cuda/tensor_map.h"
#include "native/backend/backend.h"

namespace capstan::cuda {

enum class FloatType : uint8_t { kBf16, kF16 };

// Weights as load.h packs them: (rows up to a multiple of 16, split.padded()) in the order of weight_index.
struct DeviceMatrix {
  const uint16_t* data = nullptr;
  const float* bias = nullptr;  // (rows) or null; gates and ups as the rows lie
  int64_t rows = 0;
  DepthSplit split;
};

// Whether kernels can begin while the one in front still ends (`begins_early`), on the current device.
bool can_begin_early();

// The id of a row that is there to fill a batch up.
constexpr int32_t kNoToken = -2147483647 - 1;

// hidden (num_tokens, hidden_size) = rows of the table; zeros for ids that another rank has. id < 0: drawn_ids[-1 - id]
// (StepInput), or none.
struct EmbedArgs {
  FloatType type = FloatType::kBf16;
  DeviceMatrix table;
  int64_t vocab_begin = 0;
  const int32_t* ids = nullptr;  // (num_tokens)
  const int32_t* drawn_ids = nullptr;
  int num_tokens = 0;
  int64_t hidden_size = 0;
  float* hidden = nullptr;
};
void launch_embed(const EmbedArgs& args, cudaStream_t stream);

// acts (num_rows, K) = rms_norm of the given rows of hidden, as operands or in rows.
struct NormArgs {
  FloatType type = FloatType::kBf16;
  const float* hidden = nullptr;  // (…, hidden_size)
  const int32_t* rows = nullptr;  // (num_rows) or null: all in order
  int num_rows = 0;
  int64_t hidden_size = 0;
  const float* weight = nullptr;  // (hidden_size)
  float eps = 0;
  DepthSplit split;
  uint16_t* acts = nullptr;
  bool in_rows = false;
  bool begins_early = false;
};
void launch_norm(const NormArgs& args, cudaStream_t stream);

// acts (num_tokens, K) · weightsᵀ + bias.
enum class GemmOutput : uint8_t {
  kStore,     // out[token][row] =
  kResidual,  // out[token][row] +=
  kParts,     // out[part][token][row] =, without bias: launch_gemm alone
  kGated,     // gated[token][row / 2] = activation(gate) * up, as operands; rows are 8 gates, 8 ups, …
};
struct ActMaps;
struct GemmArgs {
  FloatType type = FloatType::kBf16;
  GemmOutput output = GemmOutput::kStore;
  DeviceMatrix weights;
  const uint16_t* acts = nullptr;     // as operands
  const ActMaps* act_maps = nullptr;  // of the host: of acts that lie in rows, for launch_gemm_wgmma
  int num_tokens = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  uint16_t* gated = nullptr;
  DepthSplit gated_split;
  Activation activation = Activation::kSilu;
  int32_t* tile_flags =
      nullptr;  // num_tile_flags zeros, and zeros again afterwards, where launch_gemm_wgmma may cut a long K
  bool begins_early = false;
};
constexpr size_t kLeastSharedBytes = 99 << 10;  // that a block may have: compute capability 8.6, 8.9 and 12.0
struct DeviceRoom {
  int multiprocessors = 0;
  size_t shared_bytes = 0;  // of a block, at most
};
void launch_gemm(const GemmArgs& args, const DeviceRoom& room, cudaStream_t stream);

// The same for many tokens on compute capability 9.0, of activations that lie in rows, as `gated` then does too. One
// map of them for each width of a tile; the launcher chooses the width where none is given. Another order of sums than
// launch_gemm's, and another with flags than without.
constexpr int kNumWidths = 4;
struct ActMaps {
  TensorMap of_width[kNumWidths];
};
// False where the driver makes none.
bool make_act_maps(ActMaps& maps, const uint16_t* acts, int64_t rows, int64_t padded_k);
void launch_gemm_wgmma(const GemmArgs& args, int multiprocessors, cudaStream_t stream, int width = 0);
bool can_gemm_by_wgmma();  // on the current device

// hidden += tree over ranks of partials + bias.
struct AddPartialsArgs {
  float* hidden = nullptr;
  const float* partials[8] = {};
  int world_size = 0;
  const float* bias = nullptr;
  int num_tokens = 0;
  int64_t hidden_size = 0;
  bool replaces = false;  // hidden = instead of +=
};
void launch_add_partials(const AddPartialsArgs& args, cudaStream_t stream);

// launch_add_partials and launch_norm in one kernel that gives the same bits. With norm.rows it leaves the hidden
// states as they are, and may find them on other ranks: `owners` by rank, each with `tokens_per_owner` tokens that are
// true.
struct AddNormArgs {
  AddPartialsArgs sum;
  NormArgs norm;  // of the same hidden states
  const float* owners[8] = {};
  int tokens_per_owner = 0;
};
void launch_add_norm(const AddNormArgs& args, cudaStream_t stream);

// q, k, v of each token: QK norm, rotation; q (num_tokens, num_heads, k_dim) stays, k and v go to the cache. slot < 0:
// nothing is written there.
struct QkvArgs {
  FloatType type = FloatType::kBf16;
  const float* qkv = nullptr;  // (num_tokens, qkv_stride), or the parts of a product
  int parts = 1;
  const float* bias = nullptr;  // of the product, if it is in parts
  int64_t qkv_stride = 0;
  int num_tokens = 0;
  int num_heads = 0;
  const float* q_norm = nullptr;  // (head_dim) or null
  const float* k_norm = nullptr;
  float eps = 0;
  const float* rope = nullptr;  // (max_model_len, 2, rotary_dim / 2)
  int rotary_dim = 0;
  const int32_t* positions = nullptr;
  const int32_t* slots = nullptr;
  KvLayout layout;
  void* cache = nullptr;  // of the layer, 16-bit numbers or e4m3
  uint16_t* q = nullptr;
  bool begins_early = false;
};
void launch_qkv(const QkvArgs& args, cudaStream_t stream);

// launch_norm, launch_gemm and launch_qkv in one kernel that gives the same bits, for few tokens.
constexpr int kGemvTokens = 4;
struct GemvArgs {
  GemmArgs product;
  bool is_normed = false;  // the activations are the norm's; it writes none itself
  NormArgs norm;
  bool has_heads = false;  // what the product stores are q, k and v
  QkvArgs heads;
  int32_t* rows_done = nullptr;  // (heads of q, k and v) zeros, and zeros again afterwards
  int max_blocks = 0;
};
void launch_gemv(const GemvArgs& args, cudaStream_t stream);
size_t gemv_shared_bytes(const GemvArgs& args);  // of a block; a device may not have as many

// Rows of attention: (token, query head of the group) pairs of one sequence, 16 to a tile, 128 for
// launch_attention_wgmma.
struct AttentionTile {
  int32_t seq = 0;        // -1: none, nothing is written
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
  float scale = 0;
  int num_chunks = 1;         // of kChunk keys each, that blocks share; 1: every block goes over all of them
  bool is_many = false;       // rows: a warp has 16 of them, not a block
  float* scratch = nullptr;   // (attention_scratch_floats), with num_chunks > 1
  bool begins_early = false;  // while the kernel in front still ends; not with many rows
  DepthSplit split;           // of num_heads * head_dim
  uint16_t* acts = nullptr;   // out, as operands or in rows
  bool in_rows = false;
};
void launch_attention(const AttentionArgs& args, cudaStream_t stream);
// Of so many chunks of 16 rows: num_tiles * num_kv_heads * num_chunks.
int64_t attention_scratch_floats(int64_t num_cuts, const KvLayout& layout);
// The same for sequences with many rows on compute capability 9.0, of a cache in 16 bits, with outputs in rows; a tile
// is never none, and chunks have no meaning. Another order of sums.
void launch_attention_wgmma(const AttentionArgs& args, cudaStream_t stream);
bool can_attend_by_wgmma();  // on the current device

// One row to sample: SampleRow (backend.h) with its lists as ranges of `words`.
struct SampleItem {
  const int32_t* words = nullptr;
  int32_t logits_row = 0;  // -1: there is nothing to sample, and nothing is written
  int32_t target_id = -1;  // with wants_sample 0
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
  Range allowed_mask;  // words of 32 ids; none = all
};

constexpr int kMaxTopLogprobs = 64;
constexpr int kIdBits = 18;
constexpr int64_t kMaxVocab = int64_t{1} << kIdBits;

// A row of scores, which begins like its row of logits beside a boundary of 16 bytes.
CAPSTAN_BOTH constexpr int64_t sample_scratch_floats(int64_t vocab_size) {
  return (vocab_size + 3 + 3) / 4 * 4;
}

struct SampleOutput {
  int32_t token_id = -1;
  int32_t rank = 0;
  float logprob = 0;
  int32_t num_top = 0;  // -1: NaN, Inf or nothing left to draw from
  int32_t top_ids[kMaxTopLogprobs];
  float top_logprobs[kMaxTopLogprobs];
};

struct SampleArgs {
  const float* logits = nullptr;  // (…, logits_stride), of each row vocab_size
  int64_t vocab_size = 0, logits_stride = 0;
  int64_t num_token_ids = 0;
  const SampleItem* items = nullptr;  // (num_items)
  int num_items = 0;
  float* scores = nullptr;  // (num_items, sample_scratch_floats) scratch
  SampleOutput* outputs = nullptr;
  int32_t* drawn_ids = nullptr;  // (num_items) the ids again, for the next step's embedding; -1 where none may be drawn
};
void launch_sample(const SampleArgs& args, cudaStream_t stream);

}  // namespace capstan::cuda
