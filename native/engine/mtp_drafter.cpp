#include "native/engine/mtp_drafter.h"

#include <algorithm>

#include "native/base/check.h"

namespace capstan {

MtpDrafter::MtpDrafter(int kv_group, const BlockManager& blocks, StepRunner& runner)
    : kv_group_(static_cast<size_t>(kv_group)), blocks_(blocks), runner_(runner) {
  CAPSTAN_CHECK(runner.depth() == 1);
  batch_.is_of_head = true;
}

int32_t MtpDrafter::block_at(const Sequence& seq, int position) const {
  return seq.block_tables[kv_group_].block_ids[static_cast<size_t>(position / blocks_.block_size())];
}

void MtpDrafter::build_inputs(Batch& batch) {
  batch.hidden_before.clear();
  batch.stored.clear();
  for (const ScheduledSequence& scheduled : batch.plan.sequences) {
    const Sequence& seq = *scheduled.seq;
    for (int i = 0; i < scheduled.num_tokens; ++i) {
      const int position = scheduled.first_position + i;
      const auto row = static_cast<int32_t>(batch.hidden_before.size());
      int32_t before = row - 1;
      if (i == 0) before = position == 0 ? kNoHidden : stored_hidden(block_at(seq, position - 1));
      batch.hidden_before.push_back(before);
      if ((position + 1) % blocks_.block_size() == 0) batch.stored.push_back({row, block_at(seq, position)});
    }
  }
  batch.stored_before.swap(pending_);
  pending_.clear();
}

void MtpDrafter::settled(const Batch& batch) {
  pending_.clear();
  for (size_t i = 0; i < batch.plan.sequences.size(); ++i) {
    const ScheduledSequence& scheduled = batch.plan.sequences[i];
    const Sequence& seq = *scheduled.seq;
    if (seq.status != SequenceStatus::kRunning || seq.epoch != scheduled.epoch) continue;
    const int last = seq.num_computed_tokens - 1;
    CAPSTAN_CHECK(last >= scheduled.first_position && last < scheduled.first_position + scheduled.num_tokens);
    pending_.push_back({batch.cu_seqlens_q[i] + last - scheduled.first_position, block_at(seq, last)});
  }
}

void MtpDrafter::draft(const StepPlan& plan, std::span<const Wish> wishes) {
  live_.clear();
  for (const Wish& wish : wishes) {
    Sequence& seq = *plan.sequences[wish.idx].seq;
    seq.drafts.clear();
    live_.push_back({&seq, wish.count});
  }
  for (int num_drafts = 0; !live_.empty(); ++num_drafts) {
    build_step(num_drafts);
    runner_.launch(batch_);
    runner_.collect(batch_);
    take_drafts();
  }
}

// The step whose rows hold the newest token of each sequence, or its newest draft.
void MtpDrafter::build_step(int num_drafts) {
  batch_.plan.clear();
  batch_.hidden_before.clear();
  batch_.logits_rows.clear();
  batch_.sample_rows.clear();
  for (Live& live : live_) {
    ScheduledSequence scheduled;
    scheduled.seq = live.seq;
    scheduled.first_position = live.seq->num_tokens() - 1 + num_drafts;
    scheduled.num_tokens = 1;
    scheduled.num_drafts = std::min(num_drafts, 1);
    batch_.plan.sequences.push_back(scheduled);
    const int32_t stored = stored_hidden(block_at(*live.seq, scheduled.first_position - 1));
    batch_.hidden_before.push_back(num_drafts == 0 ? stored : live.row);
    live.row = static_cast<int32_t>(batch_.logits_rows.size());
    batch_.logits_rows.push_back(live.row);
    batch_.sample_rows.push_back(make_draft_row(*live.seq));
  }
  batch_.results.resize(live_.size());
  build_model_inputs(batch_, blocks_.block_size(), blocks_.num_groups(), false);
  // The head reads no states and has no adapters.
  if (blocks_.states().has_slots()) {
    batch_.state_reads.assign(live_.size(), 0);
    batch_.state_writes.assign(live_.size(), -1);
  }
  batch_.adapters.clear();
  batch_.adapter_indices.clear();
  batch_.stored_before.swap(pending_);
  pending_.clear();
}

void MtpDrafter::take_drafts() {
  const auto is_done = [](const Live& live) { return static_cast<int>(live.seq->drafts.size()) == live.count; };
  for (size_t i = 0; i < live_.size(); ++i) {
    Live& live = live_[i];
    const SampleResult& result = batch_.results[i];
    const std::vector<int32_t>& ending_ids = live.seq->ending_ids;
    const bool is_left_out =
        result.has_numeric_error || std::ranges::find(ending_ids, result.token_id) != ending_ids.end();
    if (is_left_out)
      live.count = static_cast<int>(live.seq->drafts.size());
    else
      live.seq->drafts.emplace_back().token_id = result.token_id;
  }
  std::erase_if(live_, is_done);
}

}  // namespace capstan
