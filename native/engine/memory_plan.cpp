#include "native/engine/memory_plan.h"

#include <algorithm>

#include "native/base/error.h"

namespace capstan {
namespace {

// Keeps block ids, slots and their products with the block size within 31 bits.
constexpr int64_t kMaxSlots = int64_t{1} << 30;
constexpr int kDefaultShareOfMemory = 4;  // a quarter
// Limits the default size. The host needs about 200 MB of bookkeeping for this many slots, and a small model on a large
// device would get a billion of them.
constexpr int64_t kBudgetSlots = int64_t{1} << 25;

std::string mebibytes(int64_t bytes) {
  return std::to_string((std::max<int64_t>(bytes, 0) + (1 << 20) - 1) >> 20) + " MiB";
}

[[noreturn]] void refuse_length(const MemoryRequest& request, int max_model_len, int64_t needed, int64_t bytes) {
  std::string limit = " fit into a quarter of the available memory: set kvCacheBytes or lower maxModelLen";
  if (request.is_budget)
    limit = " fit into gpuMemoryUtilization: raise it, or lower maxModelLen or maxNumBatchedTokens";
  if (request.kv_cache_bytes > 0) limit = " are allowed: raise kvCacheBytes or lower maxModelLen";
  throw Error(ErrorCode::kOutOfMemory, "a context of " + std::to_string(max_model_len) + " tokens needs " +
                                           mebibytes(needed) + " of KV cache, but only " + mebibytes(bytes) + limit);
}

// Sizes are given by the blocks of the main group, which sees the most tokens.
class KvSizes {
 public:
  explicit KvSizes(const MemoryRequest& request) : request_(request) {
    const auto sees_more = [](const KvGroupMemory& a, const KvGroupMemory& b) {
      return b.window != 0 && (a.window == 0 || a.window > b.window);
    };
    if (!request.groups.empty()) main_window_ = std::ranges::min_element(request.groups, sees_more)->window;
  }

  int64_t blocks_for(int64_t num_tokens) const { return (num_tokens + request_.block_size - 1) / request_.block_size; }
  int64_t max_blocks() const { return kMaxSlots / request_.block_size; }

  int64_t blocks_of(const KvGroupMemory& group, int64_t main_blocks) const {
    return group.window == main_window_ ? main_blocks : std::min(main_blocks, most_useful_blocks(group.window));
  }
  int64_t bytes(int64_t main_blocks) const {
    int64_t sum = 0;
    for (const KvGroupMemory& group : request_.groups)
      sum += blocks_of(group, main_blocks) * group.block_bytes;
    return sum;
  }
  // Returns the largest size that fits into `bytes`.
  int64_t blocks_within(int64_t bytes_left) const {
    int64_t fits = 0, too_many = max_blocks() + 1;
    while (too_many - fits > 1) {
      const int64_t middle = fits + (too_many - fits) / 2;
      (bytes(middle) <= bytes_left ? fits : too_many) = middle;
    }
    return fits;
  }
  // Returns the size that one sequence of `num_tokens` needs.
  int64_t blocks_needed(int64_t num_tokens) const {
    const int64_t all = blocks_for(num_tokens);
    return main_window_ == 0 ? all : std::min(all, window_blocks(main_window_) + step_blocks());
  }
  // Returns the size that max_num_seqs sequences of `num_tokens` use.
  int64_t blocks_wanted(int64_t num_tokens) const {
    // The tokens of one step. The last block of each sequence is not full.
    if (!request_.is_kept) return step_blocks() + request_.max_num_seqs;
    const int64_t all = std::min(blocks_for(num_tokens) * request_.max_num_seqs, max_blocks());
    return main_window_ == 0 ? all : std::min(all, most_useful_blocks(main_window_));
  }

 private:
  // The most blocks that a sequence holds between two steps: its window begins and ends within a block, and a prompt
  // that other choices share keeps another one. So does a draft model that is behind.
  int64_t window_blocks(int window) const { return blocks_for(window) + 2 + (request_.has_draft_model ? 1 : 0); }
  int64_t step_blocks() const { return blocks_for(request_.max_num_batched_tokens); }
  int64_t most_useful_blocks(int window) const {
    return std::min(2 * window_blocks(window) * request_.max_num_seqs + step_blocks(), max_blocks());
  }

  const MemoryRequest& request_;
  int main_window_ = 0;
};

// A running sequence writes to one slot and, with a prefix cache, keeps its newest snapshot in another.
int64_t wanted_slots(const MemoryRequest& request, int max_model_len) {
  if (request.state_slot_bytes == 0) return 0;
  const int64_t num_snapshots = request.has_prefix_cache ? 1 + max_model_len / request.snapshot_interval : 0;
  return request.max_num_seqs * (1 + num_snapshots) + request.max_num_drafts;
}

// Returns the bytes that the cache may use.
int64_t choose_bytes(const MemoryRequest& request, const KvSizes& sizes, int max_model_len) {
  if (request.kv_cache_bytes > request.available_bytes)
    throw Error(ErrorCode::kOutOfMemory, "kvCacheBytes: expected at most " + mebibytes(request.available_bytes) +
                                             ", the memory available, got " + mebibytes(request.kv_cache_bytes));
  if (request.kv_cache_bytes > 0) return request.kv_cache_bytes;
  const int64_t slot_bytes = wanted_slots(request, max_model_len) * request.state_slot_bytes;
  if (request.is_budget) {
    const int64_t most_blocks = std::max(sizes.blocks_needed(max_model_len), kBudgetSlots / request.block_size);
    return std::min(request.available_bytes, sizes.bytes(most_blocks) + slot_bytes);
  }
  return std::min(sizes.bytes(sizes.blocks_wanted(max_model_len)) + slot_bytes,
                  request.available_bytes / kDefaultShareOfMemory);
}

int64_t choose_slots(const MemoryRequest& request, const KvSizes& sizes, int max_model_len, int64_t bytes) {
  if (request.state_slot_bytes == 0) return 0;
  int64_t most_bytes = std::max(bytes / 2, bytes - sizes.bytes(sizes.blocks_wanted(max_model_len)));
  // A requested context length takes precedence.
  if (request.max_model_len > 0)
    most_bytes = std::min(most_bytes, bytes - sizes.bytes(sizes.blocks_needed(max_model_len)));
  return std::clamp<int64_t>(most_bytes / request.state_slot_bytes, 1, wanted_slots(request, max_model_len));
}

}  // namespace

MemoryPlan plan_memory(const MemoryRequest& request) {
  const bool has_length = request.max_model_len > 0;
  const KvSizes sizes(request);
  MemoryPlan plan;
  plan.max_model_len = has_length ? request.max_model_len : request.trained_length;
  const int64_t bytes = choose_bytes(request, sizes, plan.max_model_len);
  plan.num_state_slots = static_cast<int>(choose_slots(request, sizes, plan.max_model_len, bytes));
  const int64_t slot_bytes = plan.num_state_slots * request.state_slot_bytes;
  const int64_t num_blocks = bytes < slot_bytes ? -1 : sizes.blocks_within(bytes - slot_bytes);
  const int64_t num_needed = request.groups.empty() ? 0 : sizes.blocks_needed(plan.max_model_len);
  if (num_blocks < std::min<int64_t>(num_needed, 1) || (num_blocks < num_needed && has_length))
    refuse_length(request, plan.max_model_len, sizes.bytes(num_needed) + slot_bytes, bytes);
  if (num_blocks < num_needed) {
    const int lowered = static_cast<int>(num_blocks * request.block_size);
    plan.notes.push_back("context length lowered from " + std::to_string(plan.max_model_len) + " to " +
                         std::to_string(lowered) + " tokens to fit a KV cache of " + mebibytes(bytes));
    plan.max_model_len = lowered;
  }
  for (const KvGroupMemory& group : request.groups)
    plan.num_blocks.push_back(static_cast<int>(sizes.blocks_of(group, num_blocks)));
  plan.kv_cache_bytes = sizes.bytes(num_blocks) + slot_bytes;
  return plan;
}

}  // namespace capstan
