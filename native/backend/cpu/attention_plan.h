#pragma once
// Which pieces of attention a step consists of: pure arithmetic on the batch.
#include <cstdint>
#include <vector>

#include "native/backend/backend.h"

namespace capstan {

// Some positions and some query heads of one KV head of one sequence.
struct AttentionItem {
  int seq = 0;
  int kv_head = 0;
  int first_row = 0;  // of the step
  int num_rows = 0;
  int first_position = 0;
  int first_head = 0;  // within the KV head's query heads
  int num_heads = 0;
  int64_t cost = 0;  // rows × keys that they see
};

// Most costly first, for threads that each take the next one; at least about four per thread where the batch has that
// many rows. Bits do not depend on the cut. Fills `items`, whose memory is reused.
void plan_attention(const StepInput& step, int num_heads, int num_kv_heads, int window, int num_threads,
                    std::vector<AttentionItem>& items);

}  // namespace capstan
