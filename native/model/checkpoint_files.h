#pragma once
// The files of a checkpoint and the table of their tensors.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "native/backend/backend.h"
#include "native/model/weights.h"

namespace capstan {

// The place of an array in a file.
struct ArrayEntry {
  int file_idx = 0;
  uint64_t offset = 0;  // bytes
  ArrayType type = ArrayType::kF32;
};

// As ScaleCodes.
struct ScaleCodesEntry {
  ArrayEntry table, factors;
  int64_t run = 1;
  float offset = 0;
};

// The arrays of a tensor with groups (GroupedTensor), besides its codes.
struct GroupsEntry {
  CodeLayout layout = CodeLayout::kRows;
  int bits = 4;
  int64_t group_rows = 1, group_cols = 1;
  ArrayEntry scales;
  std::optional<ArrayEntry> zeros;
  std::optional<ArrayEntry> group_index;
  std::optional<ArrayEntry> table;  // f32
  std::optional<ScaleCodesEntry> scale_codes;
};

// A tensor of the checkpoint: its canonical name and its place in a file.
struct TensorEntry {
  std::string name;
  int file_idx = 0;
  uint64_t offset = 0;  // bytes
  DType dtype = DType::kF32;
  const BlockFormat* format = nullptr;  // of a quantized tensor, and replaces dtype
  std::optional<GroupsEntry> groups;    // replaces dtype
  // What scales in e4m3 are multiplied by, or divided by: an f32. At most one of both.
  std::optional<ArrayEntry> factor, divisor;
  int paired_head_dim = 0;      // as in FileTensor
  int paired_rows = 0;          // the same; 0 = paired_head_dim
  bool is_transposed = false;   // as in FileTensor
  bool is_negated_exp = false;  // as in FileTensor
  std::vector<int64_t> shape;   // one or two dimensions
};

// Keeps the files open while their weights are packed. Throws kIo when one cannot be opened.
class CheckpointFiles {
 public:
  struct File {
    std::string path;
    int fd = -1;
    uint64_t size = 0;  // bytes
  };

  explicit CheckpointFiles(const std::vector<std::string>& paths);
  ~CheckpointFiles();
  CheckpointFiles(const CheckpointFiles&) = delete;
  CheckpointFiles& operator=(const CheckpointFiles&) = delete;

  // The returned tensors refer to the open files. Throws kInvalidModel for a shape or a place that a file cannot hold.
  TensorTable make_table(const std::vector<TensorEntry>& entries) const;
  const std::vector<File>& files() const { return files_; }

 private:
  CheckpointFiles() = default;
  const File& file_at(const std::string& tensor, int file_idx) const;
  FileTensor make_tensor(const TensorEntry& entry) const;
  [[noreturn]] static void refuse_end(const std::string& tensor, const File& file);
  FileArray make_array(const std::string& tensor, const ArrayEntry& entry) const;
  void check_size(const std::string& tensor, const ArrayEntry& entry, int64_t bytes) const;
  void add_groups(const GroupsEntry& entry, FileTensor& tensor) const;
  ScaleFactor read_factor(const TensorEntry& entry) const;
  std::vector<float> read_floats(const std::string& tensor, const ArrayEntry& entry, size_t count) const;
  std::vector<int32_t> read_group_index(const ArrayEntry& entry, const FileTensor& tensor) const;

  std::vector<File> files_;
};

// Sums over all tensors.
int64_t num_elements(const TensorTable& tensors);
int64_t num_file_bytes(const TensorTable& tensors);

}  // namespace capstan
