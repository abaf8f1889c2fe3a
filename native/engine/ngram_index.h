#pragma once
// Proposes tokens by prompt look-up: finds the end of a sequence earlier in the same sequence, and proposes the tokens
// that followed there. Integers only: no tensor, device or model header.
#include <cstdint>
#include <span>
#include <vector>

namespace capstan {

struct SpeculationOptions {
  int num_tokens = 0;  // most tokens proposed at once; 0 = no speculation
  // Lengths of the end of a sequence that is looked up: the longest one and the shortest one.
  int max_ngram = 5, min_ngram = 5;
  bool from_grammar = false;  // proposes what the grammar of a sequence forces, instead of a look-up
  // A step with proposed tokens computes at most this many tokens, because verification is cheap in small steps only.
  int max_step_tokens = 8;
};

// The index of one sequence. A look-up compares at most kMaxCandidates earlier places, the most recent first, so the
// time per token is bounded. Of the places with the longest common end the most recent one counts.
class NgramIndex {
 public:
  static constexpr int kMaxCandidates = 32;

  explicit NgramIndex(const SpeculationOptions& options) : options_(options) {}

  // Takes the tokens that are new since the last call. `token_ids` are all tokens of the sequence. Those after the
  // first `num_given` were drawn: they measure how well proposals do, even while nothing is proposed.
  void update(std::span<const int32_t> token_ids, int num_given);
  // Returns how many tokens are worth a proposal: 0 without an earlier place, or when recent predictions were poor.
  int num_proposed() const;
  // Appends the first `count` proposed tokens to `out`. `token_ids` are those of the last update.
  void propose(std::span<const int32_t> token_ids, int count, std::vector<int32_t>& out) const;

 private:
  void add(std::span<const int32_t> token_ids, int end);
  void look_up(std::span<const int32_t> token_ids);
  void rebuild(std::span<const int32_t> token_ids, size_t num_buckets);
  size_t bucket_of(std::span<const int32_t> token_ids, int end) const;

  SpeculationOptions options_;
  int num_indexed_ = 0;  // tokens taken so far
  // An n-gram of min_ngram tokens is known by its end, one past its last token. Each bucket holds the most recent end
  // of those with one hash; `previous_` leads to the earlier ones. 0 = none.
  std::vector<int32_t> newest_;    // (a power of two)
  std::vector<int32_t> previous_;  // (num_indexed_ + 1) by end
  int match_ = 0;                  // the place whose token is predicted to come next, or 0
  // Share of predicted tokens that came true: an average that weighs recent ones more.
  double accuracy_ = 0.4;
  int num_predictions_ = 0;
};

}  // namespace capstan
