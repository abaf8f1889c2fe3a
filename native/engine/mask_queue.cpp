#include "native/engine/mask_queue.h"

#include <algorithm>
#include <utility>

namespace capstan {

std::list<MaskQueue::Turn>::iterator MaskQueue::turn_of(const MaskJob& job) {
  return std::ranges::find(turns_, &job.matcher->grammar(), &Turn::grammar);
}

void MaskQueue::push(std::shared_ptr<MaskJob> job) {
  auto turn = turn_of(*job);
  if (turn == turns_.end()) turn = turns_.insert(turn, {&job->matcher->grammar(), now_});
  if (turn->is_idle()) turn->time = std::max(turn->time, now_);
  turn->jobs.push_back(std::move(job));
  ++num_waiting_;
}

// The time of a running job is not known yet. So a grammar with fewer running jobs precedes one with less time.
std::shared_ptr<MaskJob> MaskQueue::pop() {
  auto next = turns_.end();
  for (auto turn = turns_.begin(); turn != turns_.end(); ++turn) {
    if (turn->jobs.empty()) continue;
    if (next == turns_.end() || std::pair(turn->num_running, turn->time) < std::pair(next->num_running, next->time))
      next = turn;
  }
  std::shared_ptr<MaskJob> job = std::move(next->jobs.front());
  next->jobs.pop_front();
  ++next->num_running;
  --num_waiting_;
  now_ = std::max(now_, next->time);
  turns_.splice(turns_.end(), turns_, next);
  return job;
}

void MaskQueue::finish(const MaskJob& job, Duration time) {
  const auto turn = turn_of(job);
  if (turn == turns_.end()) return;  // dropped by clear()
  turn->time += time;
  --turn->num_running;
  // Without other grammars, no time is ahead.
  if (std::ranges::all_of(turns_, &Turn::is_idle)) return turns_.clear();
  turns_.remove_if([this](const Turn& other) { return other.is_idle() && other.time <= now_; });
}

void MaskQueue::clear() {
  turns_.clear();
  num_waiting_ = 0;
}

}  // namespace capstan
