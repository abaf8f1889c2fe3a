#pragma once
// Slices of the tensors of a checkpoint, with what a tensor needs in memory while it is packed.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "native/backend/loaded_groups.h"
#include "native/backend/panel_reader.h"
#include "native/model/weights.h"

namespace capstan {

// Builds the slices of one rank. The tensors must be present.
class Slicer {
 public:
  explicit Slicer(const TensorTable& tensors) : tensors_(tensors) {}

  bool has(const std::string& name) const { return tensors_.contains(name); }
  int64_t rows(const std::string& name) const { return tensor(name).rows; }
  TensorSlice whole(const std::string& name) const { return rows_of(name, 0, rows(name)); }
  TensorSlice rows_of(const std::string& name, int64_t begin, int64_t count) const {
    const FileTensor& found = tensor(name);
    return slice(found, begin, count, 0, found.cols);
  }
  TensorSlice cols_of(const std::string& name, int64_t begin, int64_t count) const {
    const FileTensor& found = tensor(name);
    return slice(found, 0, found.rows, begin, count);
  }
  // Appends the bias of `prefix` for output features [begin, begin + count) if the checkpoint has one.
  void add_bias(MatrixSource& source, const std::string& prefix, int64_t begin, int64_t count) const {
    if (const auto found = tensors_.find(prefix + ".bias"); found != tensors_.end())
      source.bias.push_back({&found->second, 0, 1, begin, count});
  }

 private:
  const FileTensor& tensor(const std::string& name) const { return tensors_.at(name); }
  // A projection that holds several is requested once for each of them in a row, and is loaded once.
  TensorSlice slice(const FileTensor& tensor, int64_t row_begin, int64_t num_rows, int64_t col_begin,
                    int64_t num_cols) const {
    if (&tensor != last_) {
      last_ = nullptr;
      groups_ = nullptr;
      ordered_ = nullptr;
      groups_ = load_groups(tensor);
      ordered_ = load_ordered(tensor);
      last_ = &tensor;
    }
    return {&tensor, row_begin, num_rows, col_begin, num_cols, groups_, ordered_};
  }

  const TensorTable& tensors_;
  mutable const FileTensor* last_ = nullptr;
  mutable std::shared_ptr<const LoadedGroups> groups_;        // of last_
  mutable std::shared_ptr<const std::vector<char>> ordered_;  // of last_
};

}  // namespace capstan
