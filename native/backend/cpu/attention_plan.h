#pragma once
// Splits the attention of one step into work items. Pure arithmetic on the batch.
#include <cstdint>
#include <vector>

#include "native/backend/backend.h"

namespace capstan {

constexpr int kSplitPositions = 16;

// A range of positions and a range of query heads of one KV head of one sequence, over a range of chunks of keys.
struct AttentionItem {
  int seq = 0;
  int kv_head = 0;
  int first_row = 0;  // of the step
  int num_rows = 0;
  int first_position = 0;
  int first_head = 0;  // within the KV head's query heads
  int num_heads = 0;
  int first_chunk = 0, end_chunk = 0;
  int split = -1;    // index into AttentionPlan::splits; -1 = the item has all chunks that its rows see
  int64_t cost = 0;  // rows × heads × visible keys
};

// Rows whose chunks are split over several items. The item that ends last combines the chunks.
struct AttentionSplit {
  int num_items = 0;
  int first_chunk = 0, end_chunk = 0;
  int64_t first_state = 0;  // of its (chunks, rows × heads) states
};

struct AttentionPlan {
  std::vector<AttentionItem> items;
  std::vector<AttentionSplit> splits;
};

// What the plan of a step depends on besides the batch.
struct AttentionShape {
  int num_heads = 0, num_kv_heads = 0;
  int window = 0;
  int num_threads = 1;
  int64_t max_states = 0;  // (chunk, row, head) states that the splits may have
  bool is_causal = true;
};

// The most items and splits of a plan, for memory that is reserved at load.
int64_t max_attention_items(const AttentionShape& shape, int max_num_tokens);
int max_attention_splits(const AttentionShape& shape);
// Returns the states that the splits may have: enough to split every item that is worth it of steps with one token per
// sequence, and of one sequence with kSplitPositions tokens.
int64_t max_attention_states(const AttentionShape& shape, int max_num_seqs, int max_model_len);

// Fills `plan`, reusing its memory. The most expensive items come first, for threads that each take the next one.
// Makes about four items per thread when the batch has enough rows or chunks. The bits of the result do not depend on
// the split.
void plan_attention(const StepInput& step, const AttentionShape& shape, AttentionPlan& plan);

}  // namespace capstan
