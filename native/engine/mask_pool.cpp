#include "native/engine/mask_pool.h"

#include <algorithm>

#include "native/base/thread.h"

namespace capstan {

MaskPool::MaskPool(std::function<void()> on_start, std::function<void()> on_done)
    : on_start_(std::move(on_start)), on_done_(std::move(on_done)) {
  running_.reserve(kNumThreads);
  threads_.reserve(kNumThreads);
  try {
    for (int i = 0; i < kNumThreads; ++i)
      threads_.push_back(start_thread([this] { main(); }));
  } catch (...) {
    close();
    throw;
  }
}

std::shared_ptr<MaskJob> MaskPool::start(std::shared_ptr<grammar::GrammarMatcher> matcher, int32_t token_id,
                                         size_t num_mask_words) {
  auto job = std::make_shared<MaskJob>();
  job->matcher = std::move(matcher);
  job->token_id = token_id;
  job->mask.resize(num_mask_words);
  const std::lock_guard lock(mutex_);
  queue_.push(job);
  wake_.notify_one();
  return job;
}

void MaskPool::close() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
    queue_.clear();
    for (const auto& job : running_)
      job->stop.request_stop();
    wake_.notify_all();
  }
  for (std::thread& thread : threads_)
    thread.join();
  threads_.clear();
}

// A stop request leaves the mask incomplete: no caller waits for it.
static void compute(MaskJob& job) {
  const std::stop_token stop = job.stop.get_token();
  if (stop.stop_requested()) return;
  job.is_refused = job.token_id >= 0 && !job.matcher->accept(job.token_id, stop);
  if (!job.is_refused) job.matcher->fill_mask(job.mask, stop);
}

// Allocates nothing outside the job: an exception on this thread would end the process.
void MaskPool::main() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return is_closing_ || !queue_.is_empty(); });
    if (is_closing_) return;
    std::shared_ptr<MaskJob> job = queue_.pop();
    running_.push_back(job);
    lock.unlock();
    if (on_start_) on_start_();
    const auto start = std::chrono::steady_clock::now();
    try {
      compute(*job);
    } catch (...) {
      job->error = std::current_exception();
    }
    const auto time = std::chrono::steady_clock::now() - start;
    job->is_done.store(true);
    on_done_();
    lock.lock();
    queue_.finish(*job, time);
    std::erase(running_, job);
    // The job may hold the last reference to a grammar, which takes long to free.
    lock.unlock();
    job.reset();
    lock.lock();
  }
}

}  // namespace capstan
