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

}  // namespace

MemoryPlan plan_memory(const MemoryRequest& request) {
  const auto blocks_for = [&](int64_t num_tokens) {
    return (num_tokens + request.block_size - 1) / request.block_size;
  };
  const bool has_length = request.max_model_len > 0, has_size = request.kv_cache_bytes > 0;
  MemoryPlan plan;
  plan.max_model_len = has_length ? request.max_model_len : request.trained_length;

  int64_t bytes = request.kv_cache_bytes;
  if (!has_size && request.is_budget) {
    const int64_t most_blocks = std::max(blocks_for(plan.max_model_len), kBudgetSlots / request.block_size);
    bytes = std::min(request.available_bytes, most_blocks * request.block_bytes);
  } else if (!has_size) {
    const int64_t wanted_blocks =
        std::min(blocks_for(plan.max_model_len) * request.max_num_seqs, kMaxSlots / request.block_size);
    bytes = std::min(wanted_blocks * request.block_bytes, request.available_bytes / kDefaultShareOfMemory);
  } else if (bytes > request.available_bytes) {
    throw Error(ErrorCode::kOutOfMemory, "kvCacheBytes: expected at most " + mebibytes(request.available_bytes) +
                                             ", the memory available, got " + mebibytes(bytes));
  }
  const int64_t num_blocks =
      std::min(std::max<int64_t>(bytes, 0) / request.block_bytes, kMaxSlots / request.block_size);
  const int64_t num_needed = blocks_for(plan.max_model_len);
  if (num_blocks < 1 || (num_blocks < num_needed && has_length))
    refuse_length(request, plan.max_model_len, num_needed * request.block_bytes, bytes);
  if (num_blocks < num_needed) {
    const int lowered = static_cast<int>(num_blocks * request.block_size);
    plan.notes.push_back("context length lowered from " + std::to_string(plan.max_model_len) + " to " +
                         std::to_string(lowered) + " tokens to fit a KV cache of " + mebibytes(bytes));
    plan.max_model_len = lowered;
  }
  plan.num_blocks = static_cast<int>(num_blocks);
  return plan;
}

}  // namespace capstan
