#pragma once
// Splits the attention of one step into work items. Pure arithmetic on the batch.
#include <cstdint>
#include <vector>

#include "native/backend/backend.h"

namespace capstan {

// A range of positions and a range of query heads of one KV head of one sequence.
struct AttentionItem {
  int seq = 0;
  int kv_head = 0;
  int first_row = 0;  // of the step
  int num_rows = 0;
  int first_position = 0;
  int first_head = 0;  // within the KV head's query heads
  int num_heads = 0;
  int64_t cost = 0;  // rows × heads × visible keys
};

// Fills `items`, reusing its memory. The most expensive items come first, for threads that each take the next one.
// Makes about four items per thread when the batch has enough rows. The bits of the result do not depend on the split.
void plan_attention(const StepInput& step, int num_heads, int num_kv_heads, int window, int num_threads,
                    std::vector<AttentionItem>& items);

}  // namespace capstan
