#include "test/native/tiny_model.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>

#include "test/native/checkpoint.h"
#include "test/native/testing.h"

namespace capstan::testing {

// Returns CAPSTAN_TEST_ISA, if this machine has that instruction set, or auto.
static std::string wanted_isa() {
  const char* wanted = std::getenv("CAPSTAN_TEST_ISA");
  const std::vector<std::string> available = available_isas();
  return wanted != nullptr && std::ranges::find(available, wanted) != available.end() ? wanted : "auto";
}

static bool is_mixture(const TinyShape& shape, int layer) {
  return shape.num_experts > 0 && layer > 0;
}

constexpr int64_t kLayerInputSize = 32;  // of is_gemma4

static LayerSpec layer_spec(const TinyShape& shape, int layer) {
  LayerSpec spec;
  spec.is_moe = is_mixture(shape, layer);
  if (layer == 0) spec.mixer = shape.first_mixer;
  if (layer == shape.num_layers - 1) spec.window = shape.sliding_window, spec.rope = shape.last_rope;
  if (!shape.is_gemma4) return spec;
  spec.window = layer % 2 == 0 ? shape.sliding_window : 0;
  if (layer % 2 == 1) spec.head_dim = 2 * shape.head_dim, spec.num_kv_heads = 1;
  if (layer >= 2) spec.kv_source = layer - 2, spec.intermediate_size = 2 * shape.intermediate_size;
  return spec;
}

static RecurrentShape recurrent_shape(const TinyShape& model) {
  RecurrentShape shape;
  if (model.first_mixer == Mixer::kShortConv) {
    shape.conv_taps = 3;
    shape.conv_channels = model.hidden_size;
    return shape;
  }
  shape.num_heads = 4, shape.num_groups = 2;
  shape.head_dim = 32, shape.state_size = 16;
  shape.conv_taps = 4;
  shape.conv_channels = shape.output_size() + 2 * shape.num_groups * shape.state_size;
  return shape;
}

TinyModel::TinyModel(const TinyShape& shape, DType dtype) : dtype_(dtype) {
  request_.device.isa = wanted_isa();
  char path[] = "/tmp/capstan-model-XXXXXX";
  fd_ = ::mkstemp(path);
  path_ = path;
  add("embed_tokens.weight", shape.vocab_size, shape.hidden_size, 0.5f);
  const auto outer_norm = [&](const std::string& name, int64_t size, bool is_there) {
    if (is_there) add(name + ".weight", 0, size, 0.2f, 1);
    if (is_there && shape.pooling != Pooling::kNone && shape.norm_kind == NormKind::kLayer)
      add(name + ".bias", 0, size, 0.2f);
  };
  outer_norm("norm", shape.hidden_size, shape.has_final_norm);
  outer_norm("embed_norm", shape.hidden_size, shape.embedding.has_norm);
  const auto table = [&](const std::string& name, int64_t rows, int64_t cols) {
    if (rows > 0) add(name, rows, cols, 0.5f);
  };
  table("position_embeddings.weight", shape.embedding.num_positions, shape.hidden_size);
  table("token_type_embeddings.weight", shape.embedding.num_token_types, shape.hidden_size);
  table("distance_biases.weight", shape.embedding.num_distances, shape.num_heads);
  int64_t inputs = shape.hidden_size;
  for (size_t i = 0; i < shape.head.size(); ++i) {
    const std::string name = "head." + std::to_string(i);
    const int64_t outputs = shape.head[i].output_size;
    if (shape.head[i].token_ids.empty()) {
      add(name + ".weight", outputs, inputs, 1.3f / std::sqrt(static_cast<float>(inputs)));
      add(name + ".bias", 0, outputs, 0.3f);
    }
    outer_norm(name + ".norm", outputs, shape.head[i].has_norm);
    inputs = outputs;
  }
  if (!shape.is_tied)
    add("lm_head.weight", shape.vocab_size, shape.hidden_size, 2 / std::sqrt(static_cast<float>(shape.hidden_size)));
  if (shape.has_mtp) {
    add("mtp.fc.weight", shape.hidden_size, 2 * shape.hidden_size,
        1 / std::sqrt(static_cast<float>(shape.hidden_size)));
    for (const char* norm : {"embedding_norm", "hidden_norm", "norm"})
      add(std::string("mtp.") + norm + ".weight", 0, shape.hidden_size, 0.2f, 1);
  }
  const int num_layers = shape.num_layers + (shape.has_mtp ? 1 : 0);
  request_.spec.hidden_size = shape.hidden_size;
  request_.spec.head_dim = shape.head_dim, request_.spec.num_kv_heads = shape.num_kv_heads;
  request_.spec.intermediate_size = shape.intermediate_size;
  if (shape.is_gemma4) {
    const int64_t width = shape.num_layers * kLayerInputSize;
    add("per_layer_table.weight", shape.vocab_size, width, 0.3f);
    add("per_layer_projection.weight", width, shape.hidden_size, 1);
    add("per_layer_norm.weight", 0, kLayerInputSize, 0.2f, 1);
  }
  if (shape.first_mixer != Mixer::kAttention) request_.spec.recurrent = recurrent_shape(shape);
  for (int layer = 0; layer < num_layers; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    const LayerSpec& spec = request_.spec.layers.emplace_back(layer_spec(shape, layer));
    const bool has_keys = spec.kv_source < 0;
    const int head_dim = request_.spec.head_dim_of(spec);
    const int64_t q_size = int64_t{shape.num_heads} * head_dim,
                  kv_size = int64_t{request_.spec.num_kv_heads_of(spec)} * head_dim;
    const auto linear = [&](const std::string& name, int64_t rows, int64_t cols, bool has_bias) {
      add(prefix + name + ".weight", rows, cols, 1.3f / std::sqrt(static_cast<float>(cols)));
      if (has_bias) add(prefix + name + ".bias", 0, rows, 0.3f);
    };
    const auto norm = [&](const std::string& name, bool is_there) {
      if (is_there) add(prefix + name + ".weight", 0, shape.hidden_size, 0.2f, 1);
      if (is_there && shape.norm_kind == NormKind::kLayer) add(prefix + name + ".bias", 0, shape.hidden_size, 0.2f);
    };
    norm("input_norm", shape.norms.input);
    norm("mlp_norm", shape.norms.mlp);
    norm("attention_out_norm", shape.norms.attention_out);
    norm("mlp_out_norm", shape.norms.mlp_out);
    if (layer == 0 && shape.first_mixer != Mixer::kAttention) {
      add_mixer(prefix, shape.first_mixer);
    } else {
      linear("q_proj", (shape.has_output_gate ? 2 : 1) * q_size, shape.hidden_size, shape.has_bias);
      if (has_keys) linear("k_proj", kv_size, shape.hidden_size, shape.has_bias);
      if (has_keys) linear("v_proj", kv_size, shape.hidden_size, shape.has_bias);
      linear("o_proj", shape.hidden_size, q_size, false);
      if (shape.has_sinks) add(prefix + "sinks", 0, shape.num_heads, 1);
    }
    const auto mlp = [&](const std::string& of, int64_t size, bool has_bias) {
      if (shape.has_gated_mlp) linear(of + "gate_proj", size, shape.hidden_size, false);
      linear(of + "up_proj", size, shape.hidden_size, !shape.has_gated_mlp);
      linear(of + "down_proj", shape.hidden_size, size, has_bias);
    };
    if (is_mixture(shape, layer)) {
      linear("router", shape.num_experts, shape.hidden_size, shape.has_bias);
      for (int expert = 0; expert < shape.num_experts; ++expert)
        mlp("experts." + std::to_string(expert) + ".", shape.expert_size, shape.has_bias);
      if (shape.shared_expert_size > 0) {
        if (!shape.is_gemma4) linear("shared_gate", 1, shape.hidden_size, false);
        mlp("shared_expert.", shape.shared_expert_size, shape.has_bias);
      }
    } else {
      mlp("", request_.spec.intermediate_size_of(spec), !shape.has_gated_mlp);
    }
    for (const char* part : {"router_norm", "expert_norm", "expert_out_norm", "shared_out_norm"})
      norm(part, shape.is_gemma4 && spec.is_moe);
    if (shape.is_gemma4) {
      linear("per_layer_gate", kLayerInputSize, shape.hidden_size, false);
      linear("per_layer_projection", shape.hidden_size, kLayerInputSize, false);
      norm("per_layer_norm", true);
      add(prefix + "layer_scale", 0, 1, 0.1f, 0.7f);
    }
    if (shape.activation == Activation::kXielu)
      for (const char* value : {"xielu.alpha_p", "xielu.alpha_n", "xielu.beta"})
        add(prefix + value, 0, 1, 0.3f, 0.5f);
    if (shape.has_qk_norm && (layer > 0 || shape.first_mixer == Mixer::kAttention)) {
      add(prefix + "q_norm.weight", 0, shape.has_norm_of_all_heads ? q_size : head_dim, 0.2f, 1);
      if (has_keys) add(prefix + "k_norm.weight", 0, shape.has_norm_of_all_heads ? kv_size : head_dim, 0.2f, 1);
    }
  }
  ModelSpec& spec = request_.spec;
  spec.vocab_size = shape.vocab_size;
  spec.num_heads = shape.num_heads;
  spec.tie_word_embeddings = shape.is_tied;
  if (shape.has_qk_norm) spec.qk_norm = shape.has_norm_of_all_heads ? QkNorm::kAllHeads : QkNorm::kHead;
  spec.rotates_before_qk_norm = shape.rotates_before_qk_norm;
  spec.norms = shape.norms, spec.norm_kind = shape.norm_kind;
  spec.has_gated_mlp = shape.has_gated_mlp;
  spec.is_parallel = shape.is_parallel, spec.activation = shape.activation, spec.has_sinks = shape.has_sinks;
  spec.embedding_scale = shape.embedding_scale, spec.residual_scale = shape.residual_scale;
  spec.logit_scale = shape.logit_scale, spec.logit_soft_cap = shape.logit_soft_cap;
  spec.attention_soft_cap = shape.attention_soft_cap;
  spec.attention_scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  spec.has_output_gate = shape.has_output_gate;
  spec.has_v_norm = spec.has_layer_scales = shape.is_gemma4;
  spec.per_layer_input_size = shape.is_gemma4 ? kLayerInputSize : 0;
  spec.moe.has_separate_norms = shape.is_gemma4 && shape.num_experts > 0;
  spec.moe.num_experts = shape.num_experts;
  spec.moe.top_k = shape.top_k;
  spec.moe.intermediate_size = shape.num_experts > 0 ? shape.expert_size : 0;
  spec.moe.shared_intermediate_size = shape.shared_expert_size;
  spec.has_mtp = shape.has_mtp;
  spec.is_causal = shape.is_causal, spec.has_final_norm = shape.has_final_norm;
  spec.embedding = shape.embedding, spec.pooling = shape.pooling, spec.head = shape.head;
  RopeSpec& rope = spec.ropes.emplace_back();
  rope.rotary_dim = shape.head_dim;
  rope.original_max_positions = spec.max_position_embeddings = 400;
  rope.query_scale_growth = shape.query_scale_growth;
  if (shape.last_rope > 0) {
    RopeSpec other = rope;
    other.theta = 100, other.rotary_dim = shape.head_dim / 2;
    spec.ropes.push_back(other);
  }
  request_.files = {path_};
  request_.tokenizer.vocabulary = std::make_shared<Vocabulary>();
  request_.tokenizer.vocabulary->offsets.push_back(0);
  for (int64_t id = 0; id < shape.vocab_size; ++id) {
    request_.tokenizer.vocabulary->bytes += static_cast<char>('a' + id % 26);
    request_.tokenizer.vocabulary->offsets.push_back(
        static_cast<uint32_t>(request_.tokenizer.vocabulary->bytes.size()));
    request_.tokenizer.vocabulary->is_special.push_back(0);
  }
  request_.device.weight_dtype = dtype;
  request_.device.num_threads = 1;
  request_.device.device = "cpu";
  if (dtype == DType::kBf16) request_.compute = ComputeChoice::kBf16;
  request_.kv_cache_bytes = 4 << 20;
  request_.max_model_len = 320;
}

TinyModel::~TinyModel() {
  ::close(fd_);
  ::unlink(path_.c_str());
}

void TinyModel::add(const std::string& name, int64_t rows, int64_t cols, float deviation, float mean) {
  auto values = random_values(std::hash<std::string>{}(name), std::max<int64_t>(rows, 1) * cols, deviation);
  std::string bytes;
  for (float value : values) {
    value += mean;
    // Truncates to bf16: the exact values do not matter.
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (dtype_ == DType::kBf16)
      bytes.append({static_cast<char>(bits >> 16), static_cast<char>(bits >> 24)});
    else
      bytes.append(reinterpret_cast<const char*>(&value), 4);
  }
  TensorEntry entry;
  entry.name = name;
  entry.offset = end_;
  entry.dtype = dtype_ == DType::kBf16 ? DType::kBf16 : DType::kF32;
  entry.shape = rows > 0 ? std::vector<int64_t>{rows, cols} : std::vector<int64_t>{cols};
  EXPECT(::write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  end_ += bytes.size();
  request_.tensors.push_back(entry);
}

void TinyModel::add_mixer(const std::string& prefix, Mixer mixer) {
  const RecurrentShape& shape = request_.spec.recurrent;
  const int64_t values = shape.output_size(), keys = int64_t{shape.num_groups} * shape.state_size;
  const auto linear = [&](const std::string& name, int64_t rows, int64_t cols) {
    add(prefix + name + ".weight", rows, cols, 1.3f / std::sqrt(static_cast<float>(cols)));
  };
  const int64_t hidden_size = request_.spec.hidden_size;
  linear("o_proj", hidden_size, values);
  linear("conv", shape.conv_channels, shape.conv_taps);
  if (mixer == Mixer::kShortConv) return linear("in_proj", 3 * shape.conv_channels, hidden_size);
  add(prefix + "a_log", 0, shape.num_heads, 0.5f);
  add(prefix + "dt_bias", 0, shape.num_heads, 1);
  if (mixer == Mixer::kMamba2) {
    linear("in_proj", 2 * values + 2 * keys + shape.num_heads, hidden_size);
    add(prefix + "skip", 0, shape.num_heads, 1);
    return add(prefix + "mixer_norm.weight", 0, values, 0.2f, 1);
  }
  linear("in_proj_qkv", values + 2 * keys, hidden_size);
  linear("in_proj_z", values, hidden_size);
  linear("in_proj_a", shape.num_heads, hidden_size);
  linear("in_proj_b", shape.num_heads, hidden_size);
  add(prefix + "mixer_norm.weight", 0, shape.head_dim, 0.2f, 1);
}

bool Answer::operator==(const Answer& other) const {
  const auto has_same_bits = [](float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); };
  return token_ids == other.token_ids && top_ids == other.top_ids &&
         std::ranges::equal(logprobs, other.logprobs, has_same_bits) &&
         std::ranges::equal(pooled, other.pooled, has_same_bits);
}

Session::Session(const LoadRequest& request)
    : loaded_(load_engine(request, [](int64_t, int64_t) {}, [this](std::vector<Event>&& events) { gather(events); })) {}

RequestId Session::submit(const std::vector<int32_t>& prompt, int max_tokens, float temperature) {
  Request request;
  request.prompt_token_ids = prompt;
  request.sampling.temperature = temperature;
  request.sampling.seed = 11;
  request.sampling.max_tokens = max_tokens;
  request.sampling.num_logprobs = kNumAlternatives;
  return submit(std::move(request));
}

Answer Session::wait(RequestId id) {
  std::unique_lock lock(mutex_);
  EXPECT(arrived_.wait_for(lock, std::chrono::seconds(300), [&] { return answers_[id].finish.has_value(); }));
  return answers_[id];
}

void Session::wait_for_tokens(RequestId id, size_t count) {
  std::unique_lock lock(mutex_);
  EXPECT(arrived_.wait_for(lock, std::chrono::seconds(300),
                           [&] { return answers_[id].finish.has_value() || answers_[id].token_ids.size() >= count; }));
}

void Session::gather(const std::vector<Event>& events) {
  events_.pass();
  const std::lock_guard lock(mutex_);
  for (const Event& event : events) {
    Answer& answer = answers_[event.request_id];
    answer.token_ids.insert(answer.token_ids.end(), event.token_ids.begin(), event.token_ids.end());
    for (const TokenLogprobs& logprobs : event.logprobs) {
      answer.logprobs.push_back(logprobs.logprob);
      for (const auto& [id, logprob] : logprobs.top)
        answer.logprobs.push_back(logprob), answer.top_ids.push_back(id);
    }
    if (!event.prompt_logprobs.empty()) answer.prompt_logprobs = event.prompt_logprobs;
    if (!event.pooled.empty()) answer.pooled = event.pooled;
    if (event.finish) answer.finish = event.finish;
  }
  arrived_.notify_all();
}

void expect_steady_progress(const LoadRequest& request) {
  std::vector<int64_t> reports;
  int64_t all = 0;
  const auto observe = [&](int64_t done, int64_t total) {
    reports.push_back(done);
    all = total;
    if (done >= total) throw Error(ErrorCode::kAborted, "the weights are loaded");
  };
  EXPECT_ERROR("aborted", load_engine(request, observe, [](std::vector<Event>&&) {}));
  EXPECT(reports.size() > request.tensors.size() / 2 && std::ranges::is_sorted(reports) && reports.back() == all);
  // Biases are reported only at the end. Tensors that several ranks read count more than once before.
  int64_t bias_bytes = 0;
  for (const TensorEntry& entry : request.tensors)
    if (entry.name.ends_with(".bias")) bias_bytes += entry.shape[0] * static_cast<int64_t>(dtype_size(entry.dtype));
  const int64_t last = reports[reports.size() - 2];
  EXPECT(request.device.world_size == 1 ? last == all - bias_bytes : last >= all - bias_bytes && last < all);
}

const Prompts& some_prompts() {
  static const Prompts all = [] {
    std::mt19937 random(12);
    Prompts prompts;
    for (const int length : {1, 7, 16, 33, 64, 100, 129, 200}) {
      prompts.emplace_back();
      for (int i = 0; i < length; ++i)
        prompts.back().push_back(static_cast<int32_t>(random() % 300));
    }
    // The last two share a prefix.
    prompts.push_back(prompts.back());
    prompts.back().resize(150);
    prompts.back().push_back(5);
    return prompts;
  }();
  return all;
}

std::vector<Answer> solo_answers(LoadRequest request, int max_tokens, const Prompts& prompts) {
  request.has_prefix_cache = false;
  Session session(request);
  std::vector<Answer> answers;
  for (size_t i = 0; i < prompts.size(); ++i)
    answers.push_back(session.wait(session.submit(prompts[i], max_tokens, temperature_of(i))));
  return answers;
}

std::vector<Answer> batched_answers(Session& session, int max_tokens, const Prompts& prompts) {
  std::vector<RequestId> ids;
  session.events().close();
  for (size_t i = 0; i < prompts.size(); ++i)
    ids.push_back(session.submit(prompts[i], max_tokens, temperature_of(i)));
  session.events().open();
  std::vector<Answer> answers;
  for (const RequestId id : ids)
    answers.push_back(session.wait(id));
  return answers;
}

void expect_same(const std::vector<Answer>& got, const std::vector<Answer>& wanted, const char* what) {
  for (size_t i = 0; i < wanted.size(); ++i)
    if (!(got[i] == wanted[i]))
      fail(what, static_cast<int>(i), "the answer to this prompt differs from its solo answer");
}

}  // namespace capstan::testing
