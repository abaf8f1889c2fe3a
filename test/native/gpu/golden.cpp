// Compares the models of test/oracle/fixtures on a CUDA device with the answers of transformers, without JavaScript.
// test/oracle/records.ts writes the input of the engine to the file that CAPSTAN_GOLDEN_RECORDS names. Without that
// file these tests print a note and pass.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "test/native/gpu/device.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

struct GoldenPrompt {
  std::vector<int32_t> prompt_ids, greedy_ids;
  std::vector<double> margins;
  std::vector<std::vector<double>> top;  // (id, log-probability) pairs per step
};

// An input of a model that pools.
struct GoldenInput {
  std::vector<int32_t> token_ids, token_types;
  std::vector<float> result;  // the embedding, or the score
};

struct GoldenModel {
  std::string name;
  double worst = 0, mean = 0;  // limits
  LoadRequest request;
  std::vector<GoldenPrompt> prompts;
  int scored = 0;                       // index of the prompt with known prompt log-probabilities
  std::vector<double> scored_logprobs;  // starting with its second token
  std::string task;                     // of its inputs: embed, or how a result becomes a score
  std::vector<GoldenInput> inputs;
};

template <class T>
std::vector<T> read_list(std::istream& in) {
  size_t count = 0;
  in >> count;
  std::vector<T> values(count);
  for (T& value : values)
    in >> value;
  return values;
}

template <class T>
T one_of(const std::string& name, const std::vector<std::pair<const char*, T>>& names) {
  for (const auto& [known, value] : names)
    if (name == known) return value;
  throw Error(ErrorCode::kInvalidArgument, "golden records: unknown word " + name);
}

DType read_dtype(std::istream& in) {
  std::string name;
  in >> name;
  return one_of<DType>(name, {{"bf16", DType::kBf16}, {"f16", DType::kF16}, {"f32", DType::kF32}});
}

void expect_word(std::istream& in, const char* wanted) {
  std::string word;
  if (!(in >> word) || word != wanted)
    throw Error(ErrorCode::kInvalidArgument, std::string("golden records: expected ") + wanted + ", got " + word);
}

RopeSpec read_rope(std::istream& in) {
  RopeSpec rope;
  std::string word;
  in >> word >> rope.theta >> rope.rotary_dim >> rope.factor >> rope.original_max_positions >> rope.low_freq_factor >>
      rope.high_freq_factor >> rope.beta_fast >> rope.beta_slow >> rope.truncate >> rope.attention_factor >>
      rope.query_scale_growth;
  for (const std::string& divisor : read_list<std::string>(in))
    rope.frequency_divisors.push_back(std::stof(divisor));  // unlike >>, reads Infinity
  rope.type = one_of<RopeType>(word, {{"default", RopeType::kDefault},
                                      {"linear", RopeType::kLinear},
                                      {"dynamic", RopeType::kDynamic},
                                      {"llama3", RopeType::kLlama3},
                                      {"yarn", RopeType::kYarn}});
  return rope;
}

Activation read_activation(std::istream& in) {
  std::string word;
  in >> word;
  return one_of<Activation>(word, {{"silu", Activation::kSilu},
                                   {"gelu", Activation::kGelu},
                                   {"gelu_tanh", Activation::kGeluTanh},
                                   {"clamped_swish", Activation::kClampedSwish},
                                   {"relu", Activation::kRelu},
                                   {"tanh", Activation::kTanh},
                                   {"identity", Activation::kIdentity},
                                   {"xielu", Activation::kXielu}});
}

void read_pooling(std::istream& in, ModelSpec& spec) {
  EmbeddingShape& embedding = spec.embedding;
  expect_word(in, "encoder");
  in >> spec.is_causal >> spec.has_final_norm >> spec.norms.is_of_sum >> embedding.num_positions >>
      embedding.position_offset >> embedding.num_token_types >> embedding.has_norm >> embedding.num_distances;
  expect_word(in, "head");
  std::string word;
  size_t count = 0;
  in >> word >> count;
  spec.pooling = one_of<Pooling>(word, {{"none", Pooling::kNone},
                                        {"last", Pooling::kLast},
                                        {"mean", Pooling::kMean},
                                        {"first", Pooling::kFirst},
                                        {"max", Pooling::kMax},
                                        {"weighted_mean", Pooling::kWeightedMean},
                                        {"root_mean", Pooling::kRootMean}});
  for (size_t i = 0; i < count; ++i) {
    HeadLayerSpec& layer = spec.head.emplace_back();
    in >> layer.output_size;
    layer.activation = read_activation(in);
    in >> layer.has_norm;
    layer.token_ids = read_list<int32_t>(in);
  }
}

void read_request(std::istream& in, LoadRequest& request) {
  size_t count = 0;
  expect_word(in, "files");
  in >> count;
  request.files.resize(count);
  for (std::string& file : request.files)
    in >> file;
  expect_word(in, "tensors");
  in >> count;
  request.tensors.resize(count);
  for (TensorEntry& tensor : request.tensors) {
    in >> tensor.name >> tensor.file_idx >> tensor.offset;
    tensor.dtype = read_dtype(in);
    tensor.shape = read_list<int64_t>(in);
    in >> tensor.paired_head_dim >> tensor.paired_rows >> tensor.is_transposed;
  }
  ModelSpec& spec = request.spec;
  std::string word;
  int num_layers = 0;
  expect_word(in, "spec");
  in >> spec.vocab_size >> spec.hidden_size >> spec.intermediate_size >> num_layers >> spec.num_heads >>
      spec.num_kv_heads >> spec.head_dim >> spec.rms_norm_eps;
  spec.activation = read_activation(in);
  in >> spec.tie_word_embeddings >> spec.attention_scale >> spec.max_position_embeddings >> word;
  spec.qk_norm =
      one_of<QkNorm>(word, {{"none", QkNorm::kNone}, {"head", QkNorm::kHead}, {"all_heads", QkNorm::kAllHeads}});
  in >> spec.has_output_gate >> spec.norm_offset;
  expect_word(in, "norms");
  in >> spec.norms.input >> spec.norms.attention_out >> spec.norms.mlp >> spec.norms.mlp_out >> word;
  spec.norm_kind = one_of<NormKind>(word, {{"rms", NormKind::kRms}, {"layer", NormKind::kLayer}});
  in >> spec.is_parallel >> spec.has_gated_mlp >> spec.rotates_before_qk_norm >> spec.has_v_norm;
  expect_word(in, "scales");
  in >> spec.embedding_scale >> spec.residual_scale >> spec.logit_scale >> spec.logit_soft_cap >>
      spec.attention_soft_cap >> spec.has_sinks;
  expect_word(in, "per_layer");
  in >> spec.per_layer_input_size >> spec.has_layer_scales;
  expect_word(in, "moe");
  Moe& moe = spec.moe;
  in >> moe.num_experts >> moe.top_k >> moe.num_groups >> moe.top_groups >> moe.intermediate_size >>
      moe.shared_intermediate_size >> word >> moe.normalizes_weights >> moe.weight_scale >> moe.logit_scale >>
      moe.has_separate_norms;
  moe.score = one_of<RouterScore>(word, {{"softmax", RouterScore::kSoftmax}, {"sigmoid", RouterScore::kSigmoid}});
  expect_word(in, "layers");
  for (int i = 0; i < num_layers; ++i) {
    LayerSpec& layer = spec.layers.emplace_back();
    in >> word >> layer.window >> layer.rope >> layer.is_moe >> layer.lacks_input_norm >> layer.head_dim >>
        layer.num_kv_heads >> layer.intermediate_size >> layer.kv_source;
    layer.mixer = one_of<Mixer>(word, {{"attention", Mixer::kAttention},
                                       {"delta_net", Mixer::kDeltaNet},
                                       {"short_conv", Mixer::kShortConv},
                                       {"mamba2", Mixer::kMamba2}});
  }
  expect_word(in, "recurrent");
  RecurrentShape& recurrent = spec.recurrent;
  in >> recurrent.num_heads >> recurrent.num_groups >> recurrent.head_dim >> recurrent.state_size >>
      recurrent.conv_taps >> recurrent.conv_channels;
  expect_word(in, "ropes");
  in >> count;
  for (size_t i = 0; i < count; ++i)
    spec.ropes.push_back(read_rope(in));
  read_pooling(in, spec);
}

bool read_model(std::istream& in, GoldenModel& model) {
  std::string word;
  if (!(in >> word)) return false;
  LoadRequest& request = model.request;
  in >> model.name;
  request.device.weight_dtype = read_dtype(in);
  in >> request.max_model_len >> model.worst >> model.mean;
  read_request(in, request);
  expect_word(in, "prompts");
  size_t count = 0;
  in >> count;
  model.prompts.resize(count);
  for (GoldenPrompt& prompt : model.prompts) {
    prompt.prompt_ids = read_list<int32_t>(in);
    prompt.greedy_ids = read_list<int32_t>(in);
    prompt.margins = read_list<double>(in);
    for (size_t step = 0; step < prompt.greedy_ids.size(); ++step)
      prompt.top.push_back(read_list<double>(in));
  }
  expect_word(in, "scored");
  in >> model.scored;
  model.scored_logprobs = read_list<double>(in);
  expect_word(in, "pooled");
  in >> model.task >> count;
  for (size_t i = 0; i < count; ++i) {
    GoldenInput& input = model.inputs.emplace_back();
    input.token_ids = read_list<int32_t>(in);
    input.token_types = read_list<int32_t>(in);
    input.result = read_list<float>(in);
  }
  if (!in) throw Error(ErrorCode::kInvalidArgument, "golden records: " + model.name + " is truncated");
  // The limits are for the CPU, which computes f16 models in f32. Here activations, keys and values have 16 bits.
  if (request.device.weight_dtype == DType::kF16) model.worst *= 2;
  request.device.device = "cuda";
  request.tokenizer.vocabulary = std::make_shared<Vocabulary>();
  request.tokenizer.vocabulary->offsets.assign(static_cast<size_t>(request.spec.vocab_size) + 1, 0);
  request.tokenizer.vocabulary->is_special.assign(static_cast<size_t>(request.spec.vocab_size), 0);
  return true;
}

std::vector<GoldenModel> golden_models(bool is_pooled) {
  const char* file = std::getenv("CAPSTAN_GOLDEN_RECORDS");
  std::vector<GoldenModel> models;
  if (file == nullptr || *file == '\0') {
    std::printf("  skipped: no golden records (npm run gpu -- records writes them)\n");
    return models;
  }
  std::ifstream in(file);
  if (!in) throw Error(ErrorCode::kIo, std::string("golden records: ") + file + " cannot be opened");
  int64_t num_models = 0;
  for (GoldenModel model; read_model(in, model); model = {})
    if (model.inputs.empty() != is_pooled && takes_case(num_models++, 3)) models.push_back(model);
  EXPECT(!models.empty());
  if (is_full_run()) return models;
  // An emulated device has little memory and warms up slowly for larger limits.
  for (GoldenModel& model : models)
    model.request.kv_cache_bytes = 16 << 20, model.request.max_num_batched_tokens = 96, model.request.max_num_seqs = 8;
  return models;
}

// Collects differences as test/oracle/golden.ts does.
struct Comparison {
  const GoldenModel& model;
  double worst = 0, sum = 0;
  int64_t count = 0, num_equal = 0, num_steps = 0;

  void add(double got, double wanted, const std::string& what) {
    const double difference = std::abs(got - wanted);
    sum += difference, ++count;
    if (!(difference <= worst)) worst = difference;
    if (!(difference <= model.worst))
      fail(model.name.c_str(), 0, what + ": " + show(got) + ", expected " + show(wanted));
  }

  // Compares steps until the tokens differ, which is allowed only if transformers is near a tie.
  void add_answer(const GoldenPrompt& prompt, const std::vector<TokenLogprobs>& answer, const std::string& what) {
    EXPECT(answer.size() <= prompt.greedy_ids.size());
    for (size_t step = 0; step < answer.size(); ++step) {
      for (size_t i = 0; i + 1 < prompt.top[step].size(); i += 2) {
        const auto id = static_cast<int32_t>(prompt.top[step][i]);
        const auto found = std::ranges::find_if(answer[step].top, [&](const auto& entry) { return entry.first == id; });
        if (found == answer[step].top.end())
          fail(model.name.c_str(), static_cast<int>(step),
               what + ": token " + std::to_string(id) + " is not among the most likely");
        else
          add(found->second, prompt.top[step][i + 1], what + ", step " + std::to_string(step));
      }
      ++num_steps;
      if (answer[step].token_id == prompt.greedy_ids[step]) {
        ++num_equal;
        continue;
      }
      if (prompt.margins[step] > 2 * model.worst)
        fail(model.name.c_str(), static_cast<int>(step), what + ": wrong token, margin " + show(prompt.margins[step]));
      return;
    }
  }
};

TEST(cuda_golden_models_answer_like_transformers) {
  for (const GoldenModel& model : golden_models(false)) {
    std::mutex mutex;
    std::condition_variable arrived;
    std::map<RequestId, std::vector<TokenLogprobs>> answers;
    std::map<RequestId, std::vector<std::optional<TokenLogprobs>>> prompt_logprobs;
    std::map<RequestId, FinishReason> finished;
    const LoadedEngine loaded = load_engine(
        model.request, [](int64_t, int64_t) {},
        [&](std::vector<Event>&& events) {
          const std::lock_guard lock(mutex);
          for (const Event& event : events) {
            auto& answer = answers[event.request_id];
            answer.insert(answer.end(), event.logprobs.begin(), event.logprobs.end());
            if (!event.prompt_logprobs.empty()) prompt_logprobs[event.request_id] = event.prompt_logprobs;
            if (event.finish) finished[event.request_id] = event.finish->reason;
          }
          arrived.notify_all();
        });
    Comparison comparison{model};
    // Submits all prompts at once, so that shared prefixes come from the cache.
    std::vector<RequestId> ids;
    // An emulated device takes half a second for the four shortest prompts. The last of them exceeds the window of all
    // models.
    const size_t num_prompts = is_full_run() ? model.prompts.size() : std::min<size_t>(model.prompts.size(), 4);
    for (size_t i = 0; i < num_prompts; ++i) {
      Request request;
      request.prompt_token_ids = model.prompts[i].prompt_ids;
      request.sampling.temperature = 0;
      request.sampling.max_tokens = is_full_run() ? static_cast<int>(model.prompts[i].greedy_ids.size()) : 3;
      request.sampling.num_logprobs = 10;
      request.sampling.is_eos_ignored = true;
      if (static_cast<int>(i) == model.scored) request.sampling.num_prompt_logprobs = 0;
      ids.push_back(loaded.engine->submit(std::move(request)));
    }
    {
      std::unique_lock lock(mutex);
      EXPECT(arrived.wait_for(lock, std::chrono::seconds(600), [&] { return finished.size() == ids.size(); }));
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT(finished[ids[i]] == FinishReason::kLength);
      comparison.add_answer(model.prompts[i], answers[ids[i]], "prompt " + std::to_string(i));
      if (static_cast<int>(i) != model.scored) continue;
      const auto& scored = prompt_logprobs[ids[i]];
      EXPECT_EQ(scored.size(), model.scored_logprobs.size() + 1);
      for (size_t p = 1; p < scored.size(); ++p)
        comparison.add(scored[p]->logprob, model.scored_logprobs[p - 1], "prompt log-probability " + std::to_string(p));
    }
    const double mean = comparison.count == 0 ? 0 : comparison.sum / static_cast<double>(comparison.count);
    if (!(mean <= model.mean)) fail(model.name.c_str(), 0, "mean difference " + show(mean));
    std::printf("  %s: worst %.1e, mean %.1e, %lld of %lld tokens equal\n", model.name.c_str(), comparison.worst, mean,
                static_cast<long long>(comparison.num_equal), static_cast<long long>(comparison.num_steps));
  }
}

double cosine(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::nan("");
  double product = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = a[i], y = b[i];
    product += x * y, aa += x * x, bb += y * y;
  }
  return product / std::sqrt(aa * bb);
}

// As `Pooler` of the library makes a score of a result.
double score_of(const std::string& task, const std::vector<float>& result) {
  const double value = task == "yes_no" ? static_cast<double>(result[0]) - static_cast<double>(result[1]) : result[0];
  return task == "identity" ? value : 1 / (1 + std::exp(-value));
}

TEST(cuda_golden_models_pool_like_transformers) {
  for (const GoldenModel& model : golden_models(true)) {
    Session session(model.request);
    std::vector<RequestId> ids;
    for (const GoldenInput& input : model.inputs) {
      Request request;
      request.prompt_token_ids = input.token_ids;
      request.token_types = input.token_types;
      request.is_pooled = true;
      request.sampling.max_tokens = 0;
      ids.push_back(session.submit(std::move(request)));
    }
    double worst = model.task == "embed" ? 1 : 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      const std::vector<float> got = session.wait(ids[i]).pooled, &wanted = model.inputs[i].result;
      if (model.task == "embed")
        worst = std::min(worst, cosine(got, wanted));
      else
        worst = std::max(worst, std::abs(score_of(model.task, got) - static_cast<double>(wanted[0])) /
                                    std::max(1.0, std::abs(static_cast<double>(wanted[0]))));
    }
    if (model.task == "embed" ? !(worst > 0.9999) : !(worst < 0.005)) fail(model.name.c_str(), 0, show(worst));
    std::printf("  %s: %s %.6f over %zu inputs\n", model.name.c_str(),
                model.task == "embed" ? "smallest cosine" : "largest difference", worst, ids.size());
  }
}

}  // namespace
}  // namespace capstan::testing
