#include "native/backend/cpu/sample.h"

#include <atomic>
#include <cmath>

#include "native/backend/cpu/sample_threshold.h"
#include "native/base/check.h"
#include "native/base/random.h"

namespace capstan {
namespace {

// Threads share a row of at least this many ids. For fewer, waking the team costs more.
constexpr int64_t kMinSharedIds = 32768;

bool changes_logits(const SampleRow& row) {
  return !row.allowed_mask.empty() || !row.banned_ids.empty() || !row.logit_bias.empty() ||
         row.repetition_penalty != 1.0f || row.presence_penalty != 0.0f || row.frequency_penalty != 0.0f;
}

void apply_repetition_penalty(float penalty, float& score) {
  score = score > 0 ? score / penalty : score * penalty;
}

// Applies what concerns only listed ids.
void apply_lists(const SampleRow& row, std::span<float> scores) {
  for (const int32_t id : row.banned_ids)
    if (static_cast<size_t>(id) < scores.size()) scores[static_cast<size_t>(id)] = kMasked;
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

// Samples one row.
class RowSampler {
 public:
  RowSampler(const RowThreads& threads, std::span<const float> logits, int64_t num_token_ids, const SampleRow& row)
      : threads_(threads), logits_(logits), num_token_ids_(num_token_ids), row_(row) {}

  void sample(SampleResult& result) const {
    result.token_id = row_.wants_sample ? choose() : row_.target_id;
    result.has_numeric_error = row_.wants_sample ? result.token_id < 0 : !scan_logits().is_finite;
    if (!result.has_numeric_error && row_.num_logprobs >= 0) fill_logprobs(result);
  }

 private:
  // A denormal temperature counts as zero, as it does in a division (Team::run).
  bool is_greedy() const { return row_.temperature < std::numeric_limits<float>::min(); }

  ScoreRow scan_logits() const {
    return scan_row(threads_, logits_.data(), static_cast<int64_t>(logits_.size()), nullptr, 1, nullptr);
  }

  // Returns -1 when a logit is not finite, or when all ids are masked. The engine never masks all of them.
  int32_t choose() const {
    const auto num_other = static_cast<int64_t>(logits_.size()) - num_token_ids_;
    if (num_other > 0 && !scan_row(threads_, logits_.data() + num_token_ids_, num_other, nullptr, 1, nullptr).is_finite)
      return -1;
    const ScoreRow scores = score();
    if (!scores.is_finite || scores.is_masked()) return -1;
    // Only a division can make a score infinite.
    return is_greedy() || std::isinf(scores.best) ? best_id(threads_, scores) : draw(scores);
  }

  // Masks, changes and divides the logits by the temperature.
  ScoreRow score() const {
    const float divisor = is_greedy() ? 1 : row_.temperature;
    float* memory = threads_.row().scores.as<float>();
    float* divided = divisor == 1 ? nullptr : memory;
    if (!changes_logits(row_)) return scan_row(threads_, logits_.data(), num_token_ids_, nullptr, divisor, divided);
    const uint32_t* mask = row_.allowed_mask.empty() ? nullptr : row_.allowed_mask.data();
    const bool is_finite = scan_row(threads_, logits_.data(), num_token_ids_, mask, 1, memory).is_finite;
    apply_lists(row_, {memory, static_cast<size_t>(num_token_ids_)});
    ScoreRow scores = scan_row(threads_, memory, num_token_ids_, nullptr, divisor, divided);
    scores.is_finite = is_finite;  // masked scores are -Inf
    return scores;
  }

  Threshold threshold(const ScoreRow& scores) const {
    Threshold kept;
    const bool has_top_k = row_.top_k > 0 && row_.top_k < scores.count;
    if (has_top_k) kept = find_top_k(threads_, scores, row_.top_k);
    if (row_.top_p < 1.0f) kept = find_top_p(threads_, scores, row_.top_p, kept, row_.top_k);
    if (row_.min_p > 0) kept = tighter(kept, {scores.best + std::log(row_.min_p), kLastId});
    return kept;
  }

  int32_t draw(const ScoreRow& scores) const {
    const Threshold kept = threshold(scores);
    DrawArgs start;
    start.floor = kept.score;
    start.last_id = kept.last_id;
    start.seed = row_.seed;
    start.position = row_.position;
    start.choice = row_.choice_idx;
    // The best score is kept always. Few others can beat it.
    start.best_id = best_id(threads_, scores);
    start.best = add_noise(scores.best, start.best_id);
    for (SampleScratch& scratch : threads_.scratch)
      scratch.draw = start;
    threads_.for_chunks(scores.count, [&](SampleScratch& own, int64_t begin, int64_t end) {
      own.draw.scores = scores.scores + begin;
      own.draw.block_max = threads_.row().block_max.data() + begin / kMaxBlock;
      own.draw.count = end - begin;
      own.draw.first_id = static_cast<int32_t>(begin);
      threads_.kernels.draw(own.draw);
    });
    const DrawArgs* winner = &start;
    for (const SampleScratch& scratch : threads_.scratch)
      if (scratch.draw.best > winner->best ||
          (scratch.draw.best == winner->best && scratch.draw.best_id < winner->best_id))
        winner = &scratch.draw;
    return winner->best_id;
  }

  double add_noise(float score, int32_t id) const {
    const uint32_t word = noise_word(row_.seed, row_.position, row_.choice_idx, static_cast<uint32_t>(id));
    return score - std::log(-std::log((static_cast<double>(word) + 0.5) * 0x1p-32));
  }

  // Sets the log-probabilities, which are those of the raw logits over the full vocabulary.
  void fill_logprobs(SampleResult& result) const {
    const ScoreRow raw = scan_logits();
    const double normalizer = raw.best + std::log(exp_sum(threads_, raw, raw.lowest));
    const float drawn = logits_[static_cast<size_t>(result.token_id)];
    result.logprob = static_cast<float>(drawn - normalizer);
    const Rank rank = rank_of(threads_, raw, drawn, result.token_id);
    result.rank = static_cast<int32_t>(1 + rank.num_above + rank.num_equal);
    result.top.clear();
    const int64_t num_top = std::min<int64_t>(row_.num_logprobs, raw.count);
    if (num_top == 0) return;
    for (const auto& [score, id] : list_kept(threads_, raw, find_top_k(threads_, raw, num_top)))
      result.top.push_back({id, static_cast<float>(score - normalizer)});
  }

  const RowThreads& threads_;
  const std::span<const float> logits_;
  const int64_t num_token_ids_;
  const SampleRow& row_;
};

}  // namespace

Sampler::Sampler(const CpuKernels& kernels, int64_t vocab_size, int64_t num_token_ids, Team& team)
    : kernels_(kernels.sample), vocab_size_(vocab_size), num_token_ids_(num_token_ids), team_(team) {
  scratch_.reserve(static_cast<size_t>(team.size()));
  for (int thread = 0; thread < team.size(); ++thread)
    scratch_.emplace_back(vocab_size);
}

void Sampler::sample(const float* logits, std::span<const SampleRow> rows, std::span<SampleResult> results) {
  CAPSTAN_CHECK(rows.size() == results.size() && (rows.empty() || num_token_ids_ > 0));
  const auto sample_row = [&](const RowThreads& threads, size_t i) {
    const std::span<const float> row(logits + rows[i].logits_row * vocab_size_, static_cast<size_t>(vocab_size_));
    RowSampler(threads, row, num_token_ids_, rows[i]).sample(results[i]);
  };
  // A row per thread, as long as all threads have one. The threads share each of the other rows.
  const size_t num_threads = scratch_.size();
  const bool is_shared = num_threads > 1 && vocab_size_ >= kMinSharedIds;
  const size_t num_alone = is_shared ? rows.size() / num_threads * num_threads : rows.size();
  std::atomic<size_t> next_row{0};
  if (num_alone > 0)
    team_.run([&](int thread) {
      const RowThreads alone{kernels_, nullptr, std::span(scratch_).subspan(static_cast<size_t>(thread), 1)};
      for (size_t i; (i = next_row.fetch_add(1, std::memory_order_relaxed)) < num_alone;)
        sample_row(alone, i);
    });
  // What one thread does for all must also run in the team's processor mode, which flushes denormals.
  team_.for_ranges(1, 1, [&](int64_t, int64_t) {
    for (size_t i = num_alone; i < rows.size(); ++i)
      sample_row({kernels_, &team_, scratch_}, i);
  });
}

}  // namespace capstan
