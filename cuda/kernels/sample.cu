// Sampling with one block per row (architecture, contract 5). A row of logits is read once to find its maximum, and
// once to draw. With top-k or top-p it is also read once to list the candidates.
#include "cuda/kernels/sample_threshold.h"
#include "cuda/launch.h"
#include "native/base/check.h"

namespace capstan::cuda {
namespace {

constexpr int kThreads = kSampleThreads;
// Gumbel noise from a 32-bit uniform is at most 22.88. A score this far below the best cannot win.
constexpr float kMaxGumbel = 22.9f;

// noise_word of native/base/random.h: one of the four words of Philox4x32-10.
__device__ __forceinline__ uint32_t noise_word(const SampleItem& item, uint32_t id) {
  uint32_t c0 = item.position, c1 = item.choice_idx, c2 = id / 4, c3 = 0;
  uint32_t key0 = item.seed_low, key1 = item.seed_high;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c0, p1 = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ key0;
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ key1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  const uint32_t even = id & 2 ? c2 : c0, odd = id & 2 ? c3 : c1;
  return id & 1 ? odd : even;
}

// ---- scores

__device__ __forceinline__ bool contains(const int32_t* ids, int count, int32_t id) {
  int low = 0, high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (ids[middle] < id)
      low = middle + 1;
    else
      high = middle;
  }
  return low < count && ids[low] == id;
}

__device__ __forceinline__ float apply_repetition_penalty(float penalty, float score) {
  return score > 0 ? score / penalty : score * penalty;
}

__device__ __forceinline__ bool has_edits(const SampleItem& item) {
  return item.allowed_mask.count > 0 || item.banned_ids.count > 0 || item.logit_bias.count > 0 ||
         item.prompt_ids.count > 0 || item.completion_counts.count > 0;
}

// Applies masks, bias and penalties. `scores` (num_token_ids) has the same offset from a 16-byte boundary as the
// logits.
__device__ __noinline__ void edit_scores(float* scores) {
  SampleShared& shared = sample_shared();
  const float* logits = shared.logits;
  const auto count = static_cast<int>(shared.args.num_token_ids);
  const SampleItem& item = shared.item;
  const int32_t* words = item.words;
  bool is_bad = false;
  for_each_batch(logits, count, kLowest, [&](Batch batch) {
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      is_bad |= !(fabsf(batch.values[j]) <= -kLowest);
      const int id = batch.id(j) < count ? batch.id(j) : 0;
      if (item.allowed_mask.count > 0 && (words[item.allowed_mask.begin + id / 32] >> (id % 32) & 1) == 0)
        batch.values[j] = kMasked;
    }
    if (batch.is_single) scores[batch.first] = batch.values[0];
#pragma unroll
    for (int j = 0; j < kBatch; j += 4)
      if (!batch.is_single && batch.id(j + 3) < count)
        *reinterpret_cast<float4*>(scores + batch.id(j)) = {batch.values[j], batch.values[j + 1], batch.values[j + 2],
                                                            batch.values[j + 3]};
  });
  if (is_bad) shared.is_non_finite = 1;
  __syncthreads();
  const auto each = [&](SampleItem::Range range, int width, auto&& change) {
    for (int i = static_cast<int>(threadIdx.x); i < range.count; i += kThreads) {
      const int32_t* entry = words + range.begin + i * width;
      if (entry[0] >= 0 && entry[0] < count) change(scores[entry[0]], entry);
    }
    __syncthreads();
  };
  each(item.banned_ids, 1, [](float& score, const int32_t*) { score = kMasked; });
  each(item.logit_bias, 2,
       [](float& score, const int32_t* entry) { score += as_float(static_cast<uint32_t>(entry[1])); });
  if (item.repetition_penalty != 1.0f) {
    each(item.prompt_ids, 1,
         [&](float& score, const int32_t*) { score = apply_repetition_penalty(item.repetition_penalty, score); });
    each(item.completion_counts, 2, [&](float& score, const int32_t* entry) {
      if (!contains(words + item.prompt_ids.begin, item.prompt_ids.count, entry[0]))
        score = apply_repetition_penalty(item.repetition_penalty, score);
    });
  }
  each(item.completion_counts, 2, [&](float& score, const int32_t* entry) {
    // The product is rounded before the addition, as on the CPU.
    score -= item.presence_penalty + __fmul_rn(item.frequency_penalty, static_cast<float>(entry[1]));
  });
}

// ---- drawing

// NOTE: double precision is slow on most devices, so only possible winners get here.
__device__ __noinline__ double add_gumbel_noise(float score, uint32_t word) {
  return score - log(-log((static_cast<double>(word) + 0.5) * 0x1p-32));
}

// Gumbel-max over the candidates with keys >= `threshold` and scores >= `floor`.
__device__ __noinline__ int32_t draw(uint64_t threshold, float floor) {
  SampleShared& shared = sample_shared();
  const SampleItem& item = shared.item;
  double best = -1e300;
  int32_t best_id = kNoId;
  // Among equal scores, this id may be below the threshold.
  if (rank_key(shared.all.best, shared.summary.best_id) >= threshold) {
    best_id = shared.summary.best_id;
    if (threadIdx.x == 0)
      shared.noisy_score = add_gumbel_noise(shared.all.best, noise_word(item, static_cast<uint32_t>(best_id)));
    __syncthreads();
    best = shared.noisy_score;
  }
  if (shared.all.num == kUnlisted)
    raise_lower_bound(slightly_below(fmaxf(floor, static_cast<float>(best) - kMaxGumbel) * shared.all.temperature));
  float to_beat = slightly_below(static_cast<float>(best));
  for_each_candidate([&](uint64_t key) {
    const float score = value_of(key);
    if (key < threshold || score < floor) return;
    // The noise of a word is less than -log(1 - u), u = (word + 1/2) / 2^32. To win, 1 - u must be at most `reach`, in
    // units of 2^-32. The factor 1.01 covers rounding.
    const float reach = ex2_approx((score - to_beat) * kLog2E + 32.0f) * 1.01f;
    if (reach < 0.5f) return;
    const uint32_t word = noise_word(item, static_cast<uint32_t>(id_of(key)));
    if (static_cast<float>(~word) > reach) return;
    const double noisy_score = add_gumbel_noise(score, word);
    if (noisy_score < best || (noisy_score == best && id_of(key) > best_id)) return;
    best = noisy_score, best_id = id_of(key);
    to_beat = slightly_below(static_cast<float>(best));
  });
  const double highest = block_max(best, shared.warp_scratch);
  return block_min(best == highest ? best_id : kNoId, shared.warp_scratch);
}

// The key of the last candidate that top-k and top-p keep. With top-k, all candidates for the k best must be listed.
__device__ __noinline__ uint64_t threshold_of() {
  SampleShared& shared = sample_shared();
  const SampleItem& item = shared.item;
  const bool has_top_k = item.top_k > 0 && item.top_k < shared.all.count;
  uint64_t threshold = 0;
  if (has_top_k) {
    const auto target = static_cast<unsigned long long>(item.top_k);
    list_top_candidates<false>(target);
    threshold = find_threshold<false>(0, target, kAllDigits);
  }
  if (!(item.top_p < 1.0f)) return threshold;
  double total = shared.summary.sum * double{kMassUnit};
  if (has_top_k) {
    unsigned long long mass = 0;
    for_each_candidate([&](uint64_t key) {
      if (key >= threshold) mass += mass_of(value_of(key), shared.all.best);
    });
    total = static_cast<double>(block_sum(mass, shared.warp_scratch));
  }
  const auto part = static_cast<unsigned long long>(total * item.top_p);
  const unsigned long long target = part > 0 ? part : 1;
  if (!has_top_k) {
    // Values that are further below the best have a total mass of at most what top-p drops.
    const float behind =
                    logf(static_cast<float>(shared.all.count) / ((1.0f - item.top_p) * shared.summary.sum)) + 0.01f,
                best = shared.summary.best;
    raise_lower_bound(best - behind * item.temperature - fabsf(best) * 1e-6f);
    list_top_candidates<true>(target);
  }
  return find_threshold<true>(threshold, target, kAllDigits);
}

// Returns the sampled id, or -1 when no id can be drawn.
__device__ __noinline__ int32_t choose_token() {
  SampleShared& shared = sample_shared();
  const SampleArgs& args = shared.args;
  const SampleItem& item = shared.item;
  const auto count = static_cast<int>(args.num_token_ids);
  const float *logits = shared.logits, *row = logits;
  for (int64_t id = args.num_token_ids + threadIdx.x; id < args.vocab_size; id += kThreads)
    if (!(fabsf(logits[id]) <= -kLowest)) shared.is_non_finite = 1;
  if (has_edits(item)) {
    float* scores =
        args.scores + blockIdx.x * sample_scratch_floats(args.vocab_size) + (4 - values_to_boundary(logits)) % 4;
    edit_scores(scores);
    row = scores;
  }
  const bool has_top_k = item.top_k > 0 && item.top_k < count, has_top_p = item.top_p < 1.0f;
  const bool is_good = item.temperature == 0 || has_top_k || !has_top_p
                           ? summarize_row<false>(row, count, 1, shared.summary, shared.warp_scratch)
                           : summarize_row<true>(row, count, item.temperature, shared.summary, shared.warp_scratch);
  // Masked ids are -inf, so the summary of edited scores cannot detect Inf.
  if (shared.is_non_finite != 0 || (row == logits && !is_good) || shared.summary.best_id == kNoId) return -1;
  if (item.temperature == 0) return shared.summary.best_id;

  const float best = shared.summary.best / item.temperature,
              lower_bound = has_top_k ? lower_bound_of_top(item.top_k) : kLowest;
  if (threadIdx.x == 0) shared.all = {row, count, item.temperature, best, lower_bound, kUnlisted};
  __syncthreads();
  const uint64_t threshold = has_top_k || has_top_p ? threshold_of() : 0;
  return draw(threshold, item.min_p > 0 ? best + logf(item.min_p) : kMasked);
}

// ---- log-probabilities of the raw logits, over the whole vocabulary

__device__ __noinline__ void write_logprobs(int32_t token_id, SampleOutput& output) {
  SampleShared& shared = sample_shared();
  const float* logits = shared.logits;
  const auto vocab_size = static_cast<int>(shared.args.vocab_size);
  const SampleItem& item = shared.item;
  const float normalizer = shared.summary.best + logf(shared.summary.sum), drawn = logits[token_id];
  const int num_top = item.num_logprobs < vocab_size ? item.num_logprobs : vocab_size;
  const float lower_bound = num_top > 0 ? lower_bound_of_top(num_top) : shared.summary.best;
  if (threadIdx.x == 0) shared.all = {logits, vocab_size, 1, shared.summary.best, lower_bound, kUnlisted};
  __syncthreads();
  int num_before = 0;
  list_candidates([&](const Batch& batch) {
#pragma unroll
    for (int j = 0; j < kBatch; ++j)
      num_before += static_cast<int>(batch.values[j] > drawn) |
                    (static_cast<int>(batch.values[j] == drawn) & static_cast<int>(batch.id(j) < token_id));
  });
  const int rank = block_sum(num_before, shared.warp_scratch) + 1;
  if (threadIdx.x == 0) output.rank = rank, output.logprob = drawn - normalizer, shared.num_top = 0;
  __syncthreads();
  if (num_top == 0) return;
  const uint64_t threshold = find_threshold<false>(0, static_cast<unsigned long long>(num_top), kAllDigits);
  for_each_candidate([&](uint64_t key) {
    if (key < threshold) return;
    const int place = atomicAdd(&shared.num_top, 1);
    if (place < kMaxTopLogprobs) shared.top[place] = key;
  });
  __syncthreads();
  const int found = shared.num_top < num_top ? shared.num_top : num_top;
  for (int i = static_cast<int>(threadIdx.x); i < found; i += kThreads) {
    int place = 0;
#pragma unroll 4
    for (int other = 0; other < found; ++other)
      place += shared.top[other] > shared.top[i];
    output.top_ids[place] = id_of(shared.top[i]);
    output.top_logprobs[place] = logits[id_of(shared.top[i])] - normalizer;
  }
  if (threadIdx.x == 0) output.num_top = found;
}

__global__ void __launch_bounds__(kThreads, 1) sample_kernel(SampleArgs args) {
  SampleShared& shared = sample_shared();
  constexpr int kItemWords = sizeof(SampleItem) / sizeof(uint32_t);
  if (threadIdx.x < kItemWords)
    reinterpret_cast<uint32_t*>(&shared.item)[threadIdx.x] =
        reinterpret_cast<const uint32_t*>(args.items + blockIdx.x)[threadIdx.x];
  if (threadIdx.x == 0) shared.args = args, shared.is_non_finite = 0;
  __syncthreads();
  if (shared.item.logits_row < 0) return;
  if (threadIdx.x == 0) shared.logits = args.logits + shared.item.logits_row * args.logits_stride;
  __syncthreads();

  int32_t token_id = shared.item.wants_sample != 0 ? choose_token() : shared.item.target_id;
  if (shared.item.num_logprobs >= 0 || shared.item.wants_sample == 0) {
    __syncthreads();
    if (!summarize_row<true>(shared.logits, static_cast<int>(shared.args.vocab_size), 1, shared.summary,
                             shared.warp_scratch))
      token_id = -1;
  }
  SampleOutput& output = shared.args.outputs[blockIdx.x];
  if (threadIdx.x == 0) {
    shared.args.drawn_ids[blockIdx.x] = token_id;
    output.token_id = token_id;
    output.num_top = token_id < 0 ? -1 : 0;
  }
  if (token_id >= 0 && shared.item.num_logprobs >= 0) write_logprobs(token_id, output);
}

}  // namespace

void launch_sample(const SampleArgs& args, cudaStream_t stream) {
  CAPSTAN_CHECK(args.num_items > 0 && args.drawn_ids != nullptr && args.num_token_ids > 0 &&
                args.num_token_ids <= args.vocab_size && args.vocab_size <= args.logits_stride);
  CAPSTAN_CHECK(args.vocab_size <= kMaxVocab);
  static_assert(sizeof(SampleShared) <= kMinSharedBytes);
  launch(sample_kernel, dim3(static_cast<unsigned>(args.num_items)), dim3(kThreads), sizeof(SampleShared), stream,
         args);
}

}  // namespace capstan::cuda
