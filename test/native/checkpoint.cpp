#include "test/native/checkpoint.h"

#include <sys/mman.h>
#include <unistd.h>

#include <random>
#include <stdexcept>

#include "native/base/number.h"

namespace capstan::testing {

MemoryCheckpoint::MemoryCheckpoint() : fd_(memfd_create("checkpoint", 0)) {
  if (fd_ < 0) throw std::runtime_error("memfd_create failed");
}

MemoryCheckpoint::~MemoryCheckpoint() {
  close(fd_);
}

const FileTensor& MemoryCheckpoint::add(const std::string& name, DType dtype, int64_t rows, int64_t cols,
                                        std::vector<float>& values) {
  std::vector<char> bytes;
  for (float& value : values) {
    uint32_t word = float_bits(value);
    if (dtype == DType::kBf16) value = bf16_to_float(static_cast<uint16_t>(word = float_to_bf16(value)));
    if (dtype == DType::kF16) value = f16_to_float(static_cast<uint16_t>(word = float_to_f16(value)));
    for (size_t i = 0; i < dtype_size(dtype); ++i)
      bytes.push_back(static_cast<char>(word >> (8 * i)));
  }
  if (static_cast<int64_t>(values.size()) != rows * cols)
    throw std::runtime_error("wrong number of values for " + name);
  FileTensor tensor;
  tensor.name = name;
  tensor.dtype = dtype;
  tensor.rows = rows;
  tensor.cols = cols;
  return append(tensor, bytes.data(), bytes.size());
}

const FileTensor& MemoryCheckpoint::add_blocks(const std::string& name, const BlockFormat& format, int64_t rows,
                                               int64_t cols, const std::vector<uint8_t>& bytes) {
  FileTensor tensor;
  tensor.name = name;
  tensor.format = &format;
  tensor.rows = rows;
  tensor.cols = cols;
  std::vector<uint8_t> all;
  const size_t num_blocks = static_cast<size_t>(cols / format.block_size);
  const size_t block_bytes = static_cast<size_t>(format.block_bytes), given = bytes.size() / block_bytes;
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row)
    for (size_t i = 0; i < num_blocks; ++i) {
      const auto block = bytes.begin() + static_cast<std::ptrdiff_t>((row + i) % given * block_bytes);
      all.insert(all.end(), block, block + format.block_bytes);
    }
  return append(tensor, all.data(), all.size());
}

const FileTensor& MemoryCheckpoint::append(FileTensor tensor, const void* bytes, size_t count) {
  if (pwrite(fd_, bytes, count, static_cast<off_t>(end_)) != static_cast<ssize_t>(count))
    throw std::runtime_error("pwrite failed");
  tensor.fd = fd_;
  tensor.offset = end_;
  tensors_.push_back(tensor);
  end_ += count;
  return tensors_.back();
}

void MemoryCheckpoint::truncate(uint64_t bytes) {
  if (ftruncate(fd_, static_cast<off_t>(bytes)) != 0) throw std::runtime_error("ftruncate failed");
}

TensorSlice whole(const FileTensor& tensor) {
  return {&tensor, 0, tensor.rows, 0, tensor.cols};
}

std::vector<float> random_values(uint64_t seed, int64_t count, float deviation) {
  std::mt19937_64 random(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    double sum = -6;  // Irwin–Hall distribution: std::normal_distribution differs between libraries
    for (int i = 0; i < 12; ++i)
      sum += static_cast<double>(random() >> 11) * 0x1p-53;
    value = static_cast<float>(sum) * deviation;
  }
  return values;
}

}  // namespace capstan::testing
