#include "native/engine/grammar_drafter.h"

#include <bit>

#include "native/grammar/matcher.h"

namespace capstan {
namespace {

// Of drafts, before any was verified: they fail only where the model prefers a shorter token.
constexpr double kAccuracy = 0.95;

}  // namespace

void GrammarDrafter::begin(Sequence& seq) const {
  if (seq.grammar) seq.pacer.emplace(num_tokens_, kRowCost, kAccuracy);
}

bool GrammarDrafter::can_draft(const ScheduledSequence& scheduled) const {
  const Sequence& seq = *scheduled.seq;
  return seq.grammar && seq.forced_id < 0 && forced_token(seq.grammar_mask, *vocabulary_) >= 0;
}

void GrammarDrafter::draft(const StepPlan& plan, std::span<const Wish> wishes) {
  for (const Wish& wish : wishes) {
    Sequence& seq = *plan.sequences[wish.idx].seq;
    seq.drafts.clear();
    DraftTrial trial(seq);
    int32_t token_id = forced_token(seq.grammar_mask, *vocabulary_);
    while (token_id >= 0 && static_cast<int>(seq.drafts.size()) < wish.count && add_draft(trial, token_id))
      token_id = forced_token(seq.drafts.back().mask, *vocabulary_);
  }
}

int32_t forced_token(std::span<const uint32_t> mask, const Vocabulary& vocabulary) {
  constexpr int kMaxTokens = 16;
  int32_t ids[kMaxTokens];
  int num_ids = 0, longest = 0;
  for (size_t i = 0; i < mask.size(); ++i)
    for (uint32_t bits = mask[i]; bits != 0; bits &= bits - 1) {
      const auto id = static_cast<int32_t>(i * 32) + std::countr_zero(bits);
      if (num_ids == kMaxTokens || id >= vocabulary.num_ids()) return -1;
      ids[num_ids] = id;
      if (vocabulary.bytes_of(id).size() > vocabulary.bytes_of(ids[longest]).size()) longest = num_ids;
      ++num_ids;
    }
  if (num_ids == 0) return -1;
  const std::string_view text = vocabulary.bytes_of(ids[longest]);
  for (int i = 0; i < num_ids; ++i)
    if (!text.starts_with(vocabulary.bytes_of(ids[i]))) return -1;
  return ids[longest];
}

}  // namespace capstan
