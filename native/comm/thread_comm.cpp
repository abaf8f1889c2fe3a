#include <atomic>
#include <vector>

#include "native/base/error.h"
#include "native/base/machine.h"
#include "native/comm/comm.h"

namespace capstan {

// A sense-reversing barrier: `arrived` counts the ranks, and the last one to arrive advances `generation`.
struct ThreadComms {
  explicit ThreadComms(int size) : world_size(size), published(static_cast<size_t>(size)) {}
  const int world_size;
  std::vector<void*> published;
  std::atomic<int> arrived{0};
  std::atomic<uint32_t> generation{0};
  std::atomic<bool> is_abandoned{false};
};

namespace {

// Ranks spin only when each has a core, because a spinning rank could occupy the core that the last rank needs.
constexpr int kSpins = 2000;

class ThreadComm final : public Comm {
 public:
  ThreadComm(std::shared_ptr<ThreadComms> group, int rank) : group_(std::move(group)), rank_(rank) {
    may_spin_ = static_cast<size_t>(group_->world_size) <= usable_cpus().size();
  }

  int rank() const override { return rank_; }
  int world_size() const override { return group_->world_size; }

  void barrier() override {
    ThreadComms& group = *group_;
    const uint32_t generation = group.generation.load(std::memory_order_acquire);
    if (group.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == group.world_size) {
      group.arrived.store(0, std::memory_order_relaxed);
      group.generation.fetch_add(1, std::memory_order_acq_rel);
      group.generation.notify_all();
    } else {
      for (int i = 0; may_spin_ && i < kSpins && group.generation.load(std::memory_order_acquire) == generation; ++i) {
        if (group.is_abandoned.load(std::memory_order_relaxed)) break;
      }
      while (group.generation.load(std::memory_order_acquire) == generation &&
             !group.is_abandoned.load(std::memory_order_acquire))
        group.generation.wait(generation, std::memory_order_acquire);
    }
    if (group.is_abandoned.load(std::memory_order_acquire)) throw Error(ErrorCode::kAborted, "another rank failed");
  }

  void* const* exchange(void* mine) override {
    group_->published[static_cast<size_t>(rank_)] = mine;
    barrier();
    return group_->published.data();
  }

  void abandon() override {
    group_->is_abandoned.store(true, std::memory_order_release);
    // Waiting ranks wake when the generation changes.
    group_->generation.fetch_add(1, std::memory_order_acq_rel);
    group_->generation.notify_all();
  }

 private:
  std::shared_ptr<ThreadComms> group_;
  int rank_;
  bool may_spin_;
};

}  // namespace

std::shared_ptr<ThreadComms> make_thread_comms(int world_size) {
  return std::make_shared<ThreadComms>(world_size);
}

std::unique_ptr<Comm> make_thread_comm(std::shared_ptr<ThreadComms> group, int rank) {
  return std::make_unique<ThreadComm>(std::move(group), rank);
}

}  // namespace capstan
