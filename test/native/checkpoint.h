#pragma once
// A checkpoint in memory for tests: tensors as they would lie in a file.
#include <deque>
#include <string>
#include <vector>

#include "native/backend/backend.h"

namespace capstan::testing {

class MemoryCheckpoint {
 public:
  MemoryCheckpoint();
  ~MemoryCheckpoint();
  MemoryCheckpoint(const MemoryCheckpoint&) = delete;
  MemoryCheckpoint& operator=(const MemoryCheckpoint&) = delete;

  // Appends a tensor, rounding to its type; stable address. `values` are set to what was stored.
  const FileTensor& add(const std::string& name, DType dtype, int64_t rows, int64_t cols, std::vector<float>& values);
  void truncate(uint64_t bytes);
  uint64_t bytes() const { return end_; }

 private:
  int fd_;
  uint64_t end_ = 0;
  std::deque<FileTensor> tensors_;
};

TensorSlice whole(const FileTensor& tensor);

// Deterministic values: about normal with the given deviation.
std::vector<float> random_values(uint64_t seed, int64_t count, float deviation);

}  // namespace capstan::testing
