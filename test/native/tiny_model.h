#pragma once
// The complete engine on tiny random models, for any device: a checkpoint in a file, and a session that collects the
// results of requests.
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "native/engine/load.h"
#include "test/native/gate.h"

namespace capstan::testing {

// A decoder that is small enough to finish a request in milliseconds.
struct TinyShape {
  int64_t vocab_size = 300, hidden_size = 64, intermediate_size = 128;
  int num_layers = 2, num_heads = 4, num_kv_heads = 2, head_dim = 32;
  bool has_bias = true, has_qk_norm = false, is_tied = false;
  int sliding_window = 0;
  bool has_mtp = false;
  // Layers from the second on are mixtures of experts, if there are any. shared_expert_size: 0 = no shared expert.
  int num_experts = 0, top_k = 0;
  int64_t expert_size = 64, shared_expert_size = 0;
  // kAttention: no layer is recurrent. Otherwise the first one is, with 4 heads of 32 in 2 groups, or as a short
  // convolution of hidden_size channels.
  Mixer first_mixer = Mixer::kAttention;
  bool has_output_gate = false;
  // Of the last layer: -1 = no rotation, 1 = another one than that of the other layers.
  int last_rope = 0;
  // Four layers. The second and the fourth have heads of twice the size, one KV head and no window. The last two read
  // the keys and values of the first two, and their MLPs are twice as wide. All have norms of heads of q, k and v, an
  // input of 32 values and a scale, and mixtures have norms of their parts.
  bool is_gemma4 = false;
  // As in ModelSpec.
  LayerNorms norms = {};
  NormKind norm_kind = NormKind::kRms;
  bool is_parallel = false;
  bool has_gated_mlp = true;  // otherwise the MLP has biases
  Activation activation = Activation::kSilu;
  bool has_sinks = false, has_norm_of_all_heads = false, rotates_before_qk_norm = false;
  double embedding_scale = 1, residual_scale = 1, logit_scale = 1, logit_soft_cap = 0, attention_soft_cap = 0;
  double query_scale_growth = 0;
  bool is_causal = true, has_final_norm = true;
  EmbeddingShape embedding = {};
  Pooling pooling = Pooling::kNone;
  std::vector<HeadLayerSpec> head = {};
};

// A random checkpoint in a temporary file, and the record that loads it on the CPU.
class TinyModel {
 public:
  TinyModel(const TinyShape& shape, DType dtype);
  ~TinyModel();
  TinyModel(const TinyModel&) = delete;
  TinyModel& operator=(const TinyModel&) = delete;

  LoadRequest request() const { return request_; }
  int fd() const { return fd_; }

 private:
  // Adds a tensor. `rows` is 0 for a vector.
  void add(const std::string& name, int64_t rows, int64_t cols, float deviation, float mean = 0);
  // Adds the tensors of a recurrent layer.
  void add_mixer(const std::string& prefix, Mixer mixer);

  DType dtype_;
  int fd_ = -1;
  std::string path_;
  uint64_t end_ = 0;
  LoadRequest request_;
};

struct Answer {
  std::vector<int32_t> token_ids;
  std::vector<float> logprobs;   // per token: of the token, then of its five alternatives
  std::vector<int32_t> top_ids;  // per token: the five alternatives
  std::vector<std::optional<TokenLogprobs>> prompt_logprobs;
  std::vector<float> pooled;
  std::optional<Finish> finish;
  // Compares log-probabilities and pooled values bit by bit.
  bool operator==(const Answer& other) const;
};
constexpr int kNumAlternatives = 5;

class Session {
 public:
  explicit Session(const LoadRequest& request);

  const EngineInfo& info() const { return loaded_.info; }
  Engine& engine() { return *loaded_.engine; }
  // The engine's thread passes it before each emission of events.
  Gate& events() { return events_; }

  RequestId submit(const std::vector<int32_t>& prompt, int max_tokens, float temperature = 0);
  RequestId submit(Request request) { return engine().submit(std::move(request)); }
  Answer wait(RequestId id);
  // Waits until the request has `count` tokens or has finished.
  void wait_for_tokens(RequestId id, size_t count);

 private:
  void gather(const std::vector<Event>& events);

  Gate events_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<RequestId, Answer> answers_;
  LoadedEngine loaded_;
};

using Prompts = std::vector<std::vector<int32_t>>;

// Nine prompts of 1 to 200 tokens; the last two share a prefix.
const Prompts& some_prompts();

constexpr int kMaxTokens = 12;
// Alternates between greedy and sampled requests.
inline float temperature_of(size_t i) {
  return i % 2 ? 0.8f : 0.0f;
}

// Runs the prompts one after another without a prefix cache. All invariants are checked against these answers.
std::vector<Answer> solo_answers(LoadRequest request, int max_tokens = kMaxTokens,
                                 const Prompts& prompts = some_prompts());
// Runs the prompts together: submits all of them before the first one can finish.
std::vector<Answer> batched_answers(Session& session, int max_tokens = kMaxTokens,
                                    const Prompts& prompts = some_prompts());
void expect_same(const std::vector<Answer>& got, const std::vector<Answer>& wanted, const char* what);
// Loads the weights only. Expects that the progress never decreases and that only the last report is complete.
void expect_steady_progress(const LoadRequest& request);

}  // namespace capstan::testing
