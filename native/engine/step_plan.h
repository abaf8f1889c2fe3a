#pragma once
// The sequences and token counts that the scheduler chooses for one step. Integers only: no tensor, device or model
// header.
#include <cstdint>
#include <vector>

namespace capstan {

struct Sequence;

// The state after row `row` of a sequence goes to `slot`.
struct StateWrite {
  int row = 0;
  int32_t slot = -1;
};

struct ScheduledSequence {
  // ---- written by the scheduler ----
  Sequence* seq = nullptr;
  uint32_t epoch = 0;      // of seq at planning time
  int first_position = 0;  // of the scheduled tokens
  int num_tokens = 0;      // scheduled tokens
  bool samples = false;    // the logits of the last scheduled token give the next token
  // The last scheduled tokens are this many drafts of the sequence. Each of them is verified: the logits before it and
  // the last logits give num_drafts + 1 tokens.
  int num_drafts = 0;
  // Only with recurrent layers.
  int32_t state_read = -1;                    // slot of the state before the first row; -1 = zeros
  std::vector<StateWrite> state_writes = {};  // ascending by row
  // ---- written by the sampler ----
  // The rows of this sequence in Batch::sample_rows. With `samples`, the last num_drafts + 1 draw the next tokens.
  int first_sample_row = 0;
  int num_sample_rows = 0;

  // Otherwise it draws a token for each of the scheduled tokens.
  bool is_prefill() const { return num_tokens - num_drafts > 1 || !samples; }
};

struct StepPlan {
  std::vector<ScheduledSequence> sequences;
  int num_tokens = 0;  // over all sequences

  void clear() {
    sequences.clear();
    num_tokens = 0;
  }
};

}  // namespace capstan
