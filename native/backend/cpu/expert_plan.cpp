#include "native/backend/cpu/expert_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "native/base/portable_exp.h"

namespace capstan {
namespace {

// Writes the scores of all experts over `scores`, which holds the logits.
void score_experts(RouterScore score, std::vector<float>& scores) {
  if (score == RouterScore::kSigmoid) {
    for (float& value : scores)
      value = 1.0f / (1.0f + portable_exp(-value));
    return;
  }
  const float largest = *std::ranges::max_element(scores);
  float sum = 0;
  for (float& value : scores)
    sum += value = portable_exp(value - largest);
  for (float& value : scores)
    value /= sum;
}

// The sum of the two best keys of a group.
float group_score(const float* keys, int size) {
  float first = -std::numeric_limits<float>::infinity(), second = first;
  for (int i = 0; i < size; ++i) {
    second = std::max(second, std::min(first, keys[i]));
    first = std::max(first, keys[i]);
  }
  return first + second;
}

// Sets the keys of all groups but the best ones to -Inf. Ties go to the lowest group.
void keep_best_groups(const Moe& moe, std::vector<float>& keys) {
  thread_local std::vector<float> scores;
  const int size = moe.num_experts / moe.num_groups;
  scores.clear();
  for (int group = 0; group < moe.num_groups; ++group)
    scores.push_back(group_score(keys.data() + group * size, size));
  for (int group = 0; group < moe.num_groups; ++group) {
    const float own = scores[static_cast<size_t>(group)];
    int better = 0;
    for (int other = 0; other < moe.num_groups; ++other) {
      const float score = scores[static_cast<size_t>(other)];
      better += score > own || (score == own && other < group);
    }
    if (better >= moe.top_groups)
      std::fill_n(keys.begin() + group * size, size, -std::numeric_limits<float>::infinity());
  }
}

}  // namespace

void choose_experts(const Moe& moe, const float* logits, const ExpertFactors& factors, TokenExperts out) {
  thread_local std::vector<float> scores, keys;
  scores.assign(logits, logits + moe.num_experts);
  if (moe.logit_scale != 1)
    for (float& logit : scores)
      logit *= static_cast<float>(moe.logit_scale);
  score_experts(moe.score, scores);
  keys = scores;
  for (int i = 0; i < moe.num_experts; ++i) {
    float& key = keys[static_cast<size_t>(i)];
    if (factors.selection_bias != nullptr) key += factors.selection_bias[i];
    if (std::isnan(key)) key = -std::numeric_limits<float>::infinity();
  }
  if (moe.num_groups > 1) keep_best_groups(moe, keys);
  float sum = 0;
  for (int k = 0; k < moe.top_k; ++k) {
    int best = -1;
    for (int i = 0; i < moe.num_experts; ++i) {
      const bool is_taken = std::find(out.experts, out.experts + k, i) != out.experts + k;
      if (!is_taken && (best < 0 || keys[static_cast<size_t>(i)] > keys[static_cast<size_t>(best)])) best = i;
    }
    out.experts[k] = best;
    out.weights[k] = scores[static_cast<size_t>(best)];
    sum += out.weights[k];
  }
  const float scale = static_cast<float>(moe.weight_scale) / (moe.normalizes_weights ? sum : 1.0f);
  for (int k = 0; k < moe.top_k; ++k) {
    out.weights[k] *= scale;
    if (factors.scales != nullptr) out.weights[k] *= factors.scales[out.experts[k]];
  }
}

void ExpertPlan::reserve(const Moe& moe, int max_num_tokens) {
  begin(moe, max_num_tokens);
  sort_by_expert();
}

void ExpertPlan::begin(const Moe& moe, int64_t num_tokens) {
  slots = moe.top_k + (moe.shared_intermediate_size > 0 ? 1 : 0);
  const size_t num_pairs = static_cast<size_t>(num_tokens * slots);
  experts.assign(num_pairs, 0);
  weights.assign(num_pairs, 1.0f);
  tokens.resize(num_pairs);
  pairs.resize(num_pairs);
  first_pair.assign(static_cast<size_t>(moe.num_experts) + 2, 0);
}

void ExpertPlan::sort_by_expert() {
  std::ranges::fill(first_pair, 0);
  for (const int32_t expert : experts)
    ++first_pair[static_cast<size_t>(expert)];
  int32_t next = 0;
  for (int32_t& first : first_pair)
    first = std::exchange(next, next + first);
  for (size_t i = 0; i < experts.size(); ++i) {
    int32_t& pair = first_pair[static_cast<size_t>(experts[i])];
    tokens[static_cast<size_t>(pair)] = static_cast<int32_t>(i) / slots;
    pairs[i] = pair++;
  }
  // Each entry is now where the next expert begins.
  std::shift_right(first_pair.begin(), first_pair.end(), 1);
  first_pair[0] = 0;
}

}  // namespace capstan
