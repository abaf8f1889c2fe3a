// The choice of experts, and the order of tokens by expert.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "native/backend/cpu/expert_plan.h"
#include "test/native/checkpoint.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

struct Choice {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

Choice choose(const Moe& moe, const std::vector<float>& logits, const ExpertFactors& factors = {}) {
  Choice choice{std::vector<int32_t>(static_cast<size_t>(moe.top_k)),
                std::vector<float>(static_cast<size_t>(moe.top_k))};
  choose_experts(moe, logits.data(), factors, {choice.experts.data(), choice.weights.data()});
  return choice;
}

Moe moe_of(int num_experts, int top_k) {
  Moe moe;
  moe.num_experts = num_experts, moe.top_k = top_k;
  return moe;
}

TEST(experts_are_those_with_the_largest_scores_and_ties_go_to_the_first) {
  const Choice choice = choose(moe_of(5, 3), {1.0f, 3.0f, 2.0f, 3.0f, -1.0f});
  EXPECT_EQ(choice.experts == (std::vector<int32_t>{1, 3, 2}), true);
  const double total = std::exp(1.0) + 2 * std::exp(3.0) + std::exp(2.0) + std::exp(-1.0);
  EXPECT_NEAR(choice.weights[0], std::exp(3.0) / total, 1e-6);
  EXPECT_NEAR(choice.weights[2], std::exp(2.0) / total, 1e-6);
}

TEST(weights_of_experts_are_normalized_and_scaled) {
  Moe moe = moe_of(4, 2);
  moe.normalizes_weights = true, moe.weight_scale = 2.5;
  const Choice choice = choose(moe, {0.0f, 1.0f, 2.0f, -3.0f});
  EXPECT_NEAR(choice.weights[0] + choice.weights[1], 2.5, 1e-6);
  EXPECT_NEAR(choice.weights[0] / choice.weights[1], std::exp(1.0), 1e-5);
}

TEST(a_selection_bias_chooses_experts_but_does_not_weigh_them) {
  Moe moe = moe_of(3, 1);
  moe.score = RouterScore::kSigmoid;
  const float bias[3] = {0.0f, 0.0f, 5.0f};
  const Choice choice = choose(moe, {4.0f, 2.0f, -1.0f}, {bias});
  EXPECT_EQ(choice.experts[0], 2);
  EXPECT_NEAR(choice.weights[0], 1 / (1 + std::exp(1.0)), 1e-6);
}

TEST(experts_are_of_the_groups_whose_two_best_have_the_largest_sum) {
  Moe moe = moe_of(6, 2);
  moe.num_groups = 3, moe.top_groups = 1;
  moe.score = RouterScore::kSigmoid;
  // The best expert is in a group with a bad one.
  EXPECT_EQ(choose(moe, {9.0f, -9.0f, 1.0f, 2.0f, 0.0f, 0.0f}).experts == (std::vector<int32_t>{3, 2}), true);
  moe.top_groups = 2;
  EXPECT_EQ(choose(moe, {9.0f, -9.0f, 1.0f, 2.0f, 0.0f, 0.5f}).experts == (std::vector<int32_t>{3, 2}), true);
  moe.top_groups = 3;
  EXPECT_EQ(choose(moe, {9.0f, -9.0f, 1.0f, 2.0f, 0.0f, 0.5f}).experts == (std::vector<int32_t>{0, 3}), true);
  moe.top_groups = 1;
  // Equal groups: the first.
  EXPECT_EQ(choose(moe, {1.0f, 0.0f, 0.0f, 1.0f, 1.0f, 0.0f}).experts == (std::vector<int32_t>{0, 1}), true);
}

TEST(experts_have_factors_and_the_logits_of_a_router_a_scale) {
  Moe moe = moe_of(3, 2);
  moe.normalizes_weights = true, moe.logit_scale = 0.5;
  const float scales[3] = {3.0f, 1.0f, 0.25f};
  const Choice choice = choose(moe, {2.0f, -8.0f, 4.0f}, {nullptr, scales});
  EXPECT_EQ(choice.experts == (std::vector<int32_t>{2, 0}), true);
  EXPECT_NEAR(choice.weights[0], 0.25 / (1 + std::exp(-1.0)), 1e-6);
  EXPECT_NEAR(choice.weights[1], 3.0 / (1 + std::exp(1.0)), 1e-6);
}

TEST(logits_that_are_not_numbers_choose_different_experts_and_reach_the_weights) {
  const float nan = std::nanf("");
  const Choice choice = choose(moe_of(4, 4), {nan, 1.0f, nan, 2.0f});
  std::vector<int32_t> sorted = choice.experts;
  std::ranges::sort(sorted);
  EXPECT_EQ(sorted == (std::vector<int32_t>{0, 1, 2, 3}), true);
  EXPECT_EQ(std::isnan(choice.weights[0]), true);
}

TEST(pairs_of_tokens_and_experts_are_grouped_by_expert_in_the_order_of_tokens) {
  for (const int64_t shared : {0, 8}) {
    Moe moe = moe_of(6, 2);
    moe.shared_intermediate_size = shared;
    ExpertPlan plan;
    plan.begin(moe, 50);
    const std::vector<float> noise = random_values(1, 100, 1.0f);
    for (int token = 0; token < 50; ++token) {
      const int first = static_cast<int>(std::abs(noise[token]) * 100) % 6;
      plan.experts[static_cast<size_t>(token * plan.slots)] = first;
      plan.experts[static_cast<size_t>(token * plan.slots + 1)] = (first + 1 + token % 5) % 6;
      if (shared > 0) plan.experts[static_cast<size_t>(token * plan.slots + 2)] = 6;
    }
    plan.sort_by_expert();
    int total = 0;
    for (int expert = 0; expert <= 6; ++expert) {
      const int first = plan.first_pair[static_cast<size_t>(expert)];
      EXPECT_EQ(first, total);
      for (int i = 0; i < plan.num_pairs(expert); ++i) {
        const int32_t token = plan.tokens[static_cast<size_t>(first + i)];
        if (i > 0) EXPECT(plan.tokens[static_cast<size_t>(first + i - 1)] < token);
        bool is_found = false;
        for (int slot = 0; slot < plan.slots; ++slot) {
          const size_t at = static_cast<size_t>(token * plan.slots + slot);
          is_found = is_found || (plan.experts[at] == expert && plan.pairs[at] == first + i);
        }
        EXPECT(is_found);
      }
      total += plan.num_pairs(expert);
    }
    EXPECT_EQ(total, 50 * plan.slots);
  }
}

}  // namespace
}  // namespace capstan::testing
