// The whole engine on tiny random models: what must not change a bit. Options, memory, company in the batch, chunks, cache hits, threads and ranks
// leave every token and every log-probability as it is.
#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "native/engine/load.h"
#include "test/native/checkpoint.h"
#include "test/native/testing.h"

namespace capstan {
namespace {

struct Shape {
  int64_t vocab_size = 300, hidden_size = 64, intermediate_size = 128;
  int num_layers = 2, num_heads = 4, num_kv_heads = 2, head_dim = 32;
  bool has_bias = true, has_qk_norm = false, is_tied = false;
  int sliding_window = 0;
};

// A random checkpoint in a file of its own, and the request that loads it.
class TinyModel {
 public:
  TinyModel(const Shape& shape, DType dtype) : dtype_(dtype) {
    char path[] = "/tmp/capstan-model-XXXXXX";
    fd_ = ::mkstemp(path);
    path_ = path;
    const int64_t q_size = int64_t{shape.num_heads} * shape.head_dim, kv_size = int64_t{shape.num_kv_heads} * shape.head_dim;
    add("embed_tokens.weight", shape.vocab_size, shape.hidden_size, 0.5f);
    add("norm.weight", 0, shape.hidden_size, 0.2f, 1);
    if (!shape.is_tied) add("lm_head.weight", shape.vocab_size, shape.hidden_size, 2 / std::sqrt(static_cast<float>(shape.hidden_size)));
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      const std::string prefix = "layers." + std::to_string(layer) + ".";
      const auto linear = [&](const char* name, int64_t rows, int64_t cols, bool has_bias) {
        add(prefix + name + ".weight", rows, cols, 1.3f / std::sqrt(static_cast<float>(cols)));
        if (has_bias) add(prefix + name + ".bias", 0, rows, 0.3f);
      };
      add(prefix + "input_norm.weight", 0, shape.hidden_size, 0.2f, 1);
      add(prefix + "post_attention_norm.weight", 0, shape.hidden_size, 0.2f, 1);
      linear("q_proj", q_size, shape.hidden_size, shape.has_bias);
      linear("k_proj", kv_size, shape.hidden_size, shape.has_bias);
      linear("v_proj", kv_size, shape.hidden_size, shape.has_bias);
      linear("o_proj", shape.hidden_size, q_size, false);
      linear("gate_proj", shape.intermediate_size, shape.hidden_size, false);
      linear("up_proj", shape.intermediate_size, shape.hidden_size, false);
      linear("down_proj", shape.hidden_size, shape.intermediate_size, false);
      if (shape.has_qk_norm) {
        add(prefix + "q_norm.weight", 0, shape.head_dim, 0.2f, 1);
        add(prefix + "k_norm.weight", 0, shape.head_dim, 0.2f, 1);
      }
    }
    ModelSpec& spec = request_.spec;
    spec.vocab_size = shape.vocab_size;
    spec.hidden_size = shape.hidden_size;
    spec.intermediate_size = shape.intermediate_size;
    spec.num_layers = shape.num_layers;
    spec.num_heads = shape.num_heads;
    spec.num_kv_heads = shape.num_kv_heads;
    spec.head_dim = shape.head_dim;
    spec.tie_word_embeddings = shape.is_tied;
    spec.attention_scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
    spec.sliding_windows.assign(static_cast<size_t>(shape.num_layers), 0);
    spec.sliding_windows.back() = shape.sliding_window;
    spec.rope.rotary_dim = shape.head_dim;
    spec.rope.original_max_positions = spec.max_position_embeddings = 400;
    request_.files = {path_};
    request_.vocabulary = std::make_shared<Vocabulary>();
    request_.vocabulary->offsets.push_back(0);
    for (int64_t id = 0; id < shape.vocab_size; ++id) {
      request_.vocabulary->bytes += static_cast<char>('a' + id % 26);
      request_.vocabulary->offsets.push_back(static_cast<uint32_t>(request_.vocabulary->bytes.size()));
      request_.vocabulary->is_special.push_back(0);
    }
    request_.device.weight_dtype = dtype;
    request_.device.num_threads = 1;
    request_.device.device = "cpu";
    if (dtype == DType::kBf16) request_.compute = ComputeChoice::kBf16;
    request_.kv_cache_bytes = 4 << 20;
    request_.max_model_len = 320;
  }
  ~TinyModel() {
    ::close(fd_);
    ::unlink(path_.c_str());
  }
  TinyModel(const TinyModel&) = delete;
  TinyModel& operator=(const TinyModel&) = delete;

  LoadRequest request() const { return request_; }
  int fd() const { return fd_; }

 private:
  // rows 0 = a vector.
  void add(const std::string& name, int64_t rows, int64_t cols, float deviation, float mean = 0) {
    auto values = testing::random_values(std::hash<std::string>{}(name), std::max<int64_t>(rows, 1) * cols, deviation);
    std::string bytes;
    for (float value : values) {
      value += mean;
      // bf16 by truncation, f32 as it is: any bits will do.
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

  DType dtype_;
  int fd_ = -1;
  std::string path_;
  uint64_t end_ = 0;
  LoadRequest request_;
};

struct Answer {
  std::vector<int32_t> token_ids;
  std::vector<float> logprobs;  // the drawn tokens' and five alternatives', bit for bit
  std::optional<Finish> finish;
  bool operator==(const Answer& other) const {
    return token_ids == other.token_ids && logprobs.size() == other.logprobs.size() &&
           std::memcmp(logprobs.data(), other.logprobs.data(), logprobs.size() * sizeof(float)) == 0;
  }
};

class Session {
 public:
  explicit Session(const LoadRequest& request)
      : loaded_(load_engine(request, [](int64_t, int64_t) {}, [this](std::vector<Event>&& events) { gather(events); })) {}

  const EngineInfo& info() const { return loaded_.info; }
  Engine& engine() { return *loaded_.engine; }

  RequestId submit(const std::vector<int32_t>& prompt, int max_tokens, float temperature = 0) {
    Request request;
    request.prompt_token_ids = prompt;
    request.sampling.temperature = temperature;
    request.sampling.seed = 11;
    request.sampling.max_tokens = max_tokens;
    request.sampling.num_logprobs = 5;
    return engine().submit(std::move(request));
  }

  Answer wait(RequestId id) {
    std::unique_lock lock(mutex_);
    EXPECT(arrived_.wait_for(lock, std::chrono::seconds(60), [&] { return answers_[id].finish.has_value(); }));
    return answers_[id];
  }

 private:
  void gather(const std::vector<Event>& events) {
    const std::lock_guard lock(mutex_);
    for (const Event& event : events) {
      Answer& answer = answers_[event.request_id];
      answer.token_ids.insert(answer.token_ids.end(), event.token_ids.begin(), event.token_ids.end());
      for (const TokenLogprobs& logprobs : event.logprobs) {
        answer.logprobs.push_back(logprobs.logprob);
        for (const auto& [id, logprob] : logprobs.top) answer.logprobs.push_back(logprob);
      }
      if (event.finish) answer.finish = event.finish;
    }
    arrived_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<RequestId, Answer> answers_;
  LoadedEngine loaded_;
};

std::vector<std::vector<int32_t>> some_prompts() {
  std::mt19937 random(12);
  std::vector<std::vector<int32_t>> prompts;
  for (const int length : {1, 7, 16, 33, 64, 100, 129, 200}) {
    prompts.emplace_back();
    for (int i = 0; i < length; ++i) prompts.back().push_back(static_cast<int32_t>(random() % 300));
  }
  // Two that share a prefix.
  prompts.push_back(prompts.back());
  prompts.back().resize(150);
  prompts.back().push_back(5);
  return prompts;
}

constexpr int kMaxTokens = 12;
float temperature_of(size_t i) { return i % 2 ? 0.8f : 0.0f; }

// One after the other, no prefix cache: the reference of all invariants.
std::vector<Answer> solo_answers(LoadRequest request, int max_tokens = kMaxTokens) {
  request.has_prefix_cache = false;
  Session session(request);
  std::vector<Answer> answers;
  const auto prompts = some_prompts();
  for (size_t i = 0; i < prompts.size(); ++i) answers.push_back(session.wait(session.submit(prompts[i], max_tokens, temperature_of(i))));
  return answers;
}

// All at once.
std::vector<Answer> batched_answers(Session& session, int max_tokens = kMaxTokens) {
  const auto prompts = some_prompts();
  std::vector<RequestId> ids;
  for (size_t i = 0; i < prompts.size(); ++i) ids.push_back(session.submit(prompts[i], max_tokens, temperature_of(i)));
  std::vector<Answer> answers;
  for (const RequestId id : ids) answers.push_back(session.wait(id));
  return answers;
}

void expect_same(const std::vector<Answer>& got, const std::vector<Answer>& wanted, const char* what) {
  for (size_t i = 0; i < wanted.size(); ++i)
    if (!(got[i] == wanted[i])) testing::fail(what, static_cast<int>(i), "the answer to this prompt differs from its solo answer");
}

std::vector<std::pair<Shape, DType>> models() {
  Shape qwen3{.has_bias = false, .has_qk_norm = true, .is_tied = true};
  Shape windowed{.num_heads = 6, .num_kv_heads = 2, .head_dim = 24, .sliding_window = 40};
  windowed.intermediate_size = 172;
  return {{Shape{}, DType::kBf16}, {Shape{}, DType::kF32}, {qwen3, DType::kBf16}, {windowed, DType::kBf16}, {windowed, DType::kF16}};
}

TEST(model_batch_of_one_equals_batch_of_many) {
  for (const auto& [shape, dtype] : models()) {
    const TinyModel model(shape, dtype);
    const auto solo = solo_answers(model.request());
    Session session(model.request());
    expect_same(batched_answers(session), solo, "batched, cold");
    expect_same(batched_answers(session), solo, "batched, cached");
    EXPECT(session.engine().stats().cached_tokens > 0);
  }
}

TEST(model_chunked_prefill_equals_whole) {
  for (const auto& [shape, dtype] : models()) {
    const TinyModel model(shape, dtype);
    const auto solo = solo_answers(model.request());
    for (const int budget : {4, 17, 64}) {
      LoadRequest request = model.request();
      request.max_num_seqs = 4;
      request.max_num_batched_tokens = budget;
      Session session(request);
      expect_same(batched_answers(session), solo, "chunked");
    }
  }
}

TEST(model_preempted_equals_not_preempted) {
  const TinyModel model(Shape{}, DType::kBf16);
  const auto solo = solo_answers(model.request(), 80);
  LoadRequest request = model.request();
  request.max_model_len = 288;
  // Little more than one sequence's blocks of 16 tokens, each 2 layers × 2 × 2 heads × 32 × 2 bytes × 16.
  request.kv_cache_bytes = 24 * 8192;
  Session session(request);
  expect_same(batched_answers(session, 80), solo, "preempted");
  EXPECT(session.engine().stats().num_preemptions > 0);
}

TEST(model_threads_and_ranks_change_no_bit) {
  Shape shape;
  shape.num_kv_heads = 2;
  shape.intermediate_size = 256;
  for (const DType dtype : {DType::kBf16, DType::kF32}) {
    const TinyModel model(shape, dtype);
    const auto solo = solo_answers(model.request());
    for (const auto& [threads, ranks] : std::vector<std::pair<int, int>>{{2, 1}, {3, 1}, {2, 2}, {4, 2}, {4, 4}}) {
      LoadRequest request = model.request();
      request.device.num_threads = threads;
      request.device.world_size = ranks;
      Session session(request);
      EXPECT_EQ(session.info().world_size, ranks);
      expect_same(batched_answers(session), solo, "threads and ranks");
    }
  }
}

TEST(model_f32_instruction_sets_agree_to_the_bit) {
  const TinyModel model(Shape{}, DType::kF32);
  const auto solo = solo_answers(model.request());
  for (const std::string& isa : available_isas()) {
    LoadRequest request = model.request();
    request.device.isa = isa;
    Session session(request);
    expect_same(batched_answers(session), solo, isa.c_str());
  }
}

TEST(model_block_size_changes_no_bit) {
  const TinyModel model(Shape{}, DType::kBf16);
  const auto solo = solo_answers(model.request());
  for (const int block_size : {32, 64}) {
    LoadRequest request = model.request();
    request.block_size = block_size;
    Session session(request);
    expect_same(batched_answers(session), solo, "block size");
  }
}

TEST(load_refuses_impossible_splits_with_the_numbers) {
  const TinyModel model(Shape{.num_heads = 6, .num_kv_heads = 3}, DType::kBf16);
  for (const int ranks : {2, 4}) {
    LoadRequest request = model.request();
    request.device.world_size = ranks;
    EXPECT_ERROR("invalid_argument", Session{request});
  }
}

TEST(load_refuses_what_the_files_do_not_hold) {
  const TinyModel model(Shape{}, DType::kBf16);
  LoadRequest missing = model.request();
  std::erase_if(missing.tensors, [](const TensorEntry& tensor) { return tensor.name == "layers.1.up_proj.weight"; });
  EXPECT_ERROR("invalid_model", Session{missing});
  LoadRequest misshapen = model.request();
  misshapen.tensors[0].shape = {299, 64};
  EXPECT_ERROR("invalid_model", Session{misshapen});
  LoadRequest outside = model.request();
  outside.tensors[0].offset = uint64_t{1} << 62;
  EXPECT_ERROR("invalid_model", Session{outside});
  LoadRequest nowhere = model.request();
  nowhere.files = {"/nowhere/model.safetensors"};
  EXPECT_ERROR("io_error", Session{nowhere});
}

TEST(load_refuses_contexts_that_do_not_fit) {
  const TinyModel model(Shape{}, DType::kBf16);
  LoadRequest small = model.request();
  small.kv_cache_bytes = 8192;
  EXPECT_ERROR("out_of_memory", Session{small});
  LoadRequest huge = model.request();
  huge.kv_cache_bytes = int64_t{1} << 50;
  EXPECT_ERROR("out_of_memory", Session{huge});
  LoadRequest longer = model.request();
  longer.max_model_len = 401;
  EXPECT_ERROR("invalid_argument", Session{longer});
  LoadRequest lowered = model.request();
  lowered.max_model_len = 0;
  lowered.kv_cache_bytes = 10 * 8192;
  Session session(lowered);
  EXPECT_EQ(session.info().max_model_len, 160);
  EXPECT_EQ(session.info().notes.size(), size_t{1});
}

TEST(load_finds_nan_in_weights) {
  const TinyModel model(Shape{}, DType::kBf16);
  const LoadRequest request = model.request();
  for (const size_t i : {size_t{0}, size_t{1}, request.tensors.size() - 1}) {
    const TensorEntry& tensor = request.tensors[i];
    const uint16_t nan = 0x7fc1;
    uint16_t kept = 0;
    const auto at = static_cast<off_t>(tensor.offset + 10);
    EXPECT(::pread(model.fd(), &kept, 2, at) == 2 && ::pwrite(model.fd(), &nan, 2, at) == 2);
    try {
      Session session(request);
      EXPECT(false && "NaN found");
    } catch (const Error& error) {
      EXPECT(error.code() == ErrorCode::kInvalidModel && std::string(error.what()).find(tensor.name) != std::string::npos);
    }
    EXPECT(::pwrite(model.fd(), &kept, 2, at) == 2);
  }
}

TEST(load_survives_a_file_cut_short_afterwards) {
  const TinyModel model(Shape{}, DType::kBf16);
  Session session(model.request());
  EXPECT(::ftruncate(model.fd(), 16) == 0);
  EXPECT_EQ(session.wait(session.submit({1, 2, 3}, 4)).token_ids.size(), size_t{4});
}

TEST(load_can_be_cancelled) {
  const TinyModel model(Shape{}, DType::kBf16);
  const auto cancel = [](int64_t, int64_t) { throw Error(ErrorCode::kAborted, "enough"); };
  EXPECT_ERROR("aborted", load_engine(model.request(), cancel, [](std::vector<Event>&&) {}));
}

TEST(model_answers_while_two_engines_with_four_ranks_share_two_cores) {
  Shape shape;
  shape.intermediate_size = 256;
  const TinyModel model(shape, DType::kBf16);
  LoadRequest request = model.request();
  const auto solo = solo_answers(request);
  request.device.world_size = 4;
  request.device.num_threads = 4;
  Session first(request), second(request);
  std::vector<Answer> second_answers;
  std::thread other([&] { second_answers = batched_answers(second); });
  expect_same(batched_answers(first), solo, "first of two engines");
  other.join();
  expect_same(second_answers, solo, "second of two engines");
}

}  // namespace
}  // namespace capstan
