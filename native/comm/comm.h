#pragma once
// Collectives between the ranks of one tensor-parallel group. Ranks are threads of one process: a rank publishes a
// pointer, and the others read its memory between two barriers.
#include <cstdint>
#include <memory>

namespace capstan {

class Comm {
 public:
  virtual ~Comm() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // Waits for all ranks. Throws kAborted after `abandon`, instead of waiting for a rank that failed.
  virtual void barrier() = 0;
  // Publishes `mine`, waits for all ranks and returns the pointers of all ranks, valid until the next exchange. Call
  // barrier() before overwriting the published memory.
  virtual void* const* exchange(void* mine) = 0;
  // Reports that a rank failed. Wakes all waiting ranks, and any that wait later.
  virtual void abandon() = 0;
};

// The shared state of `world_size` ranks, and one end of it.
struct ThreadComms;
std::shared_ptr<ThreadComms> make_thread_comms(int world_size);
std::unique_ptr<Comm> make_thread_comm(std::shared_ptr<ThreadComms> group, int rank);

}  // namespace capstan
