// Sampling, one block per row (architecture, contract 5). What is kept by top-k and top-p is a threshold on (score, id), found digit by digit with integer
// sums, so that it does not depend on the order in which threads add.
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "native/base/check.h"

namespace capstan::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kDigits = 256;
constexpr float kMasked = -__builtin_inff();
// Gumbel noise of a 32-bit uniform is at most 22.88: a score this far below the best cannot win.
constexpr double kMaxGumbel = 22.9;
// exp(score - best) in fixed point; a vocabulary of 2^18 sums to less than 2^59.
constexpr float kMassUnit = 1099511627776.0f;  // 2^40

// Orders as (value descending, id ascending): larger is better.
__device__ __forceinline__ uint64_t rank_key(float value, int32_t id) {
#if defined(__CUDACC__)
  const uint32_t bits = __float_as_uint(value + 0.0f);
#else
  const uint32_t bits = float_bits(value + 0.0f);
#endif
  const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}
__device__ __forceinline__ int32_t id_of(uint64_t key) { return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key)); }

struct Shared {
  uint64_t keys[kWarps];
  double noisy[kWarps];
  float floats[kWarps];
  int ints[kWarps];
  unsigned counts[kDigits];
  unsigned long long masses[kDigits];
  uint64_t top[kMaxTopLogprobs];
  int num_top;
  // Result of one digit of a selection.
  int digit;
  unsigned long long left;
  int is_done;
};

// ---- over the block, the same in all threads. Each ends with a barrier, so that the arrays may be used again. -----------------------------------

__device__ __forceinline__ float block_max(float value, Shared& shared) {
  value = warp_max(value);
  if (lane_id() == 0) shared.floats[warp_id()] = value;
  __syncthreads();
  float best = shared.floats[0];
  for (int w = 1; w < kWarps; ++w) best = fmaxf(best, shared.floats[w]);
  __syncthreads();
  return best;
}

__device__ __forceinline__ float block_sum(float value, Shared& shared) {
  value = warp_sum(value);
  if (lane_id() == 0) shared.floats[warp_id()] = value;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += shared.floats[w];
  __syncthreads();
  return sum;
}

__device__ __forceinline__ int block_count(int value, Shared& shared) {
  for (int bits = 16; bits > 0; bits /= 2) value += __shfl_xor_sync(0xffffffffu, value, bits);
  if (lane_id() == 0) shared.ints[warp_id()] = value;
  __syncthreads();
  int sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += shared.ints[w];
  __syncthreads();
  return sum;
}

__device__ __forceinline__ uint64_t block_best(uint64_t key, Shared& shared) {
  for (int bits = 16; bits > 0; bits /= 2) {
    const auto other = static_cast<uint64_t>(__shfl_xor_sync(0xffffffffu, static_cast<unsigned long long>(key), bits));
    key = other > key ? other : key;
  }
  if (lane_id() == 0) shared.keys[warp_id()] = key;
  __syncthreads();
  uint64_t best = shared.keys[0];
  for (int w = 1; w < kWarps; ++w) best = shared.keys[w] > best ? shared.keys[w] : best;
  __syncthreads();
  return best;
}

// ---- thresholds -----------------------------------------------------------------------------------------------------------------------------

__device__ __forceinline__ unsigned long long mass_of(float score, float best) { return static_cast<unsigned long long>(expf(score - best) * kMassUnit); }

// The key T for which the best values down to T number `target`, or, by mass, reach it; of the values with keys from `floor` on. `best`: largest value.
template <bool kByMass>
__device__ uint64_t select(const float* values, int64_t count, uint64_t floor, unsigned long long target, float best, Shared& shared) {
  uint64_t prefix = 0;
  for (int shift = 56; shift >= 0; shift -= 8) {
    for (int i = static_cast<int>(threadIdx.x); i < kDigits; i += kThreads) shared.counts[i] = 0, shared.masses[i] = 0;
    __syncthreads();
    for (int64_t id = threadIdx.x; id < count; id += kThreads) {
      if (values[id] == kMasked) continue;
      const uint64_t key = rank_key(values[id], static_cast<int32_t>(id));
      if (key < floor || (shift < 56 && key >> (shift + 8) != prefix >> (shift + 8))) continue;
      const int digit = static_cast<int>(key >> shift & 255);
      atomicAdd(&shared.counts[digit], 1u);
      if (kByMass) atomicAdd(&shared.masses[digit], mass_of(values[id], best));
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      unsigned long long left = target;
      int digit = kDigits - 1, lowest = kDigits - 1;
      bool is_found = false;
      for (; digit >= 0; --digit) {
        const unsigned long long here = kByMass ? shared.masses[digit] : shared.counts[digit];
        if (shared.counts[digit] > 0) lowest = digit;
        if (shared.counts[digit] > 0 && here >= left) {
          is_found = true;
          break;
        }
        left -= here;
      }
      // Rounding may leave a rest that nobody has: then all are in.
      shared.digit = is_found ? digit : lowest;
      shared.left = left;
      shared.is_done = !is_found || shared.counts[digit] == 1 || (!kByMass && shared.counts[digit] == left);
    }
    __syncthreads();
    prefix |= static_cast<uint64_t>(shared.digit) << shift;
    target = shared.left;
    const bool is_done = shared.is_done != 0;
    __syncthreads();
    if (is_done) break;
  }
  return prefix < floor ? floor : prefix;
}

// Philox4x32-10; first word (native/base/random.h).
__device__ __forceinline__ uint32_t philox(uint32_t position, uint32_t choice, uint32_t id, uint32_t key0, uint32_t key1) {
  uint32_t c0 = position, c1 = choice, c2 = id, c3 = 0;
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
  return c0;
}

// ---- scores ---------------------------------------------------------------------------------------------------------------------------------

__device__ __forceinline__ bool contains(const int32_t* ids, int count, int32_t id) {
  int low = 0, high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (ids[middle] < id) low = middle + 1;
    else high = middle;
  }
  return low < count && ids[low] == id;
}

__device__ __forceinline__ float repeat(float penalty, float score) { return score > 0 ? score / penalty : score * penalty; }

// Masks, bias and penalties: scores (num_token_ids).
__device__ void make_scores(const SampleArgs& args, const SampleItem& item, const float* logits, float* scores) {
  const int32_t* words = item.words;
  const auto each = [&](SampleItem::Range range, int width, auto&& change) {
    for (int i = static_cast<int>(threadIdx.x); i < range.count; i += kThreads) {
      const int32_t* entry = words + range.begin + i * width;
      if (entry[0] >= 0 && entry[0] < args.num_token_ids) change(scores[entry[0]], entry);
    }
    __syncthreads();
  };
  for (int64_t id = threadIdx.x; id < args.num_token_ids; id += kThreads) {
    const bool is_allowed = item.allowed_mask.count == 0 || (words[item.allowed_mask.begin + id / 32] >> (id % 32) & 1) != 0;
    scores[id] = is_allowed ? logits[id] : kMasked;
  }
  __syncthreads();
  each(item.banned_ids, 1, [](float& score, const int32_t*) { score = kMasked; });
  each(item.logit_bias, 2, [](float& score, const int32_t* entry) {
#if defined(__CUDACC__)
    score += __int_as_float(entry[1]);
#else
    score += bits_float(static_cast<uint32_t>(entry[1]));
#endif
  });
  if (item.repetition_penalty != 1.0f) {
    each(item.prompt_ids, 1, [&](float& score, const int32_t*) { score = repeat(item.repetition_penalty, score); });
    each(item.completion_counts, 2, [&](float& score, const int32_t* entry) {
      if (!contains(words + item.prompt_ids.begin, item.prompt_ids.count, entry[0])) score = repeat(item.repetition_penalty, score);
    });
  }
  each(item.completion_counts, 2, [&](float& score, const int32_t* entry) {
    score -= item.presence_penalty + item.frequency_penalty * static_cast<float>(entry[1]);
  });
}

// Gumbel-max over the scores with keys from `threshold` and values from `floor` on.
__device__ int32_t draw(const SampleArgs& args, const SampleItem& item, const float* scores, uint64_t threshold, float floor, Shared& shared) {
  double best = -1e300;
  int32_t best_id = -1;
  for (int64_t id = threadIdx.x; id < args.num_token_ids; id += kThreads) {
    const float score = scores[id];
    if (score == kMasked || score < floor || score + kMaxGumbel < best || rank_key(score, static_cast<int32_t>(id)) < threshold) continue;
    const uint32_t word = philox(item.position, item.choice_idx, static_cast<uint32_t>(id), item.seed_low, item.seed_high);
    const double noisy = score - log(-log((static_cast<double>(word) + 0.5) * 0x1p-32));
    if (noisy > best) best = noisy, best_id = static_cast<int32_t>(id);  // ids ascend: ties go to the lowest
  }
  for (int bits = 16; bits > 0; bits /= 2) {
    const double other = __shfl_xor_sync(0xffffffffu, best, bits);
    const int32_t other_id = __shfl_xor_sync(0xffffffffu, best_id, bits);
    if (other_id >= 0 && (best_id < 0 || other > best || (other == best && other_id < best_id))) best = other, best_id = other_id;
  }
  if (lane_id() == 0) shared.noisy[warp_id()] = best, shared.ints[warp_id()] = best_id;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) {
    const double other = shared.noisy[w];
    const int32_t other_id = shared.ints[w];
    if (other_id >= 0 && (best_id < 0 || other > best || (other == best && other_id < best_id))) best = other, best_id = other_id;
  }
  __syncthreads();
  return best_id;
}

// The id to answer, or -1 where nothing may be drawn.
__device__ int32_t choose(const SampleArgs& args, const SampleItem& item, const float* logits, float* scores, Shared& shared) {
  make_scores(args, item, logits, scores);
  uint64_t key = 0;
  for (int64_t id = threadIdx.x; id < args.num_token_ids; id += kThreads)
    if (scores[id] != kMasked) {
      const uint64_t mine = rank_key(scores[id], static_cast<int32_t>(id));
      key = mine > key ? mine : key;
    }
  const uint64_t best_key = block_best(key, shared);
  if (best_key == 0) return -1;
  const int32_t likeliest = id_of(best_key);
  if (item.temperature == 0) return likeliest;

  for (int64_t id = threadIdx.x; id < args.num_token_ids; id += kThreads) scores[id] /= item.temperature;
  __syncthreads();
  const float best = scores[likeliest];
  uint64_t threshold = 0;
  if (item.top_k > 0 && item.top_k < args.num_token_ids) threshold = select<false>(scores, args.num_token_ids, 0, static_cast<unsigned long long>(item.top_k), best, shared);
  if (item.top_p < 1.0f) {
    if (threadIdx.x == 0) shared.left = 0;
    __syncthreads();
    unsigned long long mass = 0;
    for (int64_t id = threadIdx.x; id < args.num_token_ids; id += kThreads)
      if (scores[id] != kMasked && rank_key(scores[id], static_cast<int32_t>(id)) >= threshold) mass += mass_of(scores[id], best);
    atomicAdd(&shared.left, mass);
    __syncthreads();
    const double total = static_cast<double>(shared.left);
    __syncthreads();
    const auto target = static_cast<unsigned long long>(total * item.top_p);
    threshold = select<true>(scores, args.num_token_ids, threshold, target > 0 ? target : 1, best, shared);
  }
  const float floor = item.min_p > 0 ? best + logf(item.min_p) : kMasked;
  return draw(args, item, scores, threshold, floor, shared);
}

__global__ void __launch_bounds__(kThreads, 1) sample_kernel(SampleArgs args) {
  auto& shared = *reinterpret_cast<Shared*>(shared_memory());
  const SampleItem item = args.items[blockIdx.x];
  if (item.logits_row < 0) return;
  SampleOutput& output = args.outputs[blockIdx.x];
  const float* logits = args.logits + item.logits_row * args.vocab_size;
  float* scores = args.scores + blockIdx.x * args.vocab_size;

  float best = kMasked;
  int num_bad = 0;
  for (int64_t id = threadIdx.x; id < args.vocab_size; id += kThreads) {
    const float logit = logits[id];
    num_bad += !(fabsf(logit) <= 3.4028235e38f);
    best = fmaxf(best, logit);
  }
  best = block_max(best, shared);
  const int32_t token_id = block_count(num_bad, shared) > 0 ? -1 : item.wants_sample != 0 ? choose(args, item, logits, scores, shared) : item.target_id;
  if (threadIdx.x == 0) {
    args.drawn_ids[blockIdx.x] = token_id;
    output.token_id = token_id;
    output.num_top = token_id < 0 ? -1 : 0;
  }
  if (token_id < 0 || item.num_logprobs < 0) return;

  float sum = 0;
  for (int64_t id = threadIdx.x; id < args.vocab_size; id += kThreads) sum += expf(logits[id] - best);
  const float normalizer = best + logf(block_sum(sum, shared));
  const uint64_t drawn = rank_key(logits[token_id], token_id);
  int num_before = 0;
  for (int64_t id = threadIdx.x; id < args.vocab_size; id += kThreads) num_before += rank_key(logits[id], static_cast<int32_t>(id)) > drawn;
  const int rank = block_count(num_before, shared) + 1;
  if (threadIdx.x == 0) output.rank = rank, output.logprob = logits[token_id] - normalizer;

  const int num_top = item.num_logprobs < args.vocab_size ? item.num_logprobs : static_cast<int>(args.vocab_size);
  if (num_top == 0) return;
  const uint64_t threshold = select<false>(logits, args.vocab_size, 0, static_cast<unsigned long long>(num_top), best, shared);
  if (threadIdx.x == 0) shared.num_top = 0;
  __syncthreads();
  for (int64_t id = threadIdx.x; id < args.vocab_size; id += kThreads) {
    const uint64_t key = rank_key(logits[id], static_cast<int32_t>(id));
    if (key < threshold) continue;
    const int place = atomicAdd(&shared.num_top, 1);
    if (place < kMaxTopLogprobs) shared.top[place] = key;
  }
  __syncthreads();
  const int found = shared.num_top < num_top ? shared.num_top : num_top;
  for (int i = static_cast<int>(threadIdx.x); i < found; i += kThreads) {
    int place = 0;
    for (int other = 0; other < found; ++other) place += shared.top[other] > shared.top[i];
    output.top_ids[place] = id_of(shared.top[i]);
    output.top_logprobs[place] = logits[id_of(shared.top[i])] - normalizer;
  }
  if (threadIdx.x == 0) output.num_top = found;
}

}  // namespace

void launch_sample(const SampleArgs& args, cudaStream_t stream) {
  CAPSTAN_CHECK(args.num_items > 0 && args.drawn_ids != nullptr && args.num_token_ids > 0 && args.num_token_ids <= args.vocab_size && args.vocab_size <= (int64_t{1} << 18));
  launch(sample_kernel, dim3(static_cast<unsigned>(args.num_items)), dim3(kThreads), sizeof(Shared), stream, args);
}

}  // namespace capstan::cuda
