#pragma once
// Chooses the context length and the number of blocks of each KV group (architecture, contract 6). Arithmetic only.
#include <cstdint>
#include <string>
#include <vector>

namespace capstan {

struct KvGroupMemory {
  int64_t block_bytes = 0;  // one block over the layers of the group and all ranks
  int window = 0;           // as in KvGroupBlocks
};

struct MemoryRequest {
  std::vector<KvGroupMemory> groups;  // none for a model without attention
  int64_t state_slot_bytes = 0;       // one slot of recurrent state over all ranks; 0 = no recurrent layers
  int snapshot_interval = 0;          // tokens
  bool has_prefix_cache = true;       // without it, no snapshots are taken
  bool is_kept = true;                // false: no sequence needs its blocks after the step that runs it
  int max_num_drafts = 0;             // of one step; each needs a state slot
  bool has_draft_model = false;       // follows a sequence by less than a block later
  int block_size = 0;                 // tokens
  int64_t available_bytes = 0;        // memory available after the weights are loaded
  // The cache may use all of available_bytes: the share of a device's own memory that is set aside for it. The default
  // size is then at most 32 Mi tokens.
  bool is_budget = false;
  int64_t kv_cache_bytes = 0;  // requested; 0 = default
  int max_model_len = 0;       // requested, and possible for the model; 0 = default
  int trained_length = 0;      // default context length
  int max_num_seqs = 0;
  int max_num_batched_tokens = 0;
};

struct MemoryPlan {
  std::vector<int> num_blocks;  // by KV group
  int num_state_slots = 0;
  int64_t kv_cache_bytes = 0;  // of blocks and state slots
  int max_model_len = 0;
  std::vector<std::string> notes;  // what was lowered, and why
};

// A model with recurrent layers divides the bytes: at most half go to state slots, unless the blocks need less. The
// slots serve max_num_seqs sequences, the drafts of a step and, with a prefix cache, the snapshots of as many sequences
// of max_model_len. With fewer slots than max_num_seqs, fewer sequences run at a time.
// A group with a window gets as many blocks as the group that sees the most tokens, but at most those that
// max_num_seqs sequences use, twice: the second half is for the prefix cache.
// Throws kOutOfMemory with the numbers when the context length or the cache does not fit.
MemoryPlan plan_memory(const MemoryRequest& request);

}  // namespace capstan
