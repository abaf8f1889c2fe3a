#pragma once
// The device contract: the operations that the device of one rank performs for the decoder. It consists of about a
// dozen fused transformer ops on a batch descriptor, weights that are packed once at load, and a KV cache in blocks.
//
// Shapes are given in words, row-major. "Rows" are the tokens of one step. Sizes are this rank's share of the model
// unless a comment says otherwise.
//
// Threads: one thread, the rank's own, makes all calls on a Backend. The backends of several ranks run in lockstep.
// Ops marked (collective) exchange data with the other ranks, so every rank must call them.
//
// Errors: every call may throw capstan::Error. After kDeviceLost the caller makes no further call.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "block_format.h"
#include "device_model.h"
#include "dtype.h"
#include "grouped_tensor.h"

namespace capstan {

class LoadedGroups;
struct AdapterWeights;
class LoraMatrix;
struct LoraSource;

// ---- weights ----

// One tensor of a checkpoint file: (rows, cols), row-major. A vector has rows = 1.
struct FileTensor {
  std::string name;  // canonical name, for error messages
  int fd = -1;       // not owned; valid during load only
  uint64_t offset = 0;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  const BlockFormat* format = nullptr;  // of a quantized tensor, and replaces dtype; cols are a multiple of its block
  // Of a tensor whose scales are another array, and replaces dtype. The file holds its codes at `offset`.
  std::shared_ptr<const GroupedTensor> groups;
  // Heads have d rows. The first p rows of each are stored as pairs: row 2r + j of a head holds its row j * p / 2 + r.
  // 0 = rows in order. GGUF files store the q and k projections of Llama like this. So do models whose rotary positions
  // turn neighbouring dimensions.
  int paired_head_dim = 0;      // d
  int paired_rows = 0;          // p
  ScaleFactor factor;           // of scales in e4m3
  bool is_transposed = false;   // the file holds (cols, rows)
  bool is_negated_exp = false;  // of a vector: the file holds -exp(x), as GGUF files do for the decay of a recurrence
};

// Returns the bytes of `count` elements of a row; whole blocks of a quantized tensor. Without scales in other arrays.
int64_t file_bytes(const FileTensor& tensor, int64_t count);

// Throws kInvalidModel with the tensor's name if the file ends before, or kIo.
void read_fully(const std::string& tensor, int fd, uint64_t offset, void* to, size_t bytes);

// The rectangle of a tensor that one rank loads.
struct TensorSlice {
  const FileTensor* tensor = nullptr;
  int64_t row_begin = 0, num_rows = 0;
  int64_t col_begin = 0, num_cols = 0;
  std::shared_ptr<const LoadedGroups> groups = nullptr;  // of a tensor with groups
  // Of a transposed tensor: its values as (rows, cols).
  std::shared_ptr<const std::vector<char>> ordered = nullptr;
};

// The order of sums (architecture, contract 3).
enum class MatrixKind : uint8_t {
  kColumn,  // one chain over K per output element
  kRow,     // K in parts, added by a fixed tree; each rank holds a contiguous range of the parts
};

// How the weights of a matrix are kept in memory.
enum class WeightFormat : uint8_t {
  kDType,  // in the backend's number type
  kF32,    // in f32, for routers: their rounding would choose other experts
  kFile,   // quantized tensors with the codes and scales of the file, others as kDType
  kInt8,   // 8 bits, groups of up to 128 columns with an f16 scale
  kInt4,   // 4 bits, groups of up to 64 columns with an f16 scale
};

// One linear layer to pack. Its output features are the rows of all slices in order; K is their columns.
// A gate and an up projection are two slices of equal height with `interleave_pairs`, so that one thread computes both
// values of a pair.
struct MatrixSource {
  std::vector<TensorSlice> slices;
  std::vector<TensorSlice> bias;  // one vector per slice, cols = the slice's rows; empty = no bias
  MatrixKind kind = MatrixKind::kColumn;
  bool interleave_pairs = false;
  int64_t total_cols = 0;  // kRow: K of the whole matrix, over all ranks
  WeightFormat format = WeightFormat::kDType;
};

// Returns the number of parts of K for a row-parallel matrix (P in contract 3): the largest power of two ≤ 8 for which
// K is divisible by 16·P, else by 4·P, else by 2·P, else 1.
int row_parallel_parts(int64_t total_cols);

// A packed linear layer in device memory, in the backend's own layout.
class Matrix {
 public:
  virtual ~Matrix() = default;
  int64_t rows = 0;  // output features
  int64_t cols = 0;  // K
  int64_t bytes = 0;
};

// A norm weight in device memory, in f32.
class Vector {
 public:
  virtual ~Vector() = default;
  int64_t size = 0;
};

// Receives the bytes read since the previous call. Throws to cancel the load.
using LoadProgress = std::function<void(int64_t bytes)>;

// The limits that size the activation buffers, the KV cache and the recurrent states.
struct DeviceLimits {
  int max_num_tokens = 0;  // rows of one step
  int max_num_seqs = 0;    // also the most rows of one lm_head call
  int block_size = 0;
  std::vector<int> num_blocks;  // by KV group
  int num_state_slots = 0;      // 0 for a model without recurrent layers
  int max_lora_rank = 0;        // 0 = no step has adapters
  DType kv_cache_dtype = DType::kBf16;
};

// What is added to the embedding of a token. See EmbeddingShape.
struct EmbeddingWeights {
  std::unique_ptr<Vector> positions;    // (num_positions, hidden_size); null = none
  std::unique_ptr<Vector> token_types;  // (num_token_types, hidden_size); null = none
  std::unique_ptr<Vector> norm;         // (hidden_size); null = no norm
  std::unique_ptr<Vector> distances;    // (num_distances, heads of all ranks) added to the scores; null = none
};

// One layer of what turns a pooled hidden state into the result: norm(activation(x · W + bias)).
struct HeadLayer {
  std::unique_ptr<Matrix> matrix;  // (output size, input size)
  Activation activation = Activation::kIdentity;
  std::unique_ptr<Vector> norm;  // (output size); null = no norm
};

struct ExpertWeights {
  std::unique_ptr<Matrix> gate_up_proj;  // (2 * intermediate_size, hidden_size), pairs interleaved
  std::unique_ptr<Matrix> down_proj;     // (hidden_size, intermediate_size), kRow
};

// The router and the experts of one layer.
struct MoeWeights {
  std::unique_ptr<Matrix> router;          // (num_experts, hidden_size)
  std::unique_ptr<Vector> selection_bias;  // (num_experts) added to the scores to choose experts; null = none
  std::vector<ExpertWeights> experts;
  ExpertWeights shared;                 // null = none
  std::unique_ptr<Matrix> shared_gate;  // (1, hidden_size): weight of the shared expert is its sigmoid; null = 1
  std::unique_ptr<Vector> scales;       // (num_experts) factors of the weights of a token's experts; null = 1
  // (hidden_size) of Moe::has_separate_norms: what the router and the experts read; mlp_norm is that of the shared
  // expert. Then those of the results of the experts and of the shared expert.
  std::unique_ptr<Vector> router_norm, expert_norm, expert_out_norm, shared_out_norm;
};

// The values of Activation::kXielu, (1) each: a = softplus(alpha_p), b = beta, c = beta + softplus(alpha_n).
struct XieluWeights {
  std::unique_ptr<Vector> alpha_p, alpha_n, beta;
};
struct Xielu {
  float square = 0, linear = 0, exponential = 0;  // a, b and c
};
Xielu make_xielu(float alpha_p, float alpha_n, float beta);

// The weights of a recurrent layer, of this rank. See RecurrentShape for the sizes.
struct RecurrentWeights {
  // (columns, hidden_size). The columns are the values, keys and queries, then the gate (num_heads * head_dim), the
  // time steps (num_heads) and, of a delta net, the betas (num_heads). Of a short convolution: B, C and x, (channels)
  // each.
  std::unique_ptr<Matrix> in_proj;
  std::unique_ptr<Vector> conv;     // from load_convolution, over the values, keys and queries, or the channels
  std::unique_ptr<Vector> a_log;    // (num_heads) the logarithm of the decay per time step
  std::unique_ptr<Vector> dt_bias;  // (num_heads) is added to the time steps
  std::unique_ptr<Vector> skip;     // (num_heads) Mamba 2: D
  std::unique_ptr<Vector> norm;     // (head_dim) of a delta net, (num_heads * head_dim) of Mamba 2
};

// Of models with an input per layer (Gemma 4).
struct PerLayerInputWeights {
  std::unique_ptr<Matrix> table;       // (vocab_size, num_layers * per_layer_input_size), the same on all ranks
  std::unique_ptr<Matrix> projection;  // (num_layers * per_layer_input_size, hidden_size), the same on all ranks
  std::unique_ptr<Vector> norm;        // (per_layer_input_size)
};

struct LayerWeights {
  std::unique_ptr<Vector> input_norm;  // (hidden_size); null = no norm
  RecurrentWeights recurrent;          // of a recurrent layer, in place of qkv_proj, head norms and sinks
  // ((num_heads + 2 * num_kv_heads) * head_dim, hidden_size), then the output gate if the model has one. Of a layer
  // that reads the keys and values of another, the queries only.
  std::unique_ptr<Matrix> qkv_proj;
  std::unique_ptr<Vector> q_norm, k_norm;      // (head_dim), or (num_heads * head_dim) and (num_kv_heads * head_dim)
  std::unique_ptr<Vector> sinks;               // (num_heads) logits of a key without value; null = none
  std::unique_ptr<Matrix> o_proj;              // (hidden_size, result of the mixer), kRow
  std::unique_ptr<Vector> attention_out_norm;  // (hidden_size); null = no norm
  std::unique_ptr<Vector> mlp_norm;            // (hidden_size); null = no norm
  // (2 * intermediate_size, hidden_size), pairs interleaved; without gates (intermediate_size, hidden_size)
  std::unique_ptr<Matrix> gate_up_proj;
  std::unique_ptr<Matrix> down_proj;     // (hidden_size, intermediate_size), kRow
  XieluWeights xielu;                    // of its activation
  std::unique_ptr<MoeWeights> moe;       // replaces gate_up_proj and down_proj
  std::unique_ptr<Vector> mlp_out_norm;  // (hidden_size); null = no norm
  // Of models with an input per layer.
  std::unique_ptr<Matrix> per_layer_gate;        // (part of this rank, hidden_size)
  std::unique_ptr<Matrix> per_layer_projection;  // (hidden_size, part of this rank), kRow
  std::unique_ptr<Vector> per_layer_norm;        // (hidden_size)
  std::unique_ptr<Vector> scale;                 // (1) of the hidden states at the end of the layer; null = 1
};

// The MTP head (multi-token prediction) without its layer: from the hidden state after a token and from the token that
// follows, it predicts the token after that one. Null if the model has none.
struct MtpWeights {
  std::unique_ptr<Matrix> fc;  // (hidden_size, 2 * hidden_size) of the embedding and the hidden state, on all ranks
  std::unique_ptr<Vector> embedding_norm, hidden_norm, norm;  // (hidden_size)
};

// ---- one step ----

// Returns the first key that `position` sees. A position sees itself and the window - 1 positions before it; window 0 =
// all earlier positions.
constexpr int first_visible_key(int position, int window) {
  return window > 0 && position >= window ? position - window + 1 : 0;
}

// Returns one past the last key that `position` sees. num_keys: those of the sequence, 0 = causal.
constexpr int end_visible_key(int position, int window, int num_keys) {
  if (num_keys == 0) return position + 1;
  return window > 0 && position + window < num_keys ? position + window : num_keys;
}

// Returns the row of EmbeddingWeights::distances for a key `distance` positions after the query, as T5 has it: a half
// of the table for the keys after the query, and in each half a row for each of the smallest distances, then rows whose
// width grows to 128 tokens by its logarithm.
int distance_row(int64_t distance, int num_rows);

// The blocks of a step in one KV group.
struct KvGroupInput {
  std::span<const int32_t> slot_mapping;  // (num_tokens) block id * block_size + offset: the slot of the row's K and V
  // (num_seqs, max_blocks_per_seq), padded with -1. Leading blocks are -1 when no row of the step sees them.
  std::span<const int32_t> block_tables;
};

// The batch of one step as flat host arrays, equal on every rank. Sequence s owns the rows from cu_seqlens_q[s] to
// cu_seqlens_q[s + 1].
struct StepInput {
  // (num_tokens). At depth 2, id -1 - i stands for the token that row i of the previous step's samples drew.
  std::span<const int32_t> input_ids;
  std::span<const int32_t> positions;       // (num_tokens)
  std::span<const int32_t> cu_seqlens_q;    // (num_seqs + 1)
  std::span<const int32_t> context_lens;    // (num_seqs) tokens in the KV cache after this step
  std::span<const KvGroupInput> kv_groups;  // as DeviceModel::kv_groups
  int max_blocks_per_seq = 0;
  // Recurrent layers only; empty without them. A slot holds the state of all recurrent layers of a sequence.
  std::span<const int32_t> state_reads = {};   // (num_seqs) slot of the state before the first row; -1 = zeros
  std::span<const int32_t> state_writes = {};  // (num_tokens) slot that receives the state after the row, or -1
  std::span<const int32_t> token_types = {};   // (num_tokens) if the model has token types, otherwise empty
  // Adapters (adapter.h); empty when no sequence of the step has one.
  std::span<const AdapterWeights* const> adapters = {};  // the distinct ones of the step, on this rank
  std::span<const int32_t> adapter_indices = {};         // (num_seqs) index into adapters, or -1
};

// A row whose kept hidden state is stored with a block of the MTP head's KV group.
struct StoredHidden {
  int32_t row = 0, block = 0;
};

// Where the hidden state before a row of the MTP head is: kept row r as r, stored with block b as -1 - b.
constexpr int32_t kNoHidden = INT32_MIN;  // the first token of a sequence has none
constexpr int32_t stored_hidden(int32_t block) {
  return -1 - block;
}

struct TokenLogprob {
  int32_t token_id = -1;
  float logprob = 0;
};

// Token counts of a sequence, for the penalties. The sequence owns them; they do not change during the step.
struct TokenCounts {
  std::span<const int32_t> prompt_ids;                             // distinct ids of the prompt, ascending
  std::span<const std::pair<int32_t, int32_t>> completion_counts;  // (id, count) in the completion, ascending by id
};

// One row to sample. The steps and their order are contract 5.
struct SampleRow {
  int logits_row = 0;        // index into the rows of the last lm_head call
  bool wants_sample = true;  // false: only the log-probability of `target_id` is wanted (prompt logprobs)
  int32_t target_id = -1;    // prompt logprobs: the next id of the prompt
  int num_logprobs = -1;     // -1 = no logprobs; k = those of the sampled (or target) id and of the k most likely ids
  float temperature = 1.0f;  // 0 = greedy
  int top_k = 0;             // 0 = off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float repetition_penalty = 1.0f;
  uint64_t seed = 0;
  uint32_t position = 0;    // noise counter: index of the sampled token within its sequence, prompt included
  uint32_t choice_idx = 0;  // noise counter: index of the choice within its request
  TokenCounts counts;
  std::span<const std::pair<int32_t, float>> logit_bias;  // (token id, bias)
  std::span<const int32_t> banned_ids;                    // min tokens: the ids that would end the sequence
  std::span<const uint32_t> allowed_mask;                 // (ceil(vocab_size / 32)) one bit per id; empty = all allowed
};

// The rows of one sequence whose hidden states are pooled.
struct PoolRow {
  int first_row = 0, num_rows = 0;  // of the step; no rows: only the result is wanted
  int first_weight = 0;             // with kWeightedMean: the factor of the first row, which grows by 1 from row to row
  std::span<float> sum;             // (hidden_size) the rows are added to it, in order; with kMax the largest values
  std::span<float> result;          // (size of the result) or empty: later steps add more rows
  float divisor = 1;                // of the sum, with a result
};

struct SampleResult {
  int32_t token_id = -1;
  float logprob = 0;  // of token_id (or target_id): log-softmax of the raw logits; set when num_logprobs >= 0
  int32_t rank = 0;   // of token_id among all ids, 1 = most likely; set when num_logprobs >= 0
  std::vector<TokenLogprob> top;   // (num_logprobs) most likely first, ties to the lowest id
  bool has_numeric_error = false;  // the row's logits hold NaN or Inf; no other field is valid
};

// Throws kInternal when a step breaks the assumptions of the backends: array sizes, positions and slots in range,
// consecutive positions within a sequence, a block for each position that a row sees, one writer per state slot.
void check_step(const StepInput& step, const DeviceModel& model, const DeviceLimits& limits);

// ---- the device ----

struct BackendInfo {
  std::string name;  // "cpu" or "cuda"
  std::string isa;   // instruction set, such as "avx512bf16"
  int depth = 1;     // steps that may be in flight (contract 1)
  int preferred_block_size = 16;
  int block_size_multiple = 16;  // block_size must be a multiple of this
  DType compute_dtype = DType::kF32;
  bool has_fp8_cache = false;          // accepts kFp8E4m3 as kv_cache_dtype
  bool has_int8_cache = false;         // accepts kInt8 as kv_cache_dtype
  bool has_quantized_weights = false;  // accepts every WeightFormat
  bool keeps_fp8_weights = false;      // with WeightFormat::kFile; otherwise tensors in FP8 are decoded
  bool has_adapters = false;           // accepts steps with adapters
  bool has_mtp = false;                // accepts models with an MTP head
  bool has_kv_copies = false;          // has read_kv_block and write_kv_block
};

// The life of a backend: check_model; load_matrix and load_vector; reserve, then warm-up steps, then kv_budget_bytes;
// prepare; warm-up steps; begin_serving; steps.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const BackendInfo& info() const = 0;

  // ---- load ----

  // Called before the weights are loaded: model.max_model_len and the values of model.rope_tables are not set yet.
  // Throws kUnsupportedModel when the backend cannot run the model. A device with dedicated memory throws kOutOfMemory
  // when `weight_bytes` (of this rank) do not fit.
  virtual void check_model(const DeviceModel& /*model*/, int64_t /*weight_bytes*/) const {}

  // Streams the weights from the files into the packed layout. The files are not read after load. Throws kInvalidModel
  // with the tensor's name when a tensor holds NaN or Inf.
  virtual std::unique_ptr<Matrix> load_matrix(const MatrixSource& source, const LoadProgress& progress) = 0;
  // The values are those of the file plus `offset`.
  virtual std::unique_ptr<Vector> load_vector(const TensorSlice& slice, float offset, const LoadProgress& progress) = 0;
  // The weight and the bias of a norm of kind kLayer; without a bias it is 0. Throws kUnsupportedModel on a device
  // without such norms.
  virtual std::unique_ptr<Vector> load_layer_norm(const TensorSlice& weight, const TensorSlice* bias,
                                                  const LoadProgress& progress);
  // The weights of a convolution of each channel with itself. The rows of all slices are (channels), their columns the
  // taps, oldest input first. Throws kUnsupportedModel on a device without recurrent layers.
  virtual std::unique_ptr<Vector> load_convolution(const MatrixSource& source, const LoadProgress& progress);
  // Loads the update of `matrix`, which this backend has loaded. Callable from any thread, one at a time, also while
  // steps run. Throws kInvalidModel, kUnsupportedModel (a device without adapters) or kOutOfMemory.
  virtual std::unique_ptr<LoraMatrix> load_lora(const LoraSource& source, const Matrix& matrix) const;

  // ---- memory ----

  // Returns the bytes of one KV block over the layers of a KV group of this rank.
  virtual int64_t kv_block_bytes(const DeviceModel& model, int kv_group, int block_size,
                                 DType kv_cache_dtype) const = 0;

  // Returns the bytes of one state slot over the recurrent layers of this rank; 0 = the model has none.
  virtual int64_t state_slot_bytes(const DeviceModel& /*model*/) const { return 0; }

  // Returns the free memory in bytes after the weights are loaded.
  virtual int64_t available_bytes() const = 0;

  // Allocates everything except the KV cache, plus one KV block per group for the warm-up steps. The cache size and the
  // values of rope_tables are not known yet. Throws kOutOfMemory. A device without dedicated memory does nothing.
  virtual void reserve(const DeviceModel& /*model*/, const DeviceLimits& /*limits*/) {}

  // Returns the bytes that this rank's KV cache may use when the process may use the given share of the device memory
  // (`gpu_memory_utilization`). Call it after reserve has run on every rank. 0 = the device has no dedicated memory.
  virtual int64_t kv_budget_bytes(double /*utilization*/) const { return 0; }

  // Allocates the KV cache, in place of the block from reserve, and the activations unless reserve has allocated them.
  // Throws kOutOfMemory.
  virtual void prepare(const DeviceModel& model, const DeviceLimits& limits) = 0;

  // Marks the end of loading. From here on, a device with dedicated memory reports kDeviceLost instead of kOutOfMemory.
  virtual void begin_serving() {}

  // Returns lines for the log, once steps of every kind have run.
  virtual std::vector<std::string> notes() const { return {}; }

  // ---- a step ----
  // The order of calls: begin_step; embed; add_embeddings and per_layer_inputs, if there are any; for each layer
  // norm_qkv and attention, or recurrent; output_residual; norm_gate_up and down_residual, or moe_residual; and
  // end_layer, if there is anything to do; then lm_head and sample. In layers of DeviceModel::is_parallel norm_gate_up
  // comes before output_residual. Prompt logprobs repeat lm_head and sample for groups of at most max_num_seqs rows.
  // Models that pool call pool instead. The backend holds the hidden states. A step of the MTP head alone: begin_step;
  // embed; mtp_input; the ops of its layer; lm_head and sample; keep_hidden.

  virtual void begin_step(const StepInput& step) = 0;

  // hidden (num_tokens, hidden_size) = embedding_scale · the rows of the embedding. (collective)
  virtual void embed(const Matrix& table) = 0;

  // hidden = norm(hidden + the row of the position + the row of the token type). Attention of the step adds the biases
  // of distances. Throws kUnsupportedModel on a device without it.
  virtual void add_embeddings(const EmbeddingWeights& weights);

  // inputs (num_tokens, num_layers, size) = (rms_norm(hidden · projection / √hidden_size) + √size · rows of the table)
  // / √2. Throws kUnsupportedModel on a device without inputs per layer.
  virtual void per_layer_inputs(const PerLayerInputWeights& weights);

  // q, k, v = rope(qk norm(rms_norm(hidden) · Wqkv + bias)). Stores k and v in the KV cache of `layer` and keeps
  // q (num_tokens, num_heads * head_dim). Neither RoPE nor a norm applies to v. (collective, for QkNorm::kAllHeads)
  virtual void norm_qkv(int layer, const LayerWeights& weights) = 0;

  // Attention of q over the KV cache of `layer`, causal unless the model is not, limited to its window.
  // Result: (num_tokens, num_heads * head_dim).
  virtual void attention(int layer, const LayerWeights& weights) = 0;

  // The mixer of a recurrent layer, in place of norm_qkv and attention: the projections of rms_norm(hidden), a causal
  // convolution, the recurrence and its gated norm. Reads and writes the states of the step's slots. Result:
  // (num_tokens, RecurrentShape::output_size). Throws kUnsupportedModel on a device without recurrent layers.
  virtual void recurrent(int layer, const LayerWeights& weights);

  // hidden += residual_scale · rms_norm(result of the mixer · Wo + bias), or with norms of sums
  // hidden = norm(hidden + residual_scale · (result of the mixer · Wo + bias)). (collective)
  virtual void output_residual(const LayerWeights& weights) = 0;

  // mlp (num_tokens, intermediate_size) = act(rms_norm(hidden) · Wgate) * (rms_norm(hidden) · Wup), or without gates
  // act(rms_norm(hidden) · Wup).
  virtual void norm_gate_up(const LayerWeights& weights) = 0;

  // hidden += residual_scale · rms_norm(mlp · Wdown + bias), or as in output_residual. (collective)
  virtual void down_residual(const LayerWeights& weights) = 0;

  // hidden += residual_scale · rms_norm(Σ weight · expert(rms_norm(hidden))) over the experts of each row. With
  // separate norms, the sum is rms_norm(Σ over the experts) + rms_norm(shared expert). (collective)
  virtual void moe_residual(const LayerWeights& weights) = 0;

  // hidden = scale · (hidden + rms_norm((act(hidden · Wgate) * inputs of the layer) · Wprojection)). (collective)
  // Throws kUnsupportedModel on a device without inputs per layer.
  virtual void end_layer(int layer, const LayerWeights& weights);

  // logits (rows.size(), vocab_size) of the given rows of hidden; at most max_num_seqs rows per call. (collective)
  virtual void lm_head(const Vector& norm, const Matrix& head, std::span<const int32_t> rows) = 0;

  // Samples rows of the last lm_head call; called on rank 0 only. results.size() == rows.size().
  // NOTE: at depth 1 the results are set on return, at depth 2 by collect. `results` must stay valid until then;
  // `rows` need not.
  virtual void sample(std::span<const SampleRow> rows, std::span<SampleResult> results) = 0;

  // Adds the rows' norm(hidden) to their sums, and computes the results: head(sum / divisor). `norm` is null for a
  // model without a final norm. On the other ranks `rows` is empty. (collective) Throws kUnsupportedModel on a device
  // without it.
  virtual void pool(const Vector* norm, std::span<const HeadLayer> head, std::span<const PoolRow> rows);

  // The MTP head. All three throw kUnsupportedModel on a device without it.
  // Keeps norm(hidden) of all rows of the step until the next call.
  virtual void keep_hidden(const Vector& norm);
  // Copies kept rows to the memory of blocks.
  virtual void store_hidden(std::span<const StoredHidden> rows);
  // hidden = fc(embedding norm(hidden), hidden norm(hidden states before the rows)); hidden holds the embeddings.
  virtual void mtp_input(const MtpWeights& weights, std::span<const int32_t> hidden_before);

  // Waits for the oldest step in flight and sets its sample results; called on rank 0 only.
  virtual void collect() {}

  // ---- blocks ----

  // Copies a block of a KV group to or from the host's memory (kv_block_bytes). The bytes mean something to this build
  // only. Callable on any thread while no step is in flight. Throws kUnsupportedModel without has_kv_copies.
  virtual void read_kv_block(int kv_group, int32_t block_id, std::span<std::byte> to) const;
  virtual void write_kv_block(int kv_group, int32_t block_id, std::span<const std::byte> from);
};

}  // namespace capstan
