#include "native/model/checkpoint_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "native/backend/weight_faults.h"
#include "native/base/error.h"

namespace capstan {

// Keeps the product of columns and the size of an element within 64 bits.
constexpr int64_t kMaxColumns = int64_t{1} << 48;

// NOTE: delegates, so that the destructor closes the first files when a later one cannot be opened.
CheckpointFiles::CheckpointFiles(const std::vector<std::string>& paths) : CheckpointFiles() {
  for (const std::string& path : paths) {
    File& file = files_.emplace_back();
    file.path = path;
    // O_NONBLOCK: a pipe of this name must not block.
    file.fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (file.fd < 0) throw Error(ErrorCode::kIo, path + ": cannot be opened: " + std::strerror(errno));
    struct stat status{};
    if (::fstat(file.fd, &status) == 0) file.size = static_cast<uint64_t>(status.st_size);
  }
}

CheckpointFiles::~CheckpointFiles() {
  for (const File& file : files_)
    if (file.fd >= 0) ::close(file.fd);
}

namespace {

[[noreturn]] void refuse_tensor(const std::string& name, const std::string& reason) {
  throw Error(ErrorCode::kInvalidModel, "tensor " + name + ": " + reason);
}

}  // namespace

void CheckpointFiles::refuse_end(const std::string& tensor, const File& file) {
  refuse_tensor(tensor,
                "it ends after the end of " + file.path + ", which has " + std::to_string(file.size) + " bytes");
}

const CheckpointFiles::File& CheckpointFiles::file_at(const std::string& tensor, int file_idx) const {
  if (file_idx < 0 || static_cast<size_t>(file_idx) >= files_.size())
    refuse_tensor(tensor,
                  "expected a file index below " + std::to_string(files_.size()) + ", got " + std::to_string(file_idx));
  return files_[static_cast<size_t>(file_idx)];
}

FileArray CheckpointFiles::make_array(const std::string& tensor, const ArrayEntry& entry) const {
  return {file_at(tensor, entry.file_idx).fd, entry.offset, entry.type};
}

void CheckpointFiles::check_size(const std::string& tensor, const ArrayEntry& entry, int64_t bytes) const {
  const File& file = file_at(tensor, entry.file_idx);
  if (entry.offset > file.size || static_cast<uint64_t>(bytes) > file.size - entry.offset) refuse_end(tensor, file);
}

std::vector<int32_t> CheckpointFiles::read_group_index(const ArrayEntry& entry, const FileTensor& tensor) const {
  check_size(tensor.name, entry, tensor.cols * 4);
  std::vector<int32_t> index(static_cast<size_t>(tensor.cols));
  const FileArray array = make_array(tensor.name, entry);
  read_fully(tensor.name, array.fd, array.offset, index.data(), index.size() * 4);
  const int64_t num_groups = num_column_groups(tensor);
  bool is_in_order = true;
  for (size_t col = 0; col < index.size(); ++col) {
    if (index[col] < 0 || index[col] >= num_groups)
      refuse_tensor(tensor.name, "g_idx: expected groups from 0 to " + std::to_string(num_groups - 1) + ", got " +
                                     std::to_string(index[col]) + " for column " + std::to_string(col));
    is_in_order = is_in_order && index[col] == static_cast<int64_t>(col) / tensor.groups->group_cols;
  }
  return is_in_order ? std::vector<int32_t>() : index;
}

ScaleFactor CheckpointFiles::read_factor(const TensorEntry& entry) const {
  if (!entry.factor && !entry.divisor) return {};
  const ArrayEntry& array = entry.factor ? *entry.factor : *entry.divisor;
  check_size(entry.name, array, sizeof(float));
  float value = 0;
  read_fully(entry.name, file_at(entry.name, array.file_idx).fd, array.offset, &value, sizeof value);
  if (!std::isfinite(value) || (entry.divisor && value == 0))
    refuse_tensor(entry.name, std::string("the ") + (entry.factor ? "factor" : "divisor") +
                                  " of its scales: expected a finite number" + (entry.factor ? "" : " other than 0") +
                                  ", got " + std::to_string(value));
  const double factor = (entry.factor ? double{value} : 1.0 / value) / 2;
  const auto high = static_cast<float>(factor);
  return {high, static_cast<float>(factor - high)};
}

std::vector<float> CheckpointFiles::read_floats(const std::string& tensor, const ArrayEntry& entry,
                                                size_t count) const {
  std::vector<float> values(count);
  check_size(tensor, entry, static_cast<int64_t>(count * sizeof(float)));
  read_fully(tensor, file_at(tensor, entry.file_idx).fd, entry.offset, values.data(), count * sizeof(float));
  if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); }))
    refuse_tensor(tensor, std::string("expected finite values in its table, got NaN or Inf. ") + kDamagedFile);
  return values;
}

void CheckpointFiles::add_groups(const GroupsEntry& entry, FileTensor& tensor) const {
  auto groups = std::make_shared<GroupedTensor>();
  groups->layout = entry.layout;
  groups->bits = entry.bits;
  groups->group_rows = entry.group_rows;
  groups->group_cols = entry.group_cols;
  groups->scales = make_array(tensor.name, entry.scales);
  if (entry.zeros) groups->zeros = make_array(tensor.name, *entry.zeros);
  if (entry.table) groups->table = read_floats(tensor.name, *entry.table, 16);
  if (const auto& codes = entry.scale_codes) {
    if (codes->run < 1) refuse_tensor(tensor.name, "expected runs of 1 or more scales");
    groups->scale_codes = {read_floats(tensor.name, codes->table, 256), make_array(tensor.name, codes->factors),
                           codes->run, codes->offset};
  }
  tensor.groups = groups;
  check_groups(tensor);
  const GroupedBytes bytes = grouped_bytes(tensor);
  check_size(tensor.name, entry.scales, bytes.scales);
  if (entry.zeros) check_size(tensor.name, *entry.zeros, bytes.zeros);
  if (entry.scale_codes) {
    const int64_t num_scales = num_row_groups(tensor) * num_column_groups(tensor);
    check_size(tensor.name, entry.scale_codes->factors, ((num_scales - 1) / entry.scale_codes->run + 1) * 4);
  }
  if (entry.group_index) groups->group_index = read_group_index(*entry.group_index, tensor);
}

FileTensor CheckpointFiles::make_tensor(const TensorEntry& entry) const {
  const auto refuse = [&](const std::string& reason) { refuse_tensor(entry.name, reason); };
  if (entry.shape.empty() || entry.shape.size() > 2 ||
      std::ranges::any_of(entry.shape, [](int64_t size) { return size <= 0; }))
    refuse("expected one or two dimensions, each positive");
  const File& file = file_at(entry.name, entry.file_idx);
  FileTensor tensor;
  tensor.name = entry.name;
  tensor.fd = file.fd;
  tensor.offset = entry.offset;
  tensor.dtype = entry.dtype;
  tensor.rows = entry.shape.size() == 2 ? entry.shape[0] : 1;
  tensor.cols = entry.shape.back();
  tensor.format = entry.format;
  tensor.paired_head_dim = entry.paired_head_dim;
  tensor.paired_rows = entry.paired_rows == 0 ? entry.paired_head_dim : entry.paired_rows;
  if (tensor.format != nullptr && tensor.cols % tensor.format->block_size != 0)
    refuse(std::string("expected whole blocks of ") + std::to_string(tensor.format->block_size) + " columns for " +
           tensor.format->name + ", got " + std::to_string(tensor.cols) + " columns");
  const int64_t features = entry.shape[0];  // a bias holds one for each row of its projection
  if (tensor.paired_head_dim < 0 || tensor.paired_head_dim % 2 != 0 ||
      (tensor.paired_head_dim != 0 && features % tensor.paired_head_dim != 0))
    refuse("interleavedHeadDim: expected an even divisor of " + std::to_string(features) + ", got " +
           std::to_string(tensor.paired_head_dim));
  if (tensor.paired_rows < 0 || tensor.paired_rows > tensor.paired_head_dim || tensor.paired_rows % 2 != 0)
    refuse("interleavedRows: expected an even number up to " + std::to_string(tensor.paired_head_dim) + ", got " +
           std::to_string(tensor.paired_rows));
  tensor.factor = read_factor(entry);
  tensor.is_transposed = entry.is_transposed;
  if (tensor.is_transposed && (tensor.format != nullptr || entry.groups))
    refuse("isTransposed: expected a tensor that is not quantized");
  tensor.is_negated_exp = entry.is_negated_exp;
  if (tensor.is_negated_exp && entry.shape.size() != 1) refuse("isNegatedExp: expected a vector");
  if (tensor.cols > kMaxColumns)
    refuse("expected at most " + std::to_string(kMaxColumns) + " columns, got " + std::to_string(tensor.cols));
  if (entry.groups) {
    add_groups(*entry.groups, tensor);
    check_size(entry.name, {entry.file_idx, entry.offset, {}}, grouped_bytes(tensor).codes);
    return tensor;
  }
  const unsigned __int128 end = entry.offset + static_cast<unsigned __int128>(tensor.rows) *
                                                   static_cast<uint64_t>(file_bytes(tensor, tensor.cols));
  if (end > file.size) refuse_end(entry.name, file);
  return tensor;
}

TensorTable CheckpointFiles::make_table(const std::vector<TensorEntry>& entries) const {
  TensorTable table;
  for (const TensorEntry& entry : entries)
    if (!table.emplace(entry.name, make_tensor(entry)).second)
      throw Error(ErrorCode::kInvalidModel, "tensor " + entry.name + ": expected one entry, got two");
  return table;
}

int64_t num_elements(const TensorTable& tensors) {
  int64_t total = 0;
  for (const auto& [name, tensor] : tensors)
    total += tensor.rows * tensor.cols;
  return total;
}

int64_t num_file_bytes(const TensorTable& tensors) {
  int64_t total = 0;
  for (const auto& [name, tensor] : tensors)
    total += tensor.rows * file_bytes(tensor, tensor.cols);
  return total;
}

}  // namespace capstan
