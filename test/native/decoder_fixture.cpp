#include "test/native/decoder_fixture.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>

#include "native/model/weights.h"

namespace capstan::testing {

const FileTensor& DecoderFixture::add_matrix(const std::string& name, int64_t rows, int64_t cols, float deviation,
                                             reference::Rows& rows_out) {
  std::vector<float> values = random_values(++seed_, rows * cols, deviation);
  const FileTensor& tensor = checkpoint_.add(name, shape_.file_dtype, rows, cols, values);
  for (int64_t row = 0; row < rows; ++row)
    rows_out.emplace_back(values.begin() + row * cols, values.begin() + (row + 1) * cols);
  return tensor;
}

const FileTensor& DecoderFixture::add_vector(const std::string& name, int64_t size, float mean, float deviation,
                                             reference::Row& row_out) {
  std::vector<float> values = random_values(++seed_, size, deviation);
  for (float& value : values)
    value += mean;
  const FileTensor& tensor = checkpoint_.add(name, shape_.file_dtype, 1, size, values);
  row_out.assign(values.begin(), values.end());
  return tensor;
}

DecoderFixture::DecoderFixture(const DecoderShape& shape) : shape_(shape) {
  DeviceModel& model = reference_.model;
  model.hidden_size = shape.hidden_size;
  model.intermediate_size = shape.intermediate_size;
  model.num_heads = shape.num_heads;
  model.num_kv_heads = shape.num_kv_heads;
  model.head_dim = shape.head_dim;
  model.vocab_size = model.vocab_end = model.num_token_ids = shape.vocab_size;
  model.attention_scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  model.activation = shape.activation;
  model.max_model_len = shape.max_model_len;
  for (int layer = 0; layer < shape.num_layers; ++layer)
    model.layers.push_back(shape.window == 0
                               ? DeviceLayer{Mixer::kAttention, 0, layer}
                               : DeviceLayer{Mixer::kAttention, layer % 2, layer / 2, 0, layer % 2 * shape.window});
  model.kv_groups = {{0, shape.num_layers}};
  if (shape.window > 0) model.kv_groups = {{0, (shape.num_layers + 1) / 2}, {shape.window, shape.num_layers / 2}};
  RopeTable& rope = model.rope_tables.emplace_back();
  rope.rotary_dim = shape.rotary_dim;
  for (int position = 0; position < shape.max_model_len; ++position)
    for (const bool is_sine : {false, true})
      for (int i = 0; i < shape.rotary_dim / 2; ++i) {
        const double angle = position * std::pow(10000.0, -2.0 * i / shape.rotary_dim);
        rope.values.push_back(static_cast<float>(is_sine ? std::sin(angle) : std::cos(angle)));
      }

  const int64_t q_size = int64_t{shape.num_heads} * shape.head_dim,
                kv_size = int64_t{shape.num_kv_heads} * shape.head_dim;
  const auto spread = [](int64_t fan_in) { return 1.3f / std::sqrt(static_cast<float>(fan_in)); };
  embedding_ = &add_matrix("embed_tokens.weight", shape.vocab_size, shape.hidden_size, shape.is_tied ? 0.35f : 1.0f,
                           reference_.embedding);
  for (int l = 0; l < shape.num_layers; ++l) {
    reference::Layer& layer = reference_.layers.emplace_back();
    LayerTensors& tensors = layers_.emplace_back();
    const std::string prefix = "layers." + std::to_string(l) + ".";
    const auto matrix = [&](const char* name, int64_t rows, int64_t cols, reference::Rows& out) {
      return &add_matrix(prefix + name, rows, cols, spread(cols), out);
    };
    const auto vector = [&](const char* name, int64_t size, float mean, reference::Row& out) {
      return &add_vector(prefix + name, size, mean, 0.25f, out);
    };
    tensors.input_norm = vector("input_norm.weight", shape.hidden_size, 1, layer.input_norm);
    tensors.mlp_norm = vector("mlp_norm.weight", shape.hidden_size, 1, layer.mlp_norm);
    tensors.q = matrix("q_proj.weight", q_size, shape.hidden_size, layer.q);
    tensors.k = matrix("k_proj.weight", kv_size, shape.hidden_size, layer.k);
    tensors.v = matrix("v_proj.weight", kv_size, shape.hidden_size, layer.v);
    tensors.o = matrix("o_proj.weight", shape.hidden_size, q_size, layer.o);
    tensors.gate = matrix("gate_proj.weight", shape.intermediate_size, shape.hidden_size, layer.gate);
    tensors.up = matrix("up_proj.weight", shape.intermediate_size, shape.hidden_size, layer.up);
    tensors.down = matrix("down_proj.weight", shape.hidden_size, shape.intermediate_size, layer.down);
    if (shape.has_bias) {
      tensors.q_bias = vector("q_proj.bias", q_size, 0, layer.q_bias);
      tensors.k_bias = vector("k_proj.bias", kv_size, 0, layer.k_bias);
      tensors.v_bias = vector("v_proj.bias", kv_size, 0, layer.v_bias);
      tensors.o_bias = vector("o_proj.bias", shape.hidden_size, 0, layer.o_bias);
      tensors.down_bias = vector("down_proj.bias", shape.hidden_size, 0, layer.down_bias);
    }
    if (shape.has_qk_norm) {
      tensors.q_norm = vector("q_norm.weight", shape.head_dim, 1, layer.q_norm);
      tensors.k_norm = vector("k_norm.weight", shape.head_dim, 1, layer.k_norm);
    }
  }
  norm_ = &add_vector("norm.weight", shape.hidden_size, 1, 0.25f, reference_.norm);
  if (shape.is_tied)
    reference_.lm_head = reference_.embedding;
  else
    lm_head_ = &add_matrix("lm_head.weight", shape.vocab_size, shape.hidden_size,
                           2 / std::sqrt(static_cast<float>(shape.hidden_size)), reference_.lm_head);
}

namespace {

TensorSlice rows_of(const FileTensor& tensor, int rank, int world_size) {
  const int64_t count = tensor.rows / world_size;
  return {&tensor, rank * count, count, 0, tensor.cols};
}
TensorSlice cols_of(const FileTensor& tensor, int rank, int world_size) {
  const int64_t count = tensor.cols / world_size;
  return {&tensor, 0, tensor.rows, rank * count, count};
}

}  // namespace

LayerWeights DecoderFixture::load_layer(Backend& backend, int layer, int rank, const RunOptions& options) const {
  const int world_size = options.world_size;
  const LayerTensors& tensors = layers_[layer];
  const int kv_world = std::min(world_size, shape_.num_kv_heads),
            kv_rank = rank / (world_size / kv_world);  // replicated KV heads
  LayerWeights weights;
  weights.input_norm = backend.load_vector(whole(*tensors.input_norm), 0.0f, {});
  weights.mlp_norm = backend.load_vector(whole(*tensors.mlp_norm), 0.0f, {});
  if (tensors.q_norm != nullptr) {
    weights.q_norm = backend.load_vector(whole(*tensors.q_norm), 0.0f, {});
    weights.k_norm = backend.load_vector(whole(*tensors.k_norm), 0.0f, {});
  }
  MatrixSource qkv;
  qkv.format = options.format;
  qkv.slices = {rows_of(*tensors.q, rank, world_size), rows_of(*tensors.k, kv_rank, kv_world),
                rows_of(*tensors.v, kv_rank, kv_world)};
  if (tensors.q_bias != nullptr)
    qkv.bias = {cols_of(*tensors.q_bias, rank, world_size), cols_of(*tensors.k_bias, kv_rank, kv_world),
                cols_of(*tensors.v_bias, kv_rank, kv_world)};
  weights.qkv_proj = backend.load_matrix(qkv, {});
  const auto row_parallel = [&](const FileTensor& tensor, const FileTensor* bias) {
    MatrixSource source;
    source.kind = MatrixKind::kRow;
    source.format = options.format;
    source.total_cols = tensor.cols;
    source.slices = {cols_of(tensor, rank, world_size)};
    if (bias != nullptr) source.bias = {whole(*bias)};
    return backend.load_matrix(source, {});
  };
  weights.o_proj = row_parallel(*tensors.o, tensors.o_bias);
  weights.down_proj = row_parallel(*tensors.down, tensors.down_bias);
  MatrixSource gate_up;
  gate_up.format = options.format;
  gate_up.slices = {rows_of(*tensors.gate, rank, world_size), rows_of(*tensors.up, rank, world_size)};
  gate_up.interleave_pairs = true;
  weights.gate_up_proj = backend.load_matrix(gate_up, {});
  return weights;
}

void DecoderFixture::run_rank(const RunOptions& options, const std::vector<std::vector<int32_t>>& prompts, int rank,
                              std::unique_ptr<Comm> comm, LogProbs& logprobs) {
  const int world_size = options.world_size;
  CpuBackendOptions backend_options;
  backend_options.isa = options.isa;
  backend_options.weight_dtype = options.weight_dtype;
  backend_options.compute_f32 = options.compute_f32;
  backend_options.has_int8_acts = !options.compute_f32;
  backend_options.cpus.assign(static_cast<size_t>(options.num_threads), -1);
  backend_options.may_spin = false;
  const std::unique_ptr<Backend> backend = options.make_backend ? options.make_backend(options, std::move(comm))
                                                                : make_cpu_backend(backend_options, std::move(comm));

  DeviceModel model = reference_.model;
  model.num_heads /= world_size;
  model.num_kv_heads = std::max(1, model.num_kv_heads / world_size);
  model.intermediate_size /= world_size;
  model.vocab_begin = shape_.vocab_size * rank / world_size;
  model.vocab_end = shape_.vocab_size * (rank + 1) / world_size;
  MatrixSource vocab_rows;
  vocab_rows.format = options.format;
  vocab_rows.slices = {{embedding_, model.vocab_begin, model.vocab_end - model.vocab_begin, 0, shape_.hidden_size}};
  const std::unique_ptr<Matrix> embedding = backend->load_matrix(vocab_rows, {});
  if (lm_head_ != nullptr) vocab_rows.slices[0].tensor = lm_head_;
  const std::unique_ptr<Matrix> head = lm_head_ == nullptr ? nullptr : backend->load_matrix(vocab_rows, {});
  const std::unique_ptr<Vector> norm = backend->load_vector(whole(*norm_), 0.0f, {});
  std::vector<LayerWeights> layers;
  for (int layer = 0; layer < shape_.num_layers; ++layer)
    layers.push_back(load_layer(*backend, layer, rank, options));

  size_t longest = 0;
  for (const auto& prompt : prompts)
    longest = std::max(longest, prompt.size());
  const int blocks_per_seq = static_cast<int>((longest + options.block_size - 1) / options.block_size);
  const int num_seqs = static_cast<int>(prompts.size());
  DeviceLimits limits;
  limits.max_num_seqs = static_cast<int>(num_seqs * longest);
  limits.max_num_tokens = static_cast<int>(num_seqs * longest);
  limits.block_size = options.block_size;
  const size_t num_groups = model.kv_groups.size();
  limits.num_blocks.assign(num_groups, blocks_per_seq * num_seqs + 1);
  limits.kv_cache_dtype = options.kv_cache_dtype;
  backend->prepare(model, limits);

  // The blocks of the sequences are interleaved and in descending order. Each group begins at another block.
  const auto block_of = [&](size_t group, int s, int b) {
    return ((blocks_per_seq - 1 - b) * num_seqs + s + static_cast<int>(group)) % (blocks_per_seq * num_seqs + 1);
  };

  std::vector<int> done(prompts.size(), 0);
  for (;;) {
    std::vector<int32_t> ids, positions, cu_seqlens{0}, context_lens;
    std::vector<std::vector<int32_t>> slots(num_groups), tables(num_groups);
    std::vector<std::pair<int, int>> origin;  // (prompt, position) of each row
    for (int s = 0; s < num_seqs && static_cast<int>(context_lens.size()) < options.max_num_seqs_per_step; ++s) {
      const int size = static_cast<int>(prompts[s].size());
      const int end = std::min(size, done[s] + std::min(options.prefill_chunk_size, size));
      if (end == done[s]) continue;
      for (int i = done[s]; i < end; ++i) {
        ids.push_back(prompts[s][i]);
        positions.push_back(i);
        for (size_t group = 0; group < num_groups; ++group)
          slots[group].push_back(block_of(group, s, i / options.block_size) * options.block_size +
                                 i % options.block_size);
        origin.emplace_back(s, i);
      }
      // Blocks that no row sees are freed.
      for (size_t group = 0; group < num_groups; ++group)
        for (int b = 0; b < blocks_per_seq; ++b) {
          const int window = options.keeps_unseen_blocks ? 0 : model.kv_groups[group].window;
          const int first_key = first_visible_key(done[s], window);
          tables[group].push_back(b < first_key / options.block_size ? -1 : block_of(group, s, b));
        }
      done[s] = end;
      cu_seqlens.push_back(static_cast<int32_t>(ids.size()));
      context_lens.push_back(end);
    }
    if (ids.empty()) break;
    std::vector<KvGroupInput> groups;
    for (size_t group = 0; group < num_groups; ++group)
      groups.push_back({slots[group], tables[group]});
    const StepInput step{ids, positions, cu_seqlens, context_lens, groups, blocks_per_seq};
    backend->begin_step(step);
    backend->embed(*embedding);
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
      backend->norm_qkv(layer, layers[layer]);
      backend->attention(layer, layers[layer]);
      backend->output_residual(layers[layer]);
      backend->norm_gate_up(layers[layer]);
      backend->down_residual(layers[layer]);
    }
    std::vector<int32_t> rows;
    for (int i = 0; i < static_cast<int>(ids.size()); ++i)
      rows.push_back(i);
    backend->lm_head(*norm, head == nullptr ? *embedding : *head, rows);
    if (rank != 0) continue;
    // The contract does not expose logits, so the tests read the log-probabilities of all ids.
    std::vector<SampleRow> samples(rows.size());
    std::vector<SampleResult> results(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      samples[i].logits_row = static_cast<int>(i);
      samples[i].num_logprobs = static_cast<int>(shape_.vocab_size);
      samples[i].temperature = 0;
    }
    backend->sample(samples, results);
    backend->collect();
    for (size_t i = 0; i < rows.size(); ++i) {
      std::vector<float>& row = logprobs[origin[i].first][origin[i].second];
      // A broken backend may return any id. Then the complete row counts as wrong.
      const auto is_id = [&](int32_t id) { return id >= 0 && id < shape_.vocab_size; };
      const bool is_broken = results[i].has_numeric_error || !is_id(results[i].token_id) ||
                             !std::all_of(results[i].top.begin(), results[i].top.end(),
                                          [&](const TokenLogprob& entry) { return is_id(entry.token_id); });
      if (is_broken) {
        std::fill(row.begin(), row.end(), std::numeric_limits<float>::quiet_NaN());
        continue;
      }
      for (const TokenLogprob& entry : results[i].top)
        row[entry.token_id] = entry.logprob;
      row[results[i].token_id] = results[i].logprob;
    }
  }
}

LogProbs DecoderFixture::run(const RunOptions& options, const std::vector<std::vector<int32_t>>& prompts) {
  LogProbs logprobs;
  for (const auto& prompt : prompts)
    logprobs.emplace_back(prompt.size(), std::vector<float>(static_cast<size_t>(shape_.vocab_size)));
  if (options.world_size == 1) {
    run_rank(options, prompts, 0, nullptr, logprobs);
    return logprobs;
  }
  const std::shared_ptr<ThreadComms> group = make_thread_comms(options.world_size);
  std::vector<std::thread> threads;
  std::exception_ptr error;
  std::mutex mutex;
  for (int rank = 0; rank < options.world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        run_rank(options, prompts, rank, make_thread_comm(group, rank), logprobs);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
        make_thread_comm(group, rank)->abandon();
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  if (error) std::rethrow_exception(error);
  return logprobs;
}

}  // namespace capstan::testing
