#include "native/engine/mask_pool.h"

#include <algorithm>

namespace capstan {

std::shared_ptr<MaskJob> MaskPool::start(std::shared_ptr<grammar::GrammarMatcher> matcher, size_t num_mask_words) {
  auto job = std::make_shared<MaskJob>();
  job->matcher = std::move(matcher);
  job->mask.resize(num_mask_words);
  const std::lock_guard lock(mutex_);
  if (threads_.empty())
    for (int i = 0; i < kNumThreads; ++i)
      threads_.emplace_back([this] { main(); });
  const grammar::CompiledGrammar* grammar = &job->matcher->grammar();
  const auto queue = std::ranges::find(waiting_, grammar, &Queue::grammar);
  if (queue == waiting_.end())
    waiting_.push_back({grammar, {job}});
  else
    queue->jobs.push_back(job);
  wake_.notify_one();
  return job;
}

void MaskPool::close() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
    waiting_.clear();
    for (const auto& job : running_)
      job->stop.request_stop();
    wake_.notify_all();
  }
  for (std::thread& thread : threads_)
    thread.join();
  threads_.clear();
}

std::shared_ptr<MaskJob> MaskPool::next_job() {
  Queue queue = std::move(waiting_.front());
  waiting_.pop_front();
  std::shared_ptr<MaskJob> job = std::move(queue.jobs.front());
  queue.jobs.pop_front();
  if (!queue.jobs.empty()) waiting_.push_back(std::move(queue));
  return job;
}

void MaskPool::main() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return is_closing_ || !waiting_.empty(); });
    if (is_closing_) return;
    std::shared_ptr<MaskJob> job = next_job();
    running_.push_back(job);
    lock.unlock();
    if (on_start_) on_start_();
    try {
      job->matcher->fill_mask(job->mask, job->stop.get_token());
    } catch (...) {
      job->error = std::current_exception();
    }
    job->is_done.store(true);
    on_done_();
    lock.lock();
    std::erase(running_, job);
    // The job may hold the last reference to a grammar, which takes long to free.
    lock.unlock();
    job.reset();
    lock.lock();
  }
}

}  // namespace capstan
