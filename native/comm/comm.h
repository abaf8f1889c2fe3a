#pragma once
// Collectives between the ranks of one tensor-parallel group. In-process thread ranks share memory: a rank publishes a
// pointer and the others read it between two barriers.
#include <cstdint>
#include <memory>

namespace capstan {

class Comm {
 public:
  virtual ~Comm() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // Waits for all ranks. After `abandon` throws kAborted instead of waiting for a rank that failed.
  virtual void barrier() = 0;
  // Publishes `mine`, waits, and returns all ranks' pointers by rank; valid until the next exchange. The caller calls
  // barrier() again before it overwrites what it published.
  virtual void* const* exchange(void* mine) = 0;
  // A rank failed: wakes all ranks that wait, now and later.
  virtual void abandon() = 0;
};

// `world_size` connected ends, one per rank.
struct ThreadComms;
std::shared_ptr<ThreadComms> make_thread_comms(int world_size);
std::unique_ptr<Comm> make_thread_comm(std::shared_ptr<ThreadComms> group, int rank);

}  // namespace capstan
