#pragma once
// How long a context and how many blocks the engine gets (architecture, contract 6). Arithmetic only.
#include <cstdint>
#include <string>
#include <vector>

namespace capstan {

struct MemoryRequest {
  int64_t block_bytes = 0;  // of one block over all layers and ranks
  int block_size = 0;
  int64_t available_bytes = 0;  // memory left once the weights are loaded
  bool is_budget = false;  // available_bytes are meant for the cache: a device's memory, as far as it may be used; 32
                           // Mi tokens of it at most
  int64_t kv_cache_bytes = 0;  // asked for; 0 = default
  int max_model_len = 0;       // asked for and possible for the model; 0 = default
  int trained_length = 0;      // default context length
  int max_num_seqs = 0;
};

struct MemoryPlan {
  int num_blocks = 0;
  int max_model_len = 0;
  std::vector<std::string> notes;  // what was lowered, and why
};

// Throws kOutOfMemory, with the numbers, for what does not fit.
MemoryPlan plan_memory(const MemoryRequest& request);

}  // namespace capstan
