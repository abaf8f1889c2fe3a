// The MTP head of the CPU backend: its logits are those of a torch module (test/oracle/mtp.py), and its drafts change
// no answer.
#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <sstream>

#include "native/engine/draft_pacer.h"
#include "native/model/decoder.h"
#include "native/model/rope.h"
#include "test/native/draft_answers.h"
#include "test/native/grammar_fixture.h"
#include "test/native/testing.h"
#include "test/native/tiny_adapter.h"
#include "test/native/tiny_model.h"

namespace capstan {
namespace {

using testing::Answer;
using testing::answers_of;
using testing::num_accepted;
using testing::Session;
using testing::TinyModel;
using testing::TinyShape;

// ---- the golden ----

struct Draft {
  std::vector<std::pair<int32_t, double>> top;
};

struct GoldenPrompt {
  std::vector<int32_t> token_ids;
  std::vector<Draft> drafts;
};

// What make_mtp.py has written.
struct Golden {
  ModelSpec spec;
  std::vector<TensorEntry> tensors;
  std::vector<GoldenPrompt> prompts;
};

const std::string kFolder = "test/oracle/fixtures/mtp/dense/";

ModelSpec read_sizes(std::istream& words) {
  ModelSpec spec;
  int num_layers;
  double rotary_part;
  RopeSpec rope;
  words >> spec.vocab_size >> spec.hidden_size >> spec.intermediate_size >> spec.num_heads >> spec.num_kv_heads >>
      spec.head_dim >> num_layers >> spec.rms_norm_eps >> rope.theta >> rotary_part;
  spec.layers.resize(static_cast<size_t>(num_layers) + 1);
  spec.has_mtp = spec.has_output_gate = true;
  spec.qk_norm = QkNorm::kHead;
  spec.norm_offset = 1;
  spec.attention_scale = 1 / std::sqrt(static_cast<double>(spec.head_dim));
  rope.rotary_dim = static_cast<int>(spec.head_dim * rotary_part);
  rope.original_max_positions = spec.max_position_embeddings = 256;
  spec.ropes = {rope};
  return spec;
}

Golden read_golden() {
  std::ifstream file(kFolder + "head.txt");
  EXPECT(file.is_open());
  Golden golden;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "sizes") {
      golden.spec = read_sizes(words);
    } else if (kind == "tensor") {
      TensorEntry& entry = golden.tensors.emplace_back();
      int64_t rows, cols;
      words >> entry.name >> rows >> cols >> entry.offset;
      entry.shape = rows == 0 ? std::vector<int64_t>{cols} : std::vector<int64_t>{rows, cols};
    } else if (kind == "prompt") {
      std::vector<int32_t>& ids = golden.prompts.emplace_back().token_ids;
      for (int32_t id; words >> id;)
        ids.push_back(id);
    } else {
      Draft& draft = golden.prompts.back().drafts.emplace_back();
      int32_t id;
      for (double value; words >> id >> value;)
        draft.top.emplace_back(id, value);
    }
  }
  return golden;
}

// A decoder with a head on one CPU backend, and the only sequence, whose blocks lie in order.
class Model {
 public:
  static constexpr int kBlockSize = 16, kNumBlocks = 16;

  explicit Model(const Golden& golden) {
    const ModelSpec& spec = golden.spec;
    check_spec(spec);
    const CheckpointFiles files({kFolder + "model.safetensors"});
    const TensorTable tensors = files.make_table(golden.tensors);
    check_tensors(spec, tensors);
    DeviceOptions options;
    options.device = "cpu";
    options.weight_dtype = DType::kF32;
    options.num_threads = 2;
    backend_ = std::move(make_device_group(options).backends[0]);
    const ShardPlan plan = make_shard_plan(spec, 0, 1);
    weights_ = load_weights(spec, plan, tensors, {}, *backend_, [](int64_t) {});
    DeviceModel model = make_device_model(spec, plan, spec.vocab_size, kBlockSize * kNumBlocks);
    model.rope_tables[0].values = make_rope_table(spec.ropes[0], model.max_model_len);
    DeviceLimits limits;
    limits.max_num_tokens = 64;
    limits.max_num_seqs = 1;
    limits.block_size = kBlockSize;
    limits.num_blocks = {kNumBlocks};
    limits.kv_cache_dtype = DType::kF32;
    backend_->prepare(model, limits);
    for (int32_t block = 0; block < kNumBlocks; ++block)
      table_.push_back(block);
  }

  // Runs the decoder over tokens at `first` and later.
  void decode(std::span<const int32_t> ids, int first) {
    begin(ids, first);
    decoder_forward(weights_, step_, *backend_);
    std::vector<StoredHidden> stored;
    std::vector<int32_t> before(ids.size());
    for (int row = 0; row < static_cast<int>(ids.size()); ++row) {
      before[static_cast<size_t>(row)] = row > 0      ? row - 1
                                         : first == 0 ? kNoHidden
                                                      : stored_hidden(block_of(first - 1));
      if ((first + row + 1) % kBlockSize == 0) stored.push_back({row, block_of(first + row)});
    }
    mtp_follow(weights_, before, stored, *backend_);
    const int last = static_cast<int>(ids.size()) - 1;
    backend_->store_hidden(std::vector<StoredHidden>{{last, block_of(first + last)}});
  }

  // Runs the head over the token at `position`. Returns the log-probabilities of all ids for the place after it.
  std::map<int32_t, double> draft(int32_t id, int position, bool is_first) {
    begin(std::span(&id, 1), position);
    const int32_t before = is_first ? stored_hidden(block_of(position - 1)) : 0;
    mtp_forward(weights_, step_, std::span(&before, 1), *backend_);
    const int32_t row = 0;
    backend_->lm_head(*weights_.mtp.norm, weights_.head(), std::span(&row, 1));
    SampleRow sample;
    sample.temperature = 0;
    sample.num_logprobs = 40;
    SampleResult result;
    backend_->sample(std::span(&sample, 1), std::span(&result, 1));
    backend_->keep_hidden(*weights_.mtp.norm);
    std::map<int32_t, double> logprobs;
    for (const TokenLogprob& top : result.top)
      logprobs[top.token_id] = top.logprob;
    return logprobs;
  }

 private:
  static int32_t block_of(int position) { return position / kBlockSize; }

  void begin(std::span<const int32_t> ids, int first) {
    ids_.assign(ids.begin(), ids.end());
    positions_.clear();
    for (int i = 0; i < static_cast<int>(ids.size()); ++i)
      positions_.push_back(first + i);
    bounds_ = {0, static_cast<int32_t>(ids.size())};
    context_lens_ = {first + bounds_[1]};
    // The slot of a position is its number.
    groups_ = {{positions_, table_}};
    step_ = {ids_, positions_, bounds_, context_lens_, groups_, kNumBlocks};
  }

  Weights weights_;
  std::unique_ptr<Backend> backend_;
  std::vector<int32_t> table_, ids_, positions_, bounds_, context_lens_;
  std::vector<KvGroupInput> groups_;
  StepInput step_;
};

TEST(mtp_head_has_the_logits_of_the_torch_module_for_any_chunks) {
  const Golden golden = read_golden();
  EXPECT(golden.prompts.size() > 3);
  Model model(golden);
  for (const int chunk : {1, 5, 16, 64})
    for (const GoldenPrompt& prompt : golden.prompts) {
      const int last = static_cast<int>(prompt.token_ids.size()) - 1;
      for (int begin = 0; begin < last; begin += chunk)
        model.decode(std::span(prompt.token_ids).subspan(begin, std::min(chunk, last - begin)), begin);
      int32_t id = prompt.token_ids.back();
      for (size_t i = 0; i < prompt.drafts.size(); ++i) {
        auto logprobs = model.draft(id, last + static_cast<int>(i), i == 0);
        for (const auto& [top_id, logprob] : prompt.drafts[i].top) {
          EXPECT(logprobs.contains(top_id));
          EXPECT_NEAR(logprobs[top_id], logprob, 1e-3);
        }
        id = prompt.drafts[i].top[0].first;
      }
    }
}

// ---- whole engines ----

LoadRequest without_head(LoadRequest load) {
  load.spec.has_mtp = false;
  load.spec.layers.pop_back();
  return load;
}

LoadRequest with_drafts(LoadRequest load, int num_tokens) {
  load.speculation.num_tokens = num_tokens;
  return load;
}

TEST(mtp_drafts_give_the_same_tokens_and_log_probabilities) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    TinyShape shape;
    shape.has_mtp = true;
    shape.sliding_window = 40;
    const TinyModel model(shape, dtype);
    LoadRequest plain = without_head(model.request());
    plain.has_prefix_cache = false;
    const std::vector<Answer> wanted = answers_of(plain, false);
    const auto compare = [&](const std::function<void(LoadRequest&)>& change) {
      LoadRequest load = with_drafts(model.request(), 3);
      change(load);
      for (const bool is_concurrent : {false, true}) {
        EngineStats stats;
        testing::expect_same(answers_of(load, is_concurrent, &stats), wanted, "MTP drafts");
        // Large steps have no drafts.
        EXPECT(is_concurrent || (num_accepted(stats) > 0 && num_accepted(stats) < stats.num_draft_tokens));
      }
    };
    compare([](LoadRequest&) {});
    compare([](LoadRequest& load) { load.max_num_seqs = 1; });
    compare([](LoadRequest& load) {
      load.max_num_seqs = 2;
      load.max_num_batched_tokens = 7;
      load.has_prefix_cache = false;
    });
    compare([](LoadRequest& load) {
      load.device.world_size = 2;
      load.device.num_threads = 2;
    });
  }
}

// With the same answers, equal counters say that the drafts are the same too.
TEST(mtp_drafts_are_the_same_on_one_rank_and_on_two) {
  TinyShape shape;
  shape.has_mtp = true;
  const TinyModel model(shape, DType::kF32);
  EngineStats one, two;
  LoadRequest load = with_drafts(model.request(), 3);
  answers_of(load, false, &one);
  load.device.world_size = 2;
  load.device.num_threads = 2;
  answers_of(load, false, &two);
  EXPECT(one.num_accepted_tokens == two.num_accepted_tokens && one.num_draft_tokens == two.num_draft_tokens);
}

// One token may come next, so a draft that is drawn with the mask of its place holds.
TEST(mtp_drafts_follow_the_grammar) {
  TinyShape shape;
  shape.has_mtp = true;
  const TinyModel model(shape, DType::kF32);
  Session session(with_drafts(model.request(), 3));
  Request request;
  request.prompt_token_ids = {1, 2, 3};
  request.sampling.max_tokens = 60;
  // One id for each letter.
  request.sampling.allowed_token_ids.emplace();
  for (int32_t id = 0; id < 26; ++id)
    request.sampling.allowed_token_ids->push_back(id);
  request.grammar = testing::compile_gbnf("root ::= \"abcdefgh\"*", session.engine().token_table());
  session.wait(session.submit(std::move(request)));
  const EngineStats stats = session.engine().stats();
  EXPECT(stats.num_draft_tokens > 30);
  EXPECT_EQ(num_accepted(stats), stats.num_draft_tokens);
}

// An update of the LM head decides each token alone, so drafts hold only if the head has it too.
TEST(mtp_drafts_follow_the_vocabulary_of_an_adapter) {
  TinyShape shape;
  shape.has_mtp = true;
  const TinyModel model(shape, DType::kF32);
  testing::TinyAdapter adapter(5);
  adapter.add(-1, "embed_tokens", 3, 300, 64).add(-1, "lm_head", 1, 64, 300, 3.0f);
  const auto answer_of = [&](LoadRequest load, EngineStats& stats) {
    load.has_adapters = true;
    load.max_loras = 1;
    load.max_lora_rank = 8;
    Session session(load);
    Request request;
    request.prompt_token_ids = {7, 30, 211, 5, 64, 3};
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 60;
    request.sampling.num_logprobs = testing::kNumAlternatives;
    request.adapter_id = session.engine().load_adapter(adapter.source);
    const Answer answer = session.wait(session.submit(std::move(request)));
    stats = session.engine().stats();
    return answer;
  };
  EngineStats plain, drafted;
  const Answer wanted = answer_of(without_head(model.request()), plain);
  EXPECT(answer_of(with_drafts(model.request(), 3), drafted) == wanted);
  EXPECT(drafted.num_draft_tokens > 10 && 2 * num_accepted(drafted) > drafted.num_draft_tokens);
}

TEST(mtp_head_takes_memory_of_the_kv_cache) {
  TinyShape shape;
  shape.has_mtp = true;
  const TinyModel model(shape, DType::kF32);
  const auto num_blocks = [](const LoadRequest& load) { return Session(load).info().num_blocks; };
  LoadRequest plain = without_head(model.request()), load = with_drafts(model.request(), 1);
  plain.kv_cache_bytes = load.kv_cache_bytes = 1 << 20;
  // Two layers, or three and a hidden state per block.
  const int64_t layer = int64_t{2} * 16 * shape.num_kv_heads * shape.head_dim * 4;
  EXPECT_EQ(num_blocks(plain), static_cast<int>((1 << 20) / (2 * layer)));
  EXPECT_EQ(num_blocks(load), static_cast<int>((1 << 20) / (3 * layer + shape.hidden_size * 4)));
}

TEST(mtp_head_without_drafts_is_refused) {
  TinyShape shape;
  shape.has_mtp = true;
  const TinyModel model(shape, DType::kF32);
  EXPECT_ERROR("invalid_argument", Session{model.request()});
  LoadRequest load = with_drafts(model.request(), 1);
  std::erase_if(load.tensors, [](const TensorEntry& entry) { return entry.name == "mtp.fc.weight"; });
  EXPECT_ERROR("invalid_model", Session{load});
  load = with_drafts(model.request(), 1);
  load.spec.layers.back().window = 8;
  EXPECT_ERROR("invalid_model", Session{load});
}

// ---- how many drafts ----

TEST(draft_pacer_follows_what_holds) {
  DraftPacer pacer(4, kMtpDraftCost);
  EXPECT(pacer.num_proposed() > 0);
  for (int i = 0; i < 100; ++i)
    pacer.observe(4, 4);
  EXPECT_EQ(pacer.num_proposed(), 4);
  for (int i = 0; i < 100; ++i)
    pacer.observe(pacer.num_proposed(), 0);
  // One draft in 33 steps.
  int num_drafts = 0;
  for (int i = 0; i < 330; ++i) {
    num_drafts += pacer.num_proposed();
    pacer.observe(pacer.num_proposed(), 0);
  }
  EXPECT_EQ(num_drafts, 10);
  for (int i = 0; i < 3000; ++i)
    pacer.observe(pacer.num_proposed(), pacer.num_proposed());
  EXPECT_EQ(pacer.num_proposed(), 4);
}

TEST(draft_pacer_counts_a_draft_that_was_left_out_as_a_rejected_one) {
  DraftPacer refusing(4, kMtpDraftCost), rejecting(4, kMtpDraftCost);
  for (int i = 0; i < 100; ++i) {
    const int num_accepted = i % 3;
    refusing.refuse();
    refusing.observe(num_accepted, num_accepted);
    rejecting.observe(num_accepted + 1, num_accepted);
    EXPECT_EQ(refusing.num_proposed(), rejecting.num_proposed());
  }
}

}  // namespace
}  // namespace capstan
