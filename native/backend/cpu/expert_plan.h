#pragma once
// Chooses the experts of each token of a step, and orders the tokens by expert. Pure arithmetic on the router's logits.
#include <cstdint>
#include <vector>

#include "native/backend/backend.h"

namespace capstan {

// The experts of one token, best first. They are followed by the shared expert, if the model has one.
struct TokenExperts {
  int32_t* experts;  // (top_k)
  float* weights;    // (top_k)
};

// What a layer adds to the scores of its experts to choose them, and the factors of their weights: (num_experts) each,
// or null.
struct ExpertFactors {
  const float* selection_bias = nullptr;
  const float* scales = nullptr;
};

// `logits` are (num_experts). Ties go to the lowest expert. A NaN is never chosen before a number, and reaches the
// weights.
void choose_experts(const Moe& moe, const float* logits, const ExpertFactors& factors, TokenExperts out);

// A pair is a token and one of its experts. The pairs of an expert are contiguous, in the order of their tokens.
struct ExpertPlan {
  int slots = 0;                    // experts per token: top_k, and one more for the shared expert
  std::vector<int32_t> experts;     // (tokens, slots); the shared expert has the number num_experts
  std::vector<float> weights;       // (tokens, slots)
  std::vector<int32_t> first_pair;  // (num_experts + 2) by expert; the last entry is the number of pairs
  std::vector<int32_t> tokens;      // (pairs)
  std::vector<int32_t> pairs;       // (tokens, slots)

  // Reserves the memory for steps of at most `max_num_tokens` tokens.
  void reserve(const Moe& moe, int max_num_tokens);
  // Sets the sizes for a step, whose experts and weights the caller then fills.
  void begin(const Moe& moe, int64_t num_tokens);
  // Derives the rest from the experts.
  void sort_by_expert();
  int num_pairs(int expert) const {
    return first_pair[static_cast<size_t>(expert) + 1] - first_pair[static_cast<size_t>(expert)];
  }
};

}  // namespace capstan
