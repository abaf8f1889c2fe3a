#pragma once
// A grammar made ready for one vocabulary, and the state of one text that is held to it.
#include <deque>
#include <memory>
#include <span>
#include <stop_token>
#include <string_view>
#include <unordered_map>

#include "native/grammar/mask_cache.h"

namespace capstan::grammar {

// Immutable but for its cache; shared by all sequences of one grammar, on any thread.
class CompiledGrammar {
 public:
  // Throws as compile() does. `tokens` may be null where only bytes are matched.
  CompiledGrammar(Grammar grammar, std::shared_ptr<const TokenTable> tokens);

  const Automaton& automaton() const { return automaton_; }
  const TokenTable* tokens() const { return tokens_.get(); }
  MaskCache& masks() const { return *masks_; }

 private:
  const Automaton automaton_;
  const std::shared_ptr<const TokenTable> tokens_;
  const std::unique_ptr<MaskCache> masks_;
};

class GrammarMatcher {
 public:
  static constexpr size_t kMaxRollback = 16;          // tokens
  static constexpr size_t kCompactFrames = 1u << 16;  // of the stacks, before unused ones go; then twice what is used

  explicit GrammarMatcher(std::shared_ptr<const CompiledGrammar> grammar);

  const CompiledGrammar& grammar() const { return *grammar_; }

  // Sets the bits (num_mask_words) of the ids that may come next and clears all others; bits from num_ids on are
  // cleared. EOS exactly when the text may end here. Nothing once terminated. Stops between masks, with the mask
  // unfinished, when asked to.
  void fill_mask(std::span<uint32_t> mask, const std::stop_token& stop = {});
  // The same where it takes no long; else false, with the mask unfinished: a state's mask is not made yet, or much
  // depends on the stack.
  bool try_fill_mask(std::span<uint32_t> mask);
  // Takes a token; false, with nothing changed, if it may not come next.
  bool accept(int32_t token_id);
  // Whether accept() would take it.
  bool may_accept(int32_t token_id);
  // Takes bytes as if they were one token.
  bool accept_bytes(std::string_view bytes);
  bool can_end() const { return !is_terminated_ && current_.is_at_bottom; }
  // Whether the text may end here and cannot go on.
  bool is_complete() const { return current_.is_at_bottom && current_.configs.empty(); }
  bool is_terminated() const { return is_terminated_; }  // by an EOS token
  // Takes back the last tokens; false if there are not so many to take back.
  bool rollback(size_t num_tokens);

  // Bit per byte that may come next.
  std::array<uint64_t, 4> next_bytes() const { return machine_.first_bytes(current_); }
  // Fewest bytes until the text may end.
  uint64_t bytes_to_end() const { return bytes_to_end(current_); }
  // Bit per byte that leads to the end soonest.
  std::array<uint64_t, 4> closing_bytes();

 private:
  // Configurations that share a mask, by the stacks below what the mask knows.
  struct MaskGroup {
    MaskKey key;
    std::vector<StackId> bases;
    Frame top;  // of one of them
    bool operator==(const MaskGroup& other) const { return key == other.key && bases == other.bases; }
  };
  struct MaskGroupHash {
    size_t operator()(const MaskGroup& group) const {
      size_t hash = MaskKeyHash{}(group.key);
      for (const StackId base : group.bases)
        hash = (hash ^ base) * size_t{0x9E3779B97F4A7C15};
      return hash;
    }
  };
  struct Dependents {
    std::vector<int32_t> ids;
    size_t work = 0;
  };
  static constexpr size_t kMaxDependents = 256, kMaxDependentIds = size_t{1} << 18;  // kept
  // What a mask may cost, in configurations looked at, be its parts there already or not: about a second. Groups not
  // reached by then are left out.
  static constexpr size_t kMaxFillWork = 10 * MaskCache::kMaxWork;
  static constexpr size_t kQuickWork = 50'000;  // on the spot

  std::vector<MaskGroup> group_configs() const;
  bool fill(std::span<uint32_t> mask, bool is_quick, const std::stop_token& stop);
  void fill_local(std::span<uint32_t> mask, const LocalMask& local);
  const Dependents* dependent_tokens(const MaskGroup& group, const LocalMask& local, size_t* quick_work);
  bool add_dependents(const TokenTrie& suffixes, size_t max_bytes, size_t max_work, Dependents& dependents);
  bool step_over(int32_t token_id, ConfigSet& at);
  bool step_over(std::string_view bytes, ConfigSet& at);
  void take(ConfigSet&& at);
  uint64_t bytes_to_end(const ConfigSet& set) const;
  void remember();
  void compact();

  std::shared_ptr<const CompiledGrammar> grammar_;
  StackMachine machine_;
  ConfigSet current_;
  bool is_terminated_ = false;
  std::deque<ConfigSet> history_;  // before each of the last tokens, the newest last; not counting EOS
  std::unordered_map<MaskGroup, Dependents, MaskGroupHash> dependents_;
  size_t num_dependent_ids_ = 0;
  std::vector<ConfigSet> sets_;  // by depth of a walk
  size_t max_frames_ = kCompactFrames;
};

}  // namespace capstan::grammar
