#pragma once
// The files of a checkpoint and the table of their tensors.
#include <cstdint>
#include <string>
#include <vector>

#include "native/backend/backend.h"
#include "native/model/weights.h"

namespace capstan {

// A tensor of the checkpoint: its canonical name and its place in a file.
struct TensorEntry {
  std::string name;
  int file_idx = 0;
  uint64_t offset = 0;  // bytes
  DType dtype = DType::kF32;
  const BlockFormat* format = nullptr;  // of a quantized tensor, and replaces dtype
  int paired_head_dim = 0;              // as in FileTensor
  int paired_rows = 0;                  // the same; 0 = paired_head_dim
  std::vector<int64_t> shape;           // one or two dimensions
};

// Keeps the files open while their weights are packed. Throws kIo when one cannot be opened.
class CheckpointFiles {
 public:
  explicit CheckpointFiles(const std::vector<std::string>& paths);
  ~CheckpointFiles();
  CheckpointFiles(const CheckpointFiles&) = delete;
  CheckpointFiles& operator=(const CheckpointFiles&) = delete;

  // The returned tensors refer to the open files. Throws kInvalidModel for a shape or a place that a file cannot hold.
  TensorTable make_table(const std::vector<TensorEntry>& entries) const;

 private:
  struct File {
    std::string path;
    int fd = -1;
    uint64_t size = 0;  // bytes
  };

  CheckpointFiles() = default;
  FileTensor make_tensor(const TensorEntry& entry) const;

  std::vector<File> files_;
};

// Sums over all tensors.
int64_t num_elements(const TensorTable& tensors);
int64_t num_file_bytes(const TensorTable& tensors);

}  // namespace capstan
