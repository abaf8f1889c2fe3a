#pragma once
// Answers of a tiny model to random requests, to compare engines with and without drafts.
#include <random>

#include "test/native/tiny_model.h"

namespace capstan::testing {

inline int64_t num_accepted(const EngineStats& stats) {
  int64_t sum = 0;
  for (const int64_t count : stats.num_accepted_tokens)
    sum += count;
  return sum;
}

// Few ids, so that drafts of a random head sometimes hold.
inline Request random_request(std::mt19937& random) {
  Request request;
  SamplingParams& sampling = request.sampling;
  for (auto left = 1 + random() % 90; left > 0; --left)
    request.prompt_token_ids.push_back(static_cast<int32_t>(random() % 6));
  const auto happens = [&](unsigned one_in) { return random() % one_in == 0; };
  sampling.seed = random();
  sampling.max_tokens = 20 + static_cast<int>(random() % 40);
  sampling.temperature = happens(2) ? 0 : 0.7f;
  if (happens(3)) sampling.top_k = 5;
  if (happens(3)) sampling.top_p = 0.8f;
  if (happens(4)) sampling.presence_penalty = 0.3f;
  if (happens(4)) sampling.repetition_penalty = 1.1f;
  if (happens(4)) sampling.bad_words = {{1, 2}, {3, 3, 3}};
  if (happens(4)) sampling.num_prompt_logprobs = 1;
  sampling.allowed_token_ids = std::vector<int32_t>{0, 1, 2, 3};
  sampling.num_logprobs = kNumAlternatives;
  return request;
}

inline std::vector<Answer> answers_of(const LoadRequest& load, bool is_concurrent, EngineStats* stats = nullptr,
                                      Request (*make_request)(std::mt19937& random) = random_request) {
  Session session(load);
  std::mt19937 random(21);
  std::vector<Answer> answers;
  std::vector<RequestId> open;
  const auto collect = [&] {
    for (const RequestId id : open)
      answers.push_back(session.wait(id));
    open.clear();
  };
  for (int i = 0; i < 24; ++i) {
    open.push_back(session.submit(make_request(random)));
    if (!is_concurrent) collect();
  }
  collect();
  if (stats != nullptr) *stats = session.engine().stats();
  return answers;
}

}  // namespace capstan::testing
