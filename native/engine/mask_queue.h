#pragma once
// The order in which grammar masks are computed: grammars take turns by the time that their masks take.
#include <chrono>
#include <deque>
#include <list>
#include <memory>

#include "native/engine/mask_job.h"

namespace capstan {

// Start-time fair queueing. The grammar with the least time is next, so that one with slow masks does not delay the
// others. A grammar that comes, or comes back, starts with the time of the newest turn: it neither gains from waiting
// nor waits for what the others have used before. Not thread-safe.
class MaskQueue {
 public:
  using Duration = std::chrono::steady_clock::duration;

  // The jobs of one grammar begin in the order of the calls.
  void push(std::shared_ptr<MaskJob> job);
  bool is_empty() const { return num_waiting_ == 0; }
  // Takes out the next job; there must be one. finish() must follow. Allocates nothing.
  std::shared_ptr<MaskJob> pop();
  // Adds the time that a job of pop() has taken to its grammar. Allocates nothing.
  void finish(const MaskJob& job, Duration time);
  // Drops the jobs that wait.
  void clear();

 private:
  struct Turn {
    const grammar::CompiledGrammar* grammar;
    Duration time;
    std::deque<std::shared_ptr<MaskJob>> jobs{};
    int num_running = 0;
    bool is_idle() const { return jobs.empty() && num_running == 0; }
  };

  std::list<Turn>::iterator turn_of(const MaskJob& job);

  // Of the grammars with jobs, and of those that are ahead of `now_`. A turn may outlive its grammar.
  std::list<Turn> turns_;
  Duration now_{};  // the time of the newest turn
  size_t num_waiting_ = 0;
};

}  // namespace capstan
