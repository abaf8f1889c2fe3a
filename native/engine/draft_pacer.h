#pragma once
// Decides how many drafts are worth their time, where each one is computed.
#include <algorithm>
#include <utility>

namespace capstan {

// What one more row adds to the time of a step with one row. Measured: benchmarks/results/speculation.md.
constexpr double kRowCost = 0.13;
// What one more draft of an MTP head adds to it: a row, and a layer and the LM head of a model of 24 layers and more.
constexpr double kMtpDraftCost = 0.2;

// Returns the number of drafts with the most tokens per time. The i-th draft holds when all before it do. `accuracy`:
// the share of drafts that hold if those before them do. `draft_cost`: what one more draft adds to the time of a step,
// as a share of a step without drafts.
inline int best_num_drafts(int max_drafts, double accuracy, double draft_cost) {
  int best = 0;
  double best_rate = 1, probability = 1, num_expected = 1;
  for (int count = 1; count <= max_drafts; ++count) {
    probability *= accuracy;
    num_expected += probability;
    const double rate = num_expected / (1 + draft_cost * count);
    if (rate < best_rate) break;
    best = count;
    best_rate = rate;
  }
  return best;
}

class DraftPacer {
 public:
  // `draft_cost`: as in best_num_drafts. `accuracy`: the share of drafts that hold, before any was verified.
  DraftPacer(int max_drafts, double draft_cost, double accuracy = 0.7)
      : max_drafts_(max_drafts), draft_cost_(draft_cost), accuracy_(accuracy) {}

  // While no draft is worth its time, one now and then shows whether that has changed.
  int num_proposed() const {
    const int best = best_num_drafts(max_drafts_, accuracy_, draft_cost_);
    return best == 0 && num_tokens_without_ >= kProbeInterval ? 1 : best;
  }

  // Call when a draft for the next step was computed and left out: it counts as a rejected one.
  void refuse() { is_refused_ = true; }

  // Call with each step that draws tokens. No draft after a rejected one says anything.
  void observe(int num_drafts, int num_accepted) {
    if (std::exchange(is_refused_, false)) ++num_drafts;
    num_tokens_without_ = num_drafts > 0 ? 0 : num_tokens_without_ + 1;
    for (int i = 0; i < std::min(num_drafts, num_accepted + 1); ++i)
      accuracy_ += kNewest * ((i < num_accepted ? 1 : 0) - accuracy_);
  }

 private:
  static constexpr double kNewest = 0.0625;  // weight of the newest draft in the average
  static constexpr int kProbeInterval = 32;

  int max_drafts_;
  double draft_cost_;
  double accuracy_;  // share of drafts that hold if those before them do
  int num_tokens_without_ = 0;
  bool is_refused_ = false;
};

}  // namespace capstan
