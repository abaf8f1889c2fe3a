#pragma once
// A grammar compiled for one vocabulary, and the matching state of one text.
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string_view>
#include <unordered_map>

#include "native/grammar/mask_cache.h"

namespace capstan::grammar {

// Thread-safe: immutable except for its mask cache. All sequences of one grammar share it.
class CompiledGrammar {
 public:
  // Throws like compile(). `tokens` may be null when only bytes are matched.
  CompiledGrammar(Grammar grammar, std::shared_ptr<const TokenTable> tokens);

  const Automaton& automaton() const { return automaton_; }
  const TokenTable* tokens() const { return tokens_.get(); }
  MaskCache& masks() const { return *masks_; }

 private:
  const Automaton automaton_;
  const std::shared_ptr<const TokenTable> tokens_;
  const std::unique_ptr<MaskCache> masks_;
};

// The state of one text. Not thread-safe. Copies are independent. Work is counted in visited configurations, which take
// about 50 ns each.
class GrammarMatcher {
 public:
  static constexpr size_t kMaxRollback = 16;          // tokens
  static constexpr size_t kCompactFrames = 1u << 16;  // stack frames before the first compaction

  explicit GrammarMatcher(std::shared_ptr<const CompiledGrammar> grammar);

  const CompiledGrammar& grammar() const { return *grammar_; }

  // Sets the bits (num_mask_words) of the ids that may come next and clears all other bits. EOS ids are set exactly
  // when the text may end here. After termination no bit is set. A stop request ends it early, with the mask
  // incomplete.
  void fill_mask(std::span<uint32_t> mask, const std::stop_token& stop = {});
  // Like fill_mask when that is fast. Otherwise returns false with the mask incomplete: the mask of a state is not
  // computed yet, or too much depends on the stack, or `work_left` is used up. Subtracts the work from it.
  bool try_fill_mask(std::span<uint32_t> mask, size_t& work_left);
  // Consumes a token. Returns false, with nothing changed, when it may not come next. Accepts every token of the mask,
  // which takes up to a second where the sets exceed their limits. A stop request ends that early, with false.
  bool accept(int32_t token_id, const std::stop_token& stop = {});
  // Like accept(), but returns nothing, with nothing changed, when `work_left` is used up or the sets are so large that
  // only accept() decides. Subtracts the work from `work_left`.
  std::optional<bool> try_accept(int32_t token_id, size_t& work_left);
  // Returns whether try_accept() would consume the token.
  std::optional<bool> may_accept(int32_t token_id, size_t& work_left);
  // Consumes bytes as if they were one token.
  bool accept_bytes(std::string_view bytes, const std::stop_token& stop = {});
  bool can_end() const { return !is_terminated_ && current_.is_at_bottom; }
  // Returns whether the text may end here and cannot continue.
  bool is_complete() const { return current_.is_at_bottom && current_.configs.empty(); }
  bool is_terminated() const { return is_terminated_; }  // by an EOS token
  // Undoes the last tokens. Returns false when the history has fewer tokens.
  bool rollback(size_t num_tokens);
  // Steps over tokens and back, with everything as before at its end. While it exists, only its own functions and
  // may_accept() and try_fill_mask() of the matcher may be called.
  class Trial {
   public:
    explicit Trial(GrammarMatcher& matcher);
    ~Trial();
    Trial(const Trial&) = delete;
    Trial& operator=(const Trial&) = delete;
    // Returns whether the token may come next. Not an EOS, which ends the text. When it returns false, which it also
    // does when `work_left` is used up, the trial is over.
    bool step(int32_t token_id, size_t& work_left);

   private:
    GrammarMatcher& matcher_;
    ConfigSet start_;
    const size_t num_frames_;
  };

  // Returns one bit per byte that may come next.
  std::array<uint64_t, 4> next_bytes() const { return machine_.first_bytes(current_); }
  // Returns the fewest bytes until the text may end.
  uint64_t bytes_to_end() const { return bytes_to_end(current_); }
  // Returns one bit per byte that leads to the end with the fewest bytes.
  std::array<uint64_t, 4> closing_bytes();

 private:
  // The configurations that share a mask.
  struct MaskGroup {
    MaskKey key;
    std::vector<StackId> bases;  // the stacks below the frames that the key covers
    Frame top;                   // the top frame of one of the configurations
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
  // The tokens that leave the group's rule and continue in its callers.
  struct Dependents {
    std::vector<int32_t> ids;
    size_t work = 0;
  };
  static constexpr size_t kMaxDependents = 256, kMaxDependentIds = size_t{1} << 18;  // kept between masks
  // Limit of visited configurations per mask, about a second, whether or not its parts are cached. Groups that are not
  // reached by then are left out.
  static constexpr size_t kMaxFillWork = 10 * MaskCache::kMaxWork;
  static constexpr size_t kQuickWork = 50'000;  // the limit of try_fill_mask

  StackId base_of(const Config& config) const;
  std::vector<MaskGroup> group_configs() const;
  bool fill(std::span<uint32_t> mask, size_t* quick_work, const std::stop_token& stop);
  void fill_local(std::span<uint32_t> mask, const LocalMask& local);
  const Dependents* dependent_tokens(const MaskGroup& group, const LocalMask& local, size_t* quick_work);
  bool add_dependents(const TokenTrie& suffixes, size_t max_bytes, size_t max_work, Dependents& dependents);
  std::optional<bool> step_over(int32_t token_id, ConfigSet& at, size_t& work_left);
  std::optional<bool> step_over(std::string_view bytes, ConfigSet& at, size_t& work_left);
  bool step_in_parts(std::string_view bytes, ConfigSet& at, const std::stop_token& stop);
  void advance_to(ConfigSet&& next);
  void drop_frames(size_t num_kept);
  uint64_t bytes_to_end(const ConfigSet& set) const;
  void compact();

  std::shared_ptr<const CompiledGrammar> grammar_;
  StackMachine machine_;
  ConfigSet current_;
  bool is_terminated_ = false;
  std::deque<ConfigSet> history_;  // the sets before each of the last tokens, newest last, without EOS
  std::unordered_map<MaskGroup, Dependents, MaskGroupHash> dependents_;
  size_t num_dependent_ids_ = 0;
  std::vector<ConfigSet> sets_;         // scratch, by depth of a trie walk
  size_t max_frames_ = kCompactFrames;  // compacts above this
};

}  // namespace capstan::grammar
