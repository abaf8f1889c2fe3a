#pragma once
// The device contract: what one rank's device does for the decoder. A dozen fused transformer ops on a batch
// descriptor, weights packed once at load, and a KV cache in blocks. Shapes are in words; "rows" are the tokens of the
// step; sizes are this rank's share unless said otherwise.
//
// Threads: all calls on one Backend come from one thread (its rank's). Backends of several ranks run in lockstep; the
// ops marked (collective) meet the other ranks inside. Errors: every call may throw capstan::Error. After kDeviceLost
// no further call is made.
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dtype.h"

namespace capstan {

// ---- weights
// ---------------------------------------------------------------------------------------------------------------------------

// A checkpoint tensor as it lies in a file, (rows, cols) row-major; a vector has rows = 1.
struct FileTensor {
  std::string name;  // canonical, for messages
  int fd = -1;       // not owned; valid during load only
  uint64_t offset = 0;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
};

// A rectangle of a tensor: what one rank takes of it.
struct TensorSlice {
  const FileTensor* tensor = nullptr;
  int64_t row_begin = 0, num_rows = 0;
  int64_t col_begin = 0, num_cols = 0;
};

// Order of sums (architecture, contract 3): kColumn, one chain over K per output element; kRow, K in parts added by a
// fixed tree, of which this rank holds a contiguous range.
enum class MatrixKind : uint8_t { kColumn, kRow };

// One linear layer to pack: output features are the slices' rows one after the other, K their columns. (gate, up) go in
// as two slices of equal height with `interleave_pairs`, so that one thread computes a gate and its up.
struct MatrixSource {
  std::vector<TensorSlice> slices;
  std::vector<TensorSlice> bias;  // one vector per slice, cols = output features; empty: no bias
  MatrixKind kind = MatrixKind::kColumn;
  bool interleave_pairs = false;
  int64_t total_cols = 0;     // kRow: K of the whole matrix, over all ranks
  bool is_embedding = false;  // also read by `embed` (tied embeddings)
};

// P of contract 3: the largest power of two ≤ 8 for which K is divisible by 16·P, else by 4·P, else by 2·P, else 1.
int row_parallel_parts(int64_t total_cols);

// A packed linear layer on the device, in the backend's own layout.
class Matrix {
 public:
  virtual ~Matrix() = default;
  int64_t rows = 0;  // output features
  int64_t cols = 0;  // K
  int64_t bytes = 0;
};

// A small vector (norm weight) on the device, kept in f32.
class Vector {
 public:
  virtual ~Vector() = default;
  int64_t size = 0;
};

// Called with the bytes read since the last call; throws to cancel.
using LoadProgress = std::function<void(int64_t bytes)>;

// ---- the model as a device sees it
// ------------------------------------------------------------------------------------------------------

enum class Activation : uint8_t { kSilu, kGelu, kGeluTanh };

// This rank's sizes.
struct DeviceModel {
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;  // of this rank
  int num_layers = 0;
  int num_heads = 0;     // of this rank
  int num_kv_heads = 0;  // of this rank
  int head_dim = 0;
  int rotary_dim = 0;
  int64_t vocab_size = 0;   // of the whole model
  int64_t vocab_begin = 0;  // first row of embedding and LM head on this rank
  int64_t vocab_end = 0;
  int64_t num_token_ids = 0;  // ids below this have a token; the rest is never sampled
  float rms_norm_eps = 1e-6f;
  float attention_scale = 1.0f;
  Activation activation = Activation::kSilu;
  std::vector<int32_t> sliding_windows;  // (num_layers), 0 = all positions
  // cos then sin, (max_model_len, 2, rotary_dim / 2), already multiplied with the attention factor.
  std::vector<float> rope_table;
  int max_model_len = 0;
};

// Limits that size the activation buffers and the KV cache.
struct DeviceLimits {
  int max_num_tokens = 0;  // rows of a step
  int max_num_seqs = 0;
  int block_size = 0;
  int num_blocks = 0;
  DType kv_cache_dtype = DType::kBf16;
};

struct LayerWeights {
  std::unique_ptr<Vector> input_norm;           // (hidden_size)
  std::unique_ptr<Matrix> qkv_proj;             // ((num_heads + 2 num_kv_heads) * head_dim, hidden_size)
  std::unique_ptr<Vector> q_norm, k_norm;       // (head_dim) or null
  std::unique_ptr<Matrix> o_proj;               // (hidden_size, num_heads * head_dim), kRow
  std::unique_ptr<Vector> post_attention_norm;  // (hidden_size)
  std::unique_ptr<Matrix> gate_up_proj;         // (2 * intermediate_size, hidden_size), pairs interleaved
  std::unique_ptr<Matrix> down_proj;            // (hidden_size, intermediate_size), kRow
};

// ---- one step
// ---------------------------------------------------------------------------------------------------------------------------

// The batch as flat host arrays, the same on every rank. Row r of sequence s has r in [cu_seqlens_q[s], cu_seqlens_q[s
// + 1]).
struct StepInput {
  std::span<const int32_t>
      input_ids;  // (num_tokens); -1 - i = the id that row i of the previous step's samples drew (depth 2)
  std::span<const int32_t> positions;     // (num_tokens)
  std::span<const int32_t> slot_mapping;  // (num_tokens) block id * block_size + offset, where the row's K and V go
  std::span<const int32_t> cu_seqlens_q;  // (num_seqs + 1)
  std::span<const int32_t> context_lens;  // (num_seqs) tokens in the KV cache once this step has run
  std::span<const int32_t> block_tables;  // (num_seqs, max_blocks_per_seq), padded with -1
  int max_blocks_per_seq = 0;
};

struct TokenLogprob {
  int32_t token_id = -1;
  float logprob = 0;
};

// Counts of a sequence's tokens, for penalties; owned by the sequence, stable while the step runs.
struct TokenCounts {
  std::span<const int32_t> prompt_ids;                             // distinct ids of the prompt, ascending
  std::span<const std::pair<int32_t, int32_t>> completion_counts;  // (id, times) of the completion, ascending by id
};

// One row to sample, in the order of contract 5. `logits_row` indexes the rows given to `lm_head`.
struct SampleRow {
  int logits_row = 0;
  bool wants_sample = true;  // false: only `target_id`'s log-probability is wanted (prompt logprobs)
  int32_t target_id = -1;    // prompt logprobs: the prompt's next id
  int num_logprobs = -1;     // -1: none; k: the k most likely besides the drawn (or target) id
  float temperature = 1.0f;  // 0 = greedy
  int top_k = 0;             // 0 = off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float repetition_penalty = 1.0f;
  uint64_t seed = 0;
  uint32_t position = 0;    // counter word: index of the drawn token within its sequence (prompt included)
  uint32_t choice_idx = 0;  // counter word
  TokenCounts counts;
  std::span<const std::pair<int32_t, float>> logit_bias;  // (token id, bias)
  std::span<const int32_t> banned_ids;                    // min tokens: the ids that would end the sequence
  std::span<const uint32_t> allowed_mask;                 // bit per id, (ceil(vocab_size / 32)); empty = all
};

struct SampleResult {
  int32_t token_id = -1;
  float logprob = 0;  // of token_id (or target_id), log-softmax of the raw logits; filled with num_logprobs >= 0
  int32_t rank = 0;   // 1 = most likely; filled with num_logprobs >= 0
  std::vector<TokenLogprob> top;   // num_logprobs entries, most likely first, ties to the lowest id
  bool has_numeric_error = false;  // NaN or Inf in the row's logits; nothing else is valid
};

// Throws kInternal where a step breaks what backends rely on: ids and positions in range, rows of a sequence that
// follow each other, blocks that exist.
void check_step(const StepInput& step, const DeviceModel& model, const DeviceLimits& limits);

// ---- the device
// ------------------------------------------------------------------------------------------------------------------------

struct BackendInfo {
  std::string name;  // "cpu"
  std::string isa;   // "avx512bf16", …
  int depth = 1;     // steps that may be in flight (contract 1)
  int preferred_block_size = 16;
  int block_size_multiple = 16;  // accepted block sizes are multiples of this …
  DType compute_dtype = DType::kF32;
  bool has_fp8_cache = false;  // takes kFp8E4m3 for the KV cache
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const BackendInfo& info() const = 0;

  // Before the weights: throws kUnsupportedModel where the backend cannot run such a model, of whose length nothing is
  // said yet, and kOutOfMemory where so many bytes of this rank's weights do not fit into a memory of the device's own.
  virtual void check_model(const DeviceModel&, int64_t) const {}
  // Weights. Streamed from the files into the packing; the files are not read after load. NaN or Inf in a tensor throws
  // kInvalidModel with its name.
  virtual std::unique_ptr<Matrix> load_matrix(const MatrixSource& source, const LoadProgress& progress) = 0;
  virtual std::unique_ptr<Vector> load_vector(const TensorSlice& slice, const LoadProgress& progress) = 0;

  // Bytes of one block over all layers of this rank.
  virtual int64_t kv_block_bytes(const DeviceModel& model, int block_size, DType kv_cache_dtype) const = 0;
  // Memory left once the weights are loaded.
  virtual int64_t available_bytes() const = 0;
  // A device with memory of its own allocates all but the KV cache (of whose size limits say nothing yet), and of that
  // one block, for steps that warm it up (the model need have no rope_table yet); `kv_budget_bytes` then is what this
  // rank's cache may have if this process is to use that share of the memory. 0: the machine's memory is meant, and
  // there is no such budget. Throws kOutOfMemory.
  virtual void reserve(const DeviceModel&, const DeviceLimits&) {}
  virtual int64_t kv_budget_bytes(double) const { return 0; }
  // What the log should say once steps of all kinds have run.
  virtual std::vector<std::string> notes() const { return {}; }
  // Allocates the KV cache, in place of what is reserved of it, and the activations unless they are reserved. Throws
  // kOutOfMemory.
  virtual void prepare(const DeviceModel& model, const DeviceLimits& limits) = 0;
  // From here on requests depend on the device: where memory is its own, to run out of it is to lose it (kDeviceLost).
  virtual void begin_serving() {}

  // One step, in this order: begin_step; embed; per layer norm_qkv, attention, output_residual, norm_gate_up,
  // down_residual; then lm_head and sample, possibly several times (prompt logprobs go in groups of at most
  // max_num_seqs rows). The hidden states live in the backend.
  virtual void begin_step(const StepInput& step) = 0;
  // hidden = rows of the embedding (num_tokens, hidden_size). (collective)
  virtual void embed(const Matrix& table) = 0;
  // q, k, v = rope(norm(rms_norm(hidden) · Wqkv + bias)); k and v go to the KV cache of `layer`, q (num_tokens,
  // num_heads * head_dim) stays.
  virtual void norm_qkv(int layer, const LayerWeights& weights) = 0;
  // Causal attention of q over the KV cache of `layer`, windowed by sliding_windows[layer]. Out: (num_tokens, num_heads
  // * head_dim).
  virtual void attention(int layer) = 0;
  // hidden += attention output · Wo + bias. (collective)
  virtual void output_residual(const LayerWeights& weights) = 0;
  // mlp = act(rms_norm(hidden) · Wgate) * (rms_norm(hidden) · Wup), (num_tokens, intermediate_size).
  virtual void norm_gate_up(const LayerWeights& weights) = 0;
  // hidden += mlp · Wdown + bias. (collective)
  virtual void down_residual(const LayerWeights& weights) = 0;
  // logits (rows.size(), vocab_size) of the given rows of hidden; at most max_num_seqs rows a call. (collective)
  virtual void lm_head(const Vector& norm, const Matrix& head, std::span<const int32_t> rows) = 0;
  // Samples rows of the last lm_head; only rank 0 is asked. results.size() == rows.size(). NOTE: the CPU fills them at
  // once, a device with depth 2 in collect: they must stay where they are until then, the rows need not.
  virtual void sample(std::span<const SampleRow> rows, std::span<SampleResult> results) = 0;
  // Waits for the oldest step that has begun and was not collected, on rank 0 alone; its results are there then.
  virtual void collect() {}
};

}  // namespace capstan
