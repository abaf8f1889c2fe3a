#pragma once
// Quantized tensors whose codes, scales and zero points are separate arrays of a file: AWQ, GPTQ, compressed-tensors,
// FP8, MXFP4, NVFP4 and bitsandbytes. value = scale * (code - zero point), in f32. A group of rows and columns shares a
// scale and a zero point.
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "native/backend/block_format.h"

namespace capstan {

struct FileTensor;

// How the codes of a (rows, cols) tensor and its zero points lie in the file. Words have 32 bits; the first code is in
// the lowest bits. Groups are (row groups, column groups), here written (R, C). A zero point of a type without zero
// points is 2^(bits - 1).
enum class CodeLayout : uint8_t {
  kRows,     // (rows, words), bits of a row in order. Scales (R, C). Zero points (words of R, C), or in bytes (R, C).
  kGptq,     // (words, rows), bits of a row down a column. Scales (C, R). Zero points (C, words of R), less one.
  kGptqV2,   // the same, with zero points stored unchanged
  kAwq,      // (cols, words of 8 rows) in the order 0 2 4 6 1 3 5 7. Scales (C, R). Zero points (C, words of R) alike.
  kInt8,     // (rows, cols) signed bytes. Scales (R, C). Zero points (R, C) in signed bytes.
  kFp8,      // (rows, cols) e4m3. Scales (R, C).
  kFp4,      // as kRows: codes of e2m1, scales of e8m0
  kFp4E4m3,  // the same with scales of e4m3, which the tensor's factor multiplies
  kTable4,   // (rows, cols / 2) bytes, the first code in the high bits. A table in the file has the value of each code.
  kInt8Max,  // as kInt8. A scale is the value of code 127.
};

// Returns nothing for an unknown name: rows, gptq, gptq_v2, awq, int8, fp8, fp4, fp4_e4m3, table4 or int8_max.
std::optional<CodeLayout> find_code_layout(std::string_view name);

enum class ArrayType : uint8_t { kF32, kF16, kBf16, kE8m0, kInt32, kInt8, kE4m3, kUint8 };

int64_t array_type_size(ArrayType type);

// An array of a file. fd -1 = none; not owned; valid during load only.
struct FileArray {
  int fd = -1;
  uint64_t offset = 0;
  ArrayType type = ArrayType::kF32;
};

// Scales in bytes, in runs of `run` of them: scale = table[byte] * (the factor of its run) + offset.
struct ScaleCodes {
  std::vector<float> table;  // (256)
  FileArray factors;         // kF32
  int64_t run = 1;
  float offset = 0;
};

struct GroupedTensor {
  CodeLayout layout = CodeLayout::kRows;
  int bits = 4;                            // of a code in the file
  int64_t group_rows = 1, group_cols = 1;  // of a group; those at the end may be cut
  FileArray scales;  // kF32, kF16 or kBf16; kE8m0 for kFp4 and kFp8; kE4m3 for kFp4E4m3; kUint8 with scale_codes
  FileArray zeros;   // kInt32 or kInt8
  std::vector<int32_t> group_index;       // (cols): the column group of each column; empty = in order
  std::vector<float> table;               // (16), for kTable4
  std::optional<ScaleCodes> scale_codes;  // for kTable4
};

// Throws kInvalidModel with the tensor's name when the layout cannot have these sizes or types.
void check_groups(const FileTensor& tensor);

// The sizes of the arrays in bytes.
struct GroupedBytes {
  int64_t codes = 0, scales = 0, zeros = 0;
};
GroupedBytes grouped_bytes(const FileTensor& tensor);
int64_t num_row_groups(const FileTensor& tensor);
int64_t num_column_groups(const FileTensor& tensor);
// Returns the words that hold `count` codes.
int64_t num_words(int64_t count, int bits);
constexpr int kWordBits = 32;

// Whether a column of the file holds the codes of a row.
bool is_by_column(const GroupedTensor& groups);
// Whether a code takes a byte. Otherwise codes lie in words.
bool has_byte_codes(const GroupedTensor& groups);
// Returns what codes, scales and zero points mean.
QuantType code_type(const GroupedTensor& groups);

// How codes are kept in packed weights: codes, and a scale and a zero point for each `group_size` columns.
// type.bits = 0: they are not kept, but decoded to the backend's number type.
struct KeptGroups {
  QuantType type;
  int group_size = 0;
  bool operator==(const KeptGroups&) const = default;
};
// Without groups: bits = 0.
KeptGroups kept_groups(const FileTensor& tensor);

// Returns whether two tensors can be packed into one matrix with the codes of the file.
bool are_kept_alike(const FileTensor& a, const FileTensor& b);

}  // namespace capstan
