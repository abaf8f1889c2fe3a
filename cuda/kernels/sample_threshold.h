#pragma once
// Top-k and top-p as a threshold on (score, id). It is found digit by digit with integer sums, so that the order in
// which threads add does not matter. A cheap bound first reduces the candidates to a list that fits in shared memory.
#include "cuda/kernels.h"
#include "cuda/kernels/sample_row.h"

namespace capstan::cuda {

constexpr int32_t kLastId = static_cast<int32_t>(kMaxVocab - 1);
constexpr int kDigitBits = 10, kDigits = 1 << kDigitBits;
static_assert(kDigits == kSampleThreads);  // one digit per thread
constexpr int kListed = 8192;              // capacity of the candidate list in shared memory
constexpr int kUnlisted = kListed + 1;
// Fixed-point unit of exp(score - best). A vocabulary of 2^18 ids sums to less than 2^59.
constexpr float kMassUnit = 1099511627776.0f;  // 2^40

// The values of a row that are >= lower_bound. A score is value / temperature.
struct Candidates {
  const float* row;
  int count;
  float temperature;
  float best;         // as a score
  float lower_bound;  // at least kLowest
  int num;            // entries in the list; kUnlisted: the candidates do not fit, and each pass reads the row
};

struct SampleShared {
  SampleArgs args;
  SampleItem item;
  const float* logits;  // of this block's row
  RowSummary summary;
  Candidates all;
  unsigned long long warp_scratch[kSampleWarps];
  unsigned counts[kDigits], mass_low[kDigits], mass_high[kDigits];
  // The result of a search: the digit, the number of keys with it, and the remaining target.
  int digit;
  unsigned here;
  unsigned long long left;
  double noisy_score;
  int num_listed, num_top;
  int is_non_finite;  // the row contains NaN or Inf
  uint64_t list[kListed];
  uint64_t top[kMaxTopLogprobs];
};

__device__ __forceinline__ SampleShared& sample_shared() {
  return *reinterpret_cast<SampleShared*>(shared_memory());
}

// Orders by value, then by descending id. Larger keys are better.
__device__ __forceinline__ uint64_t rank_key(float value, int32_t id) {
  const uint32_t bits = as_bits(value + 0.0f), ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << kIdBits | static_cast<uint32_t>(kLastId - id);
}
__device__ __forceinline__ int32_t id_of(uint64_t key) {
  return kLastId - static_cast<int32_t>(key & kLastId);
}
__device__ __forceinline__ float value_of(uint64_t key) {
  const auto ordered = static_cast<uint32_t>(key >> kIdBits);
  return as_float(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

// A value below `value` by more than the rounding error of a quotient or product.
__device__ __forceinline__ float slightly_below(float value) {
  return value - fabsf(value) * 1e-6f;
}

// Bit j is set when batch.values[j] is a candidate.
__device__ __forceinline__ unsigned candidates_in(const Batch& batch, float lower_bound) {
  unsigned found = 0;
#pragma unroll
  for (int j = 0; j < kBatch; ++j)
    found |= (batch.values[j] >= lower_bound ? 1u : 0u) << j;
  return found;
}

// Lists the candidates if they fit. `also` is called with every batch.
template <class F>
__device__ __forceinline__ void list_candidates(F&& also) {
  SampleShared& shared = sample_shared();
  const Candidates all = shared.all;
  if (threadIdx.x == 0) shared.num_listed = 0;
  __syncthreads();
  for_each_batch(all.row, all.count, kMasked, [&](const Batch& batch) {
    also(batch);
    unsigned found = candidates_in(batch, all.lower_bound);
    if (found == 0) return;
    for (int place = atomicAdd(&shared.num_listed, __popc(found)); found != 0 && place < kListed;
         found &= found - 1, ++place) {
      const int id = batch.id(__ffs(static_cast<int>(found)) - 1);
      shared.list[place] = rank_key(all.row[id] / all.temperature, id);
    }
  });
  __syncthreads();
  if (threadIdx.x == 0) shared.all.num = shared.num_listed <= kListed ? shared.num_listed : kUnlisted;
  __syncthreads();
}

// Calls `f` with the key of every candidate.
template <class F>
__device__ __forceinline__ void for_each_candidate(F&& f) {
  const SampleShared& shared = sample_shared();
  const Candidates all = shared.all;
  if (all.num <= kListed) {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < all.num; i += kSampleThreads)
      f(shared.list[i]);
    return;
  }
  for_each_batch(all.row, all.count, kMasked, [&](const Batch& batch) {
    for (unsigned found = candidates_in(batch, all.lower_bound); found != 0; found &= found - 1) {
      const int id = batch.id(__ffs(static_cast<int>(found)) - 1);
      f(rank_key(all.row[id] / all.temperature, id));
    }
  });
}

__device__ __forceinline__ unsigned long long mass_of(float score, float best) {
  return static_cast<unsigned long long>(expf(score - best) * kMassUnit);
}

// Sets shared.digit to the digit at which the running sum over the digits, lowest first, reaches `target`, or to -1 if
// it never does. Ends with a barrier.
template <bool kByMass>
__device__ __forceinline__ void find_digit(unsigned long long target) {
  SampleShared& shared = sample_shared();
  const auto mine = static_cast<int>(threadIdx.x);
  const unsigned count = shared.counts[mine];
  const unsigned long long amount =
      kByMass ? static_cast<unsigned long long>(shared.mass_high[mine]) << 32 | shared.mass_low[mine] : count;
  unsigned long long up_to = amount;
  for (int step = 1; step < kWarpSize; step *= 2) {
    const unsigned long long other = __shfl_sync(0xffffffffu, up_to, lane_id() - step);
    if (lane_id() >= step) up_to += other;
  }
  if (lane_id() == kWarpSize - 1) shared.warp_scratch[warp_id()] = up_to;
  if (mine == 0) shared.digit = -1;
  __syncthreads();
  up_to += warp_reduce(lane_id() < warp_id() ? shared.warp_scratch[lane_id()] : 0ull,
                       [](unsigned long long a, unsigned long long b) { return a + b; });
  if (up_to - amount < target && target <= up_to)
    shared.digit = mine, shared.here = count, shared.left = target - (up_to - amount);
  __syncthreads();
}

// The key T such that the number of candidates >= T (or their mass, with kByMass) reaches `target`, among keys >=
// `floor`. When `max_digits` ends the search early, the result is a lower bound of T. Returns `floor` when all
// candidates together do not reach the target.
template <bool kByMass>
__device__ __noinline__ uint64_t find_threshold(uint64_t floor, unsigned long long target, int max_digits) {
  SampleShared& shared = sample_shared();
  const uint64_t best = rank_key(shared.all.best, 0),
                 furthest = best - rank_key(shared.all.lower_bound / shared.all.temperature, kLastId);
  // Digits are taken from the distance to the best key, so that the first digit already separates the candidates.
  int shift = 0, width = kDigitBits;
  while (furthest >> shift >= kDigits)
    ++shift;
  for (uint64_t prefix = 0;; width = shift < kDigitBits ? shift : kDigitBits, shift -= width) {
    shared.counts[threadIdx.x] = shared.mass_low[threadIdx.x] = shared.mass_high[threadIdx.x] = 0;
    __syncthreads();
    for_each_candidate([&](uint64_t key) {
      const uint64_t behind = best - key;
      if (key < floor || behind >> (shift + width) != prefix) return;
      const auto digit = static_cast<int>((behind >> shift) - (prefix << width));
      atomicAdd(&shared.counts[digit], 1u);
      if (!kByMass) return;
      // A 64-bit atomic add in shared memory would be a compare-and-swap loop.
      const unsigned long long mass = mass_of(value_of(key), shared.all.best);
      const auto low = static_cast<unsigned>(mass);
      const unsigned carry = atomicAdd(&shared.mass_low[digit], low) > ~low ? 1 : 0;
      if (const unsigned high = static_cast<unsigned>(mass >> 32) + carry; high != 0)
        atomicAdd(&shared.mass_high[digit], high);
    });
    __syncthreads();
    find_digit<kByMass>(target);
    if (shared.digit < 0) return floor;
    prefix = prefix << width | static_cast<unsigned>(shared.digit);
    target = shared.left;
    const bool is_done = shared.here == 1 || (!kByMass && shared.here == target);
    __syncthreads();
    if (is_done || shift == 0 || --max_digits == 0) {
      const uint64_t last = ((prefix + 1) << shift) - 1, key = last < best ? best - last : 0;
      return key > floor ? key : floor;
    }
  }
}
constexpr int kAllDigits = 1 << 20;

// From here on, candidates have at least this value.
__device__ __forceinline__ void raise_lower_bound(float value) {
  SampleShared& shared = sample_shared();
  __syncthreads();
  if (threadIdx.x == 0) shared.all.lower_bound = fmaxf(shared.all.lower_bound, value);
  __syncthreads();
}

// Lists the candidates that a threshold can keep.
template <bool kByMass>
__device__ __noinline__ void list_top_candidates(unsigned long long target) {
  const SampleShared& shared = sample_shared();
  list_candidates([](const Batch&) {});
  if (shared.all.num <= kListed) return;
  raise_lower_bound(slightly_below(value_of(find_threshold<kByMass>(0, target, 1)) * shared.all.temperature));
  list_candidates([](const Batch&) {});
}

// A value that at least `target` values of the row reach, from the maxima of the threads. Overwrites the list of
// candidates.
__device__ __noinline__ float lower_bound_of_top(int target) {
  if (target > kSampleThreads) return kLowest;
  SampleShared& shared = sample_shared();
  const float own = shared.summary.thread_max[threadIdx.x], lower_bound = block_min(own, shared.warp_scratch);
  shared.list[threadIdx.x] = rank_key(own, static_cast<int32_t>(threadIdx.x));
  if (threadIdx.x == 0) shared.all = {nullptr, 0, 1, shared.summary.best, lower_bound, kSampleThreads};
  __syncthreads();
  return fmaxf(kLowest, value_of(find_threshold<false>(0, static_cast<unsigned long long>(target), kAllDigits)));
}

}  // namespace capstan::cuda
