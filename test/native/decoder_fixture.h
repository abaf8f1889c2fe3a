#pragma once
// A small random decoder: as a checkpoint for backends, in doubles for the reference, and a driver that runs batches
// through the device contract.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "native/backend/cpu/cpu_backend.h"
#include "test/native/checkpoint.h"
#include "test/native/reference.h"

namespace capstan::testing {

struct DecoderShape {
  int64_t hidden_size = 64;
  int64_t intermediate_size = 96;
  int num_layers = 2;
  int num_heads = 4;
  int num_kv_heads = 2;
  int head_dim = 16;
  int rotary_dim = 16;
  int64_t vocab_size = 128;
  int window = 0;  // sliding window of the odd layers, 0 = none
  bool has_bias = false;
  bool has_qk_norm = false;
  bool is_tied = true;
  Activation activation = Activation::kSilu;
  DType file_dtype = DType::kF32;
  int max_model_len = 512;
};

// Creates the backend of one rank.
struct RunOptions;
using MakeBackend = std::function<std::unique_ptr<Backend>(const RunOptions& options, std::unique_ptr<Comm> comm)>;

struct RunOptions {
  CpuIsa isa = CpuIsa::kPortable;
  DType weight_dtype = DType::kF32;
  DType kv_cache_dtype = DType::kF32;
  bool compute_f32 = false;
  WeightFormat format = WeightFormat::kDType;  // of all matrices; with compute_f32 the activations are f32
  int world_size = 1;
  int num_threads = 1;  // per rank
  int prefill_chunk_size = 1 << 20;
  int max_num_seqs_per_step = 1 << 20;
  int block_size = 16;
  bool keeps_unseen_blocks = false;    // false: block tables leave out the blocks that no row sees
  MakeBackend make_backend = nullptr;  // null: the CPU backend
};

// Indexed by prompt and position; each entry has (vocab_size) values.
using LogProbs = std::vector<std::vector<std::vector<float>>>;

class DecoderFixture {
 public:
  explicit DecoderFixture(const DecoderShape& shape);

  const reference::Decoder& reference() const { return reference_; }
  // Prefills all prompts together, in chunks. Returns the log-probabilities at every position.
  LogProbs run(const RunOptions& options, const std::vector<std::vector<int32_t>>& prompts);

 private:
  const FileTensor& add_matrix(const std::string& name, int64_t rows, int64_t cols, float deviation,
                               reference::Rows& rows_out);
  const FileTensor& add_vector(const std::string& name, int64_t size, float mean, float deviation,
                               reference::Row& row_out);
  LayerWeights load_layer(Backend& backend, int layer, int rank, const RunOptions& options) const;
  void run_rank(const RunOptions& options, const std::vector<std::vector<int32_t>>& prompts, int rank,
                std::unique_ptr<Comm> comm, LogProbs& logprobs);

  struct LayerTensors {
    const FileTensor *input_norm, *mlp_norm, *q, *k, *v, *o, *gate, *up, *down;
    const FileTensor *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr, *o_bias = nullptr, *down_bias = nullptr;
    const FileTensor *q_norm = nullptr, *k_norm = nullptr;
  };

  DecoderShape shape_;
  MemoryCheckpoint checkpoint_;
  reference::Decoder reference_;
  uint64_t seed_ = 7;
  const FileTensor* embedding_ = nullptr;
  const FileTensor* norm_ = nullptr;
  const FileTensor* lm_head_ = nullptr;
  std::vector<LayerTensors> layers_;
};

}  // namespace capstan::testing
