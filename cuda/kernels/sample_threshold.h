#pragma once
// What is kept by top-k and top-p is a threshold on (score, id), found digit by digit with integer sums, so that it
// does not depend on the order in which threads add. A bound that is easy to come by leaves few candidates first, which
// then lie in shared memory.
#include "cuda/kernels.h"
#include "cuda/kernels/sample_row.h"

namespace capstan::cuda {

constexpr int32_t kLastId = static_cast<int32_t>(kMaxVocab - 1);
constexpr int kDigitBits = 10, kDigits = 1 << kDigitBits;
static_assert(kDigits == kSampleThreads);  // a digit to a thread
constexpr int kListed = 8192;              // candidates that have room in shared memory
constexpr int kUnlisted = kListed + 1;
// exp(score - best) in fixed point; a vocabulary of 2^18 sums to less than 2^59.
constexpr float kMassUnit = 1099511627776.0f;  // 2^40

// The values of a row from `least` on; their scores are value / temperature.
struct Candidates {
  const float* row;
  int count;
  float temperature;
  float best;   // score
  float least;  // kLowest and more
  int num;      // of them in the list; kUnlisted: they are looked for in the row each time
};

struct SampleShared {
  SampleArgs args;
  SampleItem item;
  const float* logits;  // of the row
  Survey survey;
  Candidates all;
  unsigned long long of_warps[kSampleWarps];
  unsigned counts[kDigits], mass_low[kDigits], mass_high[kDigits];
  // The digit that a search has come to, what is in it, and what of the target is left for it.
  int digit;
  unsigned here;
  unsigned long long left;
  double noisy;
  int num_listed, num_top;
  int is_broken;  // the row has infinity, or what is no number
  uint64_t list[kListed];
  uint64_t top[kMaxTopLogprobs];
};

__device__ __forceinline__ SampleShared& sample_shared() {
  return *reinterpret_cast<SampleShared*>(shared_memory());
}

// Orders as (value descending, id ascending): larger is better.
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

// A little less, by more than a quotient or product may be rounded.
__device__ __forceinline__ float a_little_below(float value) {
  return value - fabsf(value) * 1e-6f;
}

// Bit j: batch.values[j] is a candidate.
__device__ __forceinline__ unsigned candidates_in(const Batch& batch, float least) {
  unsigned found = 0;
#pragma unroll
  for (int j = 0; j < kBatch; ++j)
    found |= (batch.values[j] >= least ? 1u : 0u) << j;
  return found;
}

// Tries to have all candidates in the list. `also` sees every batch.
template <class F>
__device__ __forceinline__ void list(F&& also) {
  SampleShared& shared = sample_shared();
  const Candidates all = shared.all;
  if (threadIdx.x == 0) shared.num_listed = 0;
  __syncthreads();
  each_batch(all.row, all.count, kMasked, [&](const Batch& batch) {
    also(batch);
    unsigned found = candidates_in(batch, all.least);
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

// Calls `f` with the key of each candidate's score.
template <class F>
__device__ __forceinline__ void each_candidate(F&& f) {
  const SampleShared& shared = sample_shared();
  const Candidates all = shared.all;
  if (all.num <= kListed) {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < all.num; i += kSampleThreads)
      f(shared.list[i]);
    return;
  }
  each_batch(all.row, all.count, kMasked, [&](const Batch& batch) {
    for (unsigned found = candidates_in(batch, all.least); found != 0; found &= found - 1) {
      const int id = batch.id(__ffs(static_cast<int>(found)) - 1);
      f(rank_key(all.row[id] / all.temperature, id));
    }
  });
}

__device__ __forceinline__ unsigned long long mass_of(float score, float best) {
  return static_cast<unsigned long long>(expf(score - best) * kMassUnit);
}

// Of the digits, lowest first, the one with which the sum of what is in them reaches the target, to shared.digit; -1:
// none. Ends with a barrier.
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
  if (lane_id() == kWarpSize - 1) shared.of_warps[warp_id()] = up_to;
  if (mine == 0) shared.digit = -1;
  __syncthreads();
  up_to += over_warp(lane_id() < warp_id() ? shared.of_warps[lane_id()] : 0ull,
                     [](unsigned long long a, unsigned long long b) { return a + b; });
  if (up_to - amount < target && target <= up_to)
    shared.digit = mine, shared.here = count, shared.left = target - (up_to - amount);
  __syncthreads();
}

// The key T for which the best candidates down to T number `target`, or, by mass, reach it; of those with keys from
// `floor` on. After `max_digits` it is a key that is no better. 0 or `floor`: all are too few.
template <bool kByMass>
__device__ __noinline__ uint64_t find_threshold(uint64_t floor, unsigned long long target, int max_digits) {
  SampleShared& shared = sample_shared();
  const uint64_t best = rank_key(shared.all.best, 0),
                 furthest = best - rank_key(shared.all.least / shared.all.temperature, kLastId);
  // Digits are of how far a key is behind the best, so that the first of them tells the candidates apart.
  int shift = 0, width = kDigitBits;
  while (furthest >> shift >= kDigits)
    ++shift;
  for (uint64_t prefix = 0;; width = shift < kDigitBits ? shift : kDigitBits, shift -= width) {
    shared.counts[threadIdx.x] = shared.mass_low[threadIdx.x] = shared.mass_high[threadIdx.x] = 0;
    __syncthreads();
    each_candidate([&](uint64_t key) {
      const uint64_t behind = best - key;
      if (key < floor || behind >> (shift + width) != prefix) return;
      const auto digit = static_cast<int>((behind >> shift) - (prefix << width));
      atomicAdd(&shared.counts[digit], 1u);
      if (!kByMass) return;
      // Adding 64 bits at once would be a loop of comparing and swapping.
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

// From here on no candidate is less than `value`.
__device__ __forceinline__ void raise_least(float value) {
  SampleShared& shared = sample_shared();
  __syncthreads();
  if (threadIdx.x == 0) shared.all.least = fmaxf(shared.all.least, value);
  __syncthreads();
}

// Lists the candidates that a threshold may keep.
template <bool kByMass>
__device__ __noinline__ void list_best(unsigned long long target) {
  const SampleShared& shared = sample_shared();
  list([](const Batch&) {});
  if (shared.all.num <= kListed) return;
  raise_least(a_little_below(value_of(find_threshold<kByMass>(0, target, 1)) * shared.all.temperature));
  list([](const Batch&) {});
}

// At least `target` values of the row are no less than this: as many threads have seen one. What were the candidates
// are none afterwards.
__device__ __noinline__ float bound_of_best(int target) {
  if (target > kSampleThreads) return kLowest;
  SampleShared& shared = sample_shared();
  const float own = shared.survey.own[threadIdx.x], least = block_min(own, shared.of_warps);
  shared.list[threadIdx.x] = rank_key(own, static_cast<int32_t>(threadIdx.x));
  if (threadIdx.x == 0) shared.all = {nullptr, 0, 1, shared.survey.best, least, kSampleThreads};
  __syncthreads();
  return fmaxf(kLowest, value_of(find_threshold<false>(0, static_cast<unsigned long long>(target), kAllDigits)));
}

}  // namespace capstan::cuda
