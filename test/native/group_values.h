#pragma once
// Small quantized tensors of every layout with their values (test/oracle/group_values.py).
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "native/backend/loaded_groups.h"
#include "native/base/number.h"
#include "native/model/checkpoint_files.h"

namespace capstan::testing {

// An array of a file; no bytes = none.
struct ArrayValues {
  std::string type;
  std::vector<uint8_t> bytes;
};

struct GroupValues {
  std::string name, layout;
  int bits = 0;
  int64_t rows = 0, cols = 0, group_rows = 0, group_cols = 0;
  ArrayValues scales, zeros, index, factor, divisor, table, scale_table, scale_factors;
  int64_t run = 1;
  float offset = 0;
  std::vector<uint8_t> codes;
  std::vector<float> values;  // (rows, cols)
};

inline std::vector<uint8_t> bytes_of_hex(const std::string& hex) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<uint8_t>(std::stoul(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

inline ArrayType array_type(const std::string& name) {
  const char* const names[] = {"f32", "f16", "bf16", "e8m0", "i32", "i8", "e4m3", "u8"};
  for (size_t i = 0; i < std::size(names); ++i)
    if (name == names[i]) return static_cast<ArrayType>(i);
  throw std::runtime_error("no array type " + name);
}

inline std::vector<GroupValues> read_group_values() {
  std::ifstream file("test/native/fixtures/group-values.txt");
  std::vector<GroupValues> all;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    GroupValues next;
    words >> next.name >> next.layout >> next.bits >> next.rows >> next.cols >> next.group_rows >> next.group_cols;
    for (ArrayValues* array : {&next.scales, &next.zeros, &next.index, &next.factor, &next.divisor}) {
      std::string hex;
      words >> array->type >> hex;
      array->bytes = bytes_of_hex(hex);
    }
    std::string codes, values;
    words >> codes >> values;
    next.codes = bytes_of_hex(codes);
    for (size_t i = 0; i < values.size(); i += 8)
      next.values.push_back(bits_float(static_cast<uint32_t>(std::stoul(values.substr(i, 8), nullptr, 16))));
    for (ArrayValues* array : {&next.table, &next.scale_table, &next.scale_factors}) {
      std::string hex;
      words >> array->type >> hex;
      array->bytes = bytes_of_hex(hex);
    }
    words >> next.run >> next.offset;
    if (!next.scale_table.bytes.empty()) next.scales.type = "u8";
    all.push_back(next);
  }
  return all;
}

// A checkpoint file with one tensor.
class GroupFile {
 public:
  explicit GroupFile(const GroupValues& values) : path_("/tmp/capstan-groups-XXXXXX") {
    const int fd = mkstemp(path_.data());
    if (fd < 0) throw std::runtime_error("mkstemp failed");
    close(fd);
    std::ofstream file(path_, std::ios::binary);
    const auto append = [&](const std::vector<uint8_t>& bytes) {
      const auto at = static_cast<uint64_t>(file.tellp());
      file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
      return at;
    };
    const auto array = [&](const ArrayValues& from) {
      return ArrayEntry{0, append(from.bytes), array_type(from.type)};
    };
    GroupsEntry groups{find_code_layout(values.layout).value(),
                       values.bits,
                       values.group_rows,
                       values.group_cols,
                       array(values.scales),
                       std::nullopt,
                       std::nullopt,
                       std::nullopt,
                       std::nullopt};
    if (!values.table.bytes.empty()) groups.table = array(values.table);
    if (!values.scale_table.bytes.empty())
      groups.scale_codes = {array(values.scale_table), array(values.scale_factors), values.run, values.offset};
    if (!values.zeros.bytes.empty()) groups.zeros = array(values.zeros);
    if (!values.index.bytes.empty()) groups.group_index = array(values.index);
    if (!values.factor.bytes.empty()) entry.factor = array(values.factor);
    if (!values.divisor.bytes.empty()) entry.divisor = array(values.divisor);
    entry.name = "w";
    entry.shape = {values.rows, values.cols};
    entry.offset = append(values.codes);  // last, so that a tensor that is too large ends after the file
    entry.groups = groups;
  }
  ~GroupFile() { unlink(path_.c_str()); }
  GroupFile(const GroupFile&) = delete;
  GroupFile& operator=(const GroupFile&) = delete;

  // Opens the file and checks the entry.
  void open() {
    files_ = std::make_unique<CheckpointFiles>(std::vector<std::string>{path_});
    tensor_ = files_->make_table({entry}).at("w");
  }
  // After open. Columns [col_begin, col_begin + num_cols) of all rows.
  TensorSlice slice(int64_t col_begin, int64_t num_cols) const {
    return {&tensor_, 0, tensor_.rows, col_begin, num_cols, load_groups(tensor_)};
  }
  TensorSlice whole() const { return slice(0, tensor_.cols); }

  TensorEntry entry;

 private:
  std::string path_;
  std::unique_ptr<CheckpointFiles> files_;
  FileTensor tensor_;
};

}  // namespace capstan::testing
