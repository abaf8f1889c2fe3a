#pragma once
// A checkpoint in memory, with the layout of a file.
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

  // Appends a tensor and sets `values` to the values after rounding to its type. The returned reference stays valid.
  const FileTensor& add(const std::string& name, DType dtype, int64_t rows, int64_t cols, std::vector<float>& values);
  // Appends a tensor in blocks. `bytes` are those of its first row; each later row begins one block further on in them.
  const FileTensor& add_blocks(const std::string& name, const BlockFormat& format, int64_t rows, int64_t cols,
                               const std::vector<uint8_t>& bytes);
  void truncate(uint64_t bytes);
  uint64_t bytes() const { return end_; }

 private:
  const FileTensor& append(FileTensor tensor, const void* bytes, size_t count);

  int fd_;
  uint64_t end_ = 0;
  std::deque<FileTensor> tensors_;
};

TensorSlice whole(const FileTensor& tensor);

// Returns deterministic, approximately normal values.
std::vector<float> random_values(uint64_t seed, int64_t count, float deviation);

}  // namespace capstan::testing
