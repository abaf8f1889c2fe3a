// Models that pool on a CUDA device: their results match the CPU's, and neither the batch, the chunks of a prompt nor
// the ranks change a bit.
#include <algorithm>
#include <cmath>

#include "test/native/gpu/device.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

HeadLayerSpec layer(int64_t output_size, Activation activation = Activation::kIdentity, bool has_norm = false,
                    const std::vector<int32_t>& token_ids = {}) {
  return {output_size, activation, has_norm, token_ids};
}

// Decoders with each kind of pooling, and heads as classifiers and sentence-transformers have them.
std::vector<std::pair<const char*, TinyShape>> pooling_models() {
  TinyShape last, mean, weighted, max, root, first, yes_no;
  last.pooling = Pooling::kLast, last.head = {layer(96, Activation::kTanh), layer(7)};
  mean.pooling = Pooling::kMean, mean.head = {layer(64)};
  weighted.pooling = Pooling::kWeightedMean, weighted.has_qk_norm = true;
  max.pooling = Pooling::kMax, max.sliding_window = 40, max.head = {layer(5, Activation::kGelu, true)};
  root.pooling = Pooling::kRootMean, root.has_final_norm = false;
  first.pooling = Pooling::kFirst, first.norm_kind = NormKind::kLayer,
  first.head = {layer(64, Activation::kRelu, true)};
  // Norms of results wait for the next norm, and there is none after the last layer (Gemma 2).
  yes_no.pooling = Pooling::kLast, yes_no.head = {layer(2, Activation::kIdentity, false, {7, 9})};
  yes_no.norms.attention_out = yes_no.norms.mlp_out = true;
  std::vector<std::pair<const char*, TinyShape>> all = {{"last", last},    {"mean", mean}, {"weighted", weighted},
                                                        {"max", max},      {"root", root}, {"first", first},
                                                        {"yes_no", yes_no}};
  for (auto& [name, shape] : all)
    shape.intermediate_size = 256, shape.is_tied = shape.head.empty() || shape.head[0].token_ids.empty();
  return all;
}

// What encoders have. The names are those of families that have it.
std::vector<std::pair<const char*, TinyShape>> encoder_models() {
  TinyShape bert, modernbert, mpnet, nomic, gemma3;
  bert.norm_kind = NormKind::kLayer, bert.norms = {false, true, false, true, true};
  bert.has_gated_mlp = bert.has_final_norm = false, bert.activation = Activation::kGelu, bert.last_rope = -1;
  bert.embedding = {400, 2, 2, true, 0};
  bert.pooling = Pooling::kFirst, bert.head = {layer(64, Activation::kTanh), layer(5)};
  mpnet = bert;
  mpnet.embedding = {400, 0, 0, true, 32};
  mpnet.pooling = Pooling::kMean, mpnet.head = {};
  nomic = bert;
  nomic.has_gated_mlp = true, nomic.activation = Activation::kSilu, nomic.last_rope = 0;
  nomic.embedding = {0, 0, 2, true, 0};
  nomic.pooling = Pooling::kMean, nomic.head = {};
  modernbert.norm_kind = NormKind::kLayer, modernbert.activation = Activation::kGelu, modernbert.sliding_window = 40;
  modernbert.embedding = {0, 0, 0, true, 0};
  modernbert.pooling = Pooling::kMean, modernbert.head = {layer(64, Activation::kGelu, true), layer(5)};
  gemma3.norms.attention_out = gemma3.norms.mlp_out = gemma3.has_qk_norm = true;
  gemma3.activation = Activation::kGeluTanh, gemma3.sliding_window = 20, gemma3.embedding_scale = 8;
  gemma3.pooling = Pooling::kMean, gemma3.head = {layer(192), layer(64)};
  std::vector<std::pair<const char*, TinyShape>> all = {
      {"bert", bert}, {"mpnet", mpnet}, {"nomic", nomic}, {"modernbert", modernbert}, {"gemma3", gemma3}};
  for (auto& [name, shape] : all)
    shape.intermediate_size = 256, shape.is_tied = true, shape.is_causal = false;
  return all;
}

// Lengths around block boundaries. The last two prompts share a prefix of more than a block.
Prompts pooled_prompts() {
  Prompts prompts = {random_ids(1, 1, 300), random_ids(2, 64, 300), random_ids(3, 33, 300), random_ids(4, 129, 300)};
  prompts.push_back(prompts.back());
  prompts.back().resize(70);
  prompts.back().push_back(5);
  return prompts;
}

Request pooled_request(const TinyShape& shape, const std::vector<int32_t>& prompt) {
  Request request;
  request.prompt_token_ids = prompt;
  request.is_pooled = true;
  request.sampling.max_tokens = 0;
  for (size_t i = 0; shape.embedding.num_token_types > 0 && i < prompt.size(); ++i)
    request.token_types.push_back(i >= prompt.size() / 2 ? 1 : 0);
  return request;
}

std::vector<Answer> together(Session& session, const TinyShape& shape) {
  std::vector<RequestId> ids;
  session.events().close();
  for (const auto& prompt : pooled_prompts())
    ids.push_back(session.submit(pooled_request(shape, prompt)));
  session.events().open();
  std::vector<Answer> answers;
  for (const RequestId id : ids)
    answers.push_back(session.wait(id));
  return answers;
}

std::vector<Answer> one_by_one(Session& session, const TinyShape& shape) {
  std::vector<Answer> answers;
  for (const auto& prompt : pooled_prompts())
    answers.push_back(session.wait(session.submit(pooled_request(shape, prompt))));
  return answers;
}

// The length of the difference, as a share of the length of what is wanted.
double difference(const std::vector<float>& got, const std::vector<float>& wanted) {
  if (got.size() != wanted.size() || wanted.empty()) return std::nan("");
  double square = 0, whole = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    square += std::pow(static_cast<double>(got[i]) - static_cast<double>(wanted[i]), 2);
    whole += std::pow(static_cast<double>(wanted[i]), 2);
  }
  return std::sqrt(square / whole);
}

void expect_pooled_like_the_cpu(const std::vector<std::pair<const char*, TinyShape>>& models) {
  int64_t num_models = 0;
  for (const auto& [name, shape] : models) {
    ++num_models;
    for (const int world_size : {1, 2}) {
      if (!takes_case(num_models + world_size, 2)) continue;
      const TinyModel model(shape, DType::kF16);
      LoadRequest on_cpu = model.request();
      on_cpu.compute = ComputeChoice::kF32;
      Session cpu(on_cpu), cuda(ranks_request(model, world_size, false));
      for (const std::string& note : cuda.info().notes)
        EXPECT(note.find("CUDA graph") == std::string::npos);
      const auto wanted = together(cpu, shape), got = together(cuda, shape);
      for (size_t i = 0; i < wanted.size(); ++i)
        if (const double far = difference(got[i].pooled, wanted[i].pooled); !(far < 0.01))
          fail(name, static_cast<int>(i), std::to_string(world_size) + " ranks: difference " + show(far));
    }
  }
}

void expect_pooled_bits(const std::vector<std::pair<const char*, TinyShape>>& models) {
  int64_t num_models = 0;
  for (const auto& [name, shape] : models) {
    const TinyModel model(shape, DType::kBf16);
    Session alone(ranks_request(model));
    const auto solo = one_by_one(alone, shape);
    expect_same(together(alone, shape), solo, (std::string(name) + ", batched").c_str());
    if (takes_case(num_models++, 2)) {
      LoadRequest chunked = ranks_request(model);
      chunked.max_num_batched_tokens = 37;
      Session session(chunked);
      expect_same(together(session, shape), solo, (std::string(name) + ", chunked").c_str());
    } else {
      Session session(ranks_request(model, 2));
      expect_same(together(session, shape), solo, (std::string(name) + ", 2 ranks").c_str());
    }
  }
}

TEST(cuda_pooling_gives_the_results_of_the_cpu) {
  expect_pooled_like_the_cpu(pooling_models());
}

TEST(cuda_pooling_batch_chunks_and_ranks_change_no_bit) {
  expect_pooled_bits(pooling_models());
}

TEST(cuda_encoders_give_the_results_of_the_cpu) {
  expect_pooled_like_the_cpu(encoder_models());
}

TEST(cuda_encoders_batch_and_ranks_change_no_bit) {
  expect_pooled_bits(encoder_models());
}

}  // namespace
}  // namespace capstan::testing
