#pragma once

#include <sys/types.h>

#include <atomic>
#include <string>

#include "native/sandbox/spec.h"

/** Stops a replica that takes too much memory, where no control group does. */
class MemoryWatch {
 public:
  explicit MemoryWatch(const Spec& spec);

  /** Measures the descendants of `supervisor` until they exceed the limit. Runs in a thread. */
  void run(pid_t supervisor, pid_t first_process);

  bool is_over() const { return is_over_; }

 private:
  bool measure(pid_t supervisor, pid_t first_process);

  const Spec& spec_;
  /** Measures in a row in which the replica held files whose size is unknown. */
  int num_hidden_ = 0;
  std::atomic<bool> is_over_ = false;
};
