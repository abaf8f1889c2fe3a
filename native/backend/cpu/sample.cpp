#include "native/backend/cpu/sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "native/backend/cpu/kernels.h"
#include "native/base/random.h"

namespace capstan {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();
// Gumbel noise of a 32-bit uniform is at most -log(-log(1 - 2^-33)) = 22.88. A score further below the best cannot win.
constexpr double kMaxGumbel = 22.9;
constexpr size_t kBlock = kNoiseBlock;
// A score this far below the best adds exp(-50) to a sum of at least 1, which rounds away in double precision.
constexpr float kNegligible = 50.0f;

struct Candidate {
  float score;  // logit over temperature
  int32_t id;
};

// Orders the most likely first, ties by the lowest id.
bool ranks_before(const Candidate& a, const Candidate& b) {
  return a.score > b.score || (a.score == b.score && a.id < b.id);
}

bool is_all_finite(std::span<const float> values) {
  uint32_t has_non_finite = 0;
  for (const float value : values)
    has_non_finite |= static_cast<uint32_t>((std::bit_cast<uint32_t>(value) & 0x7f800000u) == 0x7f800000u);
  return has_non_finite == 0;
}

float max_of(std::span<const float> values) {
  float lanes[16];
  std::fill(std::begin(lanes), std::end(lanes), kMasked);
  size_t i = 0;
  for (; i + 16 <= values.size(); i += 16)
    for (size_t lane = 0; lane < 16; ++lane)
      lanes[lane] = lanes[lane] > values[i + lane] ? lanes[lane] : values[i + lane];
  float best = *std::max_element(std::begin(lanes), std::end(lanes));
  for (; i < values.size(); ++i)
    best = std::max(best, values[i]);
  return best;
}

// Returns the lowest id of the largest value.
int32_t argmax(std::span<const float> values) {
  const float best = max_of(values);
  return static_cast<int32_t>(std::find(values.begin(), values.end(), best) - values.begin());
}

// Fills `out` with the `count` best scores, ranked, without masked ids.
void top_candidates(std::span<const float> scores, size_t count, std::vector<Candidate>& out) {
  out.clear();
  if (count == 0) return;
  float threshold = kMasked;
  for (size_t id = 0; id < scores.size(); ++id) {
    if (!(scores[id] > threshold)) continue;
    out.push_back({scores[id], static_cast<int32_t>(id)});
    // Selects the best only when the list has doubled, so that the cost stays linear on average.
    if (out.size() >= 2 * count + 64) {
      std::nth_element(out.begin(), out.begin() + static_cast<ptrdiff_t>(count) - 1, out.end(), ranks_before);
      out.resize(count);
      threshold = out.back().score;
    }
  }
  std::sort(out.begin(), out.end(), ranks_before);
  if (out.size() > count) out.resize(count);
}

double log_sum_exp(std::span<const float> logits, float max_logit) {
  double sum = 0;
  for (const float logit : logits)
    sum += std::exp(static_cast<double>(logit) - max_logit);
  return max_logit + std::log(sum);
}

// Sets the log-probabilities, which are those of the raw logits over the full vocabulary.
void fill_logprobs(std::span<const float> logits, const SampleRow& row, int32_t id, SampleResult& result) {
  thread_local std::vector<Candidate> best;
  const double normalizer = log_sum_exp(logits, max_of(logits));
  const Candidate drawn{logits[static_cast<size_t>(id)], id};
  result.logprob = static_cast<float>(drawn.score - normalizer);
  int32_t rank = 1;
  for (size_t other = 0; other < logits.size(); ++other)
    rank += ranks_before({logits[other], static_cast<int32_t>(other)}, drawn);
  result.rank = rank;
  result.top.clear();
  top_candidates(logits, std::min(static_cast<size_t>(row.num_logprobs), logits.size()), best);
  for (const Candidate& candidate : best)
    result.top.push_back({candidate.id, static_cast<float>(candidate.score - normalizer)});
}

bool changes_logits(const SampleRow& row) {
  return !row.allowed_mask.empty() || !row.banned_ids.empty() || !row.logit_bias.empty() ||
         row.repetition_penalty != 1.0f || row.presence_penalty != 0.0f || row.frequency_penalty != 0.0f;
}

void apply_mask(const SampleRow& row, std::span<float> scores) {
  if (!row.allowed_mask.empty())
    for (size_t id = 0; id < scores.size(); ++id)
      if (!(row.allowed_mask[id / 32] >> (id % 32) & 1)) scores[id] = kMasked;
  for (const int32_t id : row.banned_ids)
    if (static_cast<size_t>(id) < scores.size()) scores[static_cast<size_t>(id)] = kMasked;
}

void apply_repetition_penalty(float penalty, float& score) {
  score = score > 0 ? score / penalty : score * penalty;
}

void apply_bias_and_penalties(const SampleRow& row, std::span<float> scores) {
  for (const auto& [id, bias] : row.logit_bias)
    if (static_cast<size_t>(id) < scores.size()) scores[static_cast<size_t>(id)] += bias;
  if (row.repetition_penalty != 1.0f) {
    size_t next_prompt = 0;
    const auto& prompt_ids = row.counts.prompt_ids;
    for (const int32_t id : prompt_ids)
      if (static_cast<size_t>(id) < scores.size())
        apply_repetition_penalty(row.repetition_penalty, scores[static_cast<size_t>(id)]);
    for (const auto& [id, times] : row.counts.completion_counts) {
      while (next_prompt < prompt_ids.size() && prompt_ids[next_prompt] < id)
        ++next_prompt;
      const bool is_in_prompt = next_prompt < prompt_ids.size() && prompt_ids[next_prompt] == id;
      if (!is_in_prompt) apply_repetition_penalty(row.repetition_penalty, scores[static_cast<size_t>(id)]);
    }
  }
  for (const auto& [id, times] : row.counts.completion_counts)
    scores[static_cast<size_t>(id)] -= row.presence_penalty + row.frequency_penalty * static_cast<float>(times);
}

// Returns the sum of exp(score - best) over all scores that are not negligible.
double sum_exp(std::span<const float> scores, float best) {
  double sum = 0;
  for (const float score : scores)
    if (score > best - kNegligible) sum += std::exp(static_cast<double>(score) - best);
  return sum;
}

// Cuts `ranked` to the smallest prefix whose probability reaches top_p, at least one candidate. `total` is the sum of
// exp over all candidates.
void cut_top_p(std::vector<Candidate>& ranked, double total, float top_p) {
  double reached = 0;
  for (size_t i = 0; i < ranked.size(); ++i) {
    reached += std::exp(static_cast<double>(ranked[i].score) - ranked[0].score) / total;
    if (reached >= top_p) {
      ranked.resize(i + 1);
      return;
    }
  }
}

// Fills `ranked` with the candidates whose probability reaches top_p. Ranks 64 candidates first and eight times as many
// on each retry, instead of the full vocabulary.
void rank_top_p(std::span<const float> scores, float top_p, std::vector<Candidate>& ranked) {
  const float best = max_of(scores);
  const double total = sum_exp(scores, best);
  for (size_t count = 64;; count *= 8) {
    top_candidates(scores, std::min(count, scores.size()), ranked);
    double reached = 0;
    for (const Candidate& candidate : ranked)
      reached += std::exp(static_cast<double>(candidate.score) - best) / total;
    if (reached >= top_p || ranked.size() < count) break;
  }
  cut_top_p(ranked, total, top_p);
}

uint32_t noise_of(const SampleRow& row, int32_t id) {
  return noise_word(row.seed, row.position, row.choice_idx, static_cast<uint32_t>(id));
}

double gumbel_noise(uint32_t word) {
  const double uniform = (static_cast<double>(word) + 0.5) * 0x1p-32;
  return -std::log(-std::log(uniform));
}

class GumbelMax {
 public:
  void offer(float score, int32_t id, uint32_t word) {
    const double noisy = score + gumbel_noise(word);
    if (noisy > best_ || (noisy == best_ && id < id_)) {
      best_ = noisy;
      id_ = id;
    }
  }
  bool cannot_win(float score) const { return score + kMaxGumbel < best_; }
  // Returns a lower bound of the noise words that let `score` win: noise(word) >= best - score, solved for the word and
  // rounded down with a margin.
  uint32_t min_winning_word(float score) const {
    const double word = std::exp(-std::exp(score - best_)) * 0x1p32 - 0.5;
    return word <= 2 ? 0 : static_cast<uint32_t>(word) - 2;
  }
  int32_t id() const { return id_; }

 private:
  double best_ = -std::numeric_limits<double>::infinity();
  int32_t id_ = -1;
};

// Draws from all ids whose score is at least `floor`. The noise of an id costs two logarithms, so blocks and then words
// that cannot win are skipped first.
int32_t draw_from_all(const CpuKernels& kernels, const SampleRow& row, std::span<const float> scores, int32_t likeliest,
                      float floor) {
  GumbelMax best;
  best.offer(scores[static_cast<size_t>(likeliest)], likeliest, noise_of(row, likeliest));
  uint32_t words[kBlock];
  for (size_t begin = 0; begin < scores.size(); begin += kBlock) {
    const auto block = scores.subspan(begin, std::min(kBlock, scores.size() - begin));
    const float highest = max_of(block);
    if (highest < floor || highest == kMasked || best.cannot_win(highest)) continue;
    kernels.noise_words(row.seed, row.position, row.choice_idx, static_cast<uint32_t>(begin), words);
    const uint32_t least = best.min_winning_word(highest);
    for (size_t i = 0; i < block.size(); ++i)
      if (words[i] >= least && block[i] >= floor && block[i] != kMasked)
        best.offer(block[i], static_cast<int32_t>(begin + i), words[i]);
  }
  return best.id();
}

int32_t draw(const CpuKernels& kernels, const SampleRow& row, std::span<float> scores, int32_t likeliest) {
  thread_local std::vector<Candidate> ranked;
  for (float& score : scores)
    score /= row.temperature;
  const bool has_top_k = row.top_k > 0 && static_cast<size_t>(row.top_k) < scores.size();
  if (!has_top_k && row.top_p >= 1.0f) {
    const float best_score = scores[static_cast<size_t>(likeliest)];
    return draw_from_all(kernels, row, scores, likeliest, row.min_p > 0 ? best_score + std::log(row.min_p) : kMasked);
  }
  if (has_top_k) {
    top_candidates(scores, static_cast<size_t>(row.top_k), ranked);
    if (row.top_p < 1.0f) {
      double total = 0;
      for (const Candidate& candidate : ranked)
        total += std::exp(static_cast<double>(candidate.score) - ranked[0].score);
      cut_top_p(ranked, total, row.top_p);
    }
  } else {
    rank_top_p(scores, row.top_p, ranked);
  }
  const float floor = row.min_p > 0 ? ranked[0].score + std::log(row.min_p) : kMasked;
  GumbelMax best;
  for (const Candidate& candidate : ranked)
    if (candidate.score >= floor && !best.cannot_win(candidate.score))
      best.offer(candidate.score, candidate.id, noise_of(row, candidate.id));
  return best.id();
}

}  // namespace

void sample_row(const CpuKernels& kernels, std::span<const float> logits, int64_t num_token_ids, const SampleRow& row,
                SampleResult& result) {
  result.has_numeric_error = !is_all_finite(logits);
  if (result.has_numeric_error) return;
  const auto drawable = logits.first(static_cast<size_t>(num_token_ids));
  if (!row.wants_sample) {
    result.token_id = row.target_id;
  } else if (row.temperature == 0 && !changes_logits(row)) {
    result.token_id = argmax(drawable);
  } else {
    thread_local std::vector<float> scores;
    scores.assign(drawable.begin(), drawable.end());
    apply_mask(row, scores);
    apply_bias_and_penalties(row, scores);
    const int32_t likeliest = argmax(scores);
    // The engine never masks every id. If it did, no id could be drawn.
    const bool is_all_masked = scores[static_cast<size_t>(likeliest)] == kMasked;
    if (is_all_masked) {
      result.has_numeric_error = true;
      return;
    }
    result.token_id = row.temperature == 0 ? likeliest : draw(kernels, row, scores, likeliest);
  }
  if (row.num_logprobs >= 0) fill_logprobs(logits, row, result.token_id, result);
}

}  // namespace capstan
