#pragma once
// Blocks of every quantized type with the values that the gguf package decodes (test/oracle/block_values.py).
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "native/backend/block_format.h"
#include "native/base/number.h"

namespace capstan::testing {

struct BlockValues {
  const BlockFormat* format = nullptr;
  std::vector<uint8_t> bytes;
  std::vector<float> values;
};

inline std::vector<BlockValues> read_block_values() {
  std::ifstream file("test/native/fixtures/block-values.txt");
  std::vector<BlockValues> all;
  std::string name, bytes, values;
  while (file >> name >> bytes >> values) {
    BlockValues next;
    next.format = find_block_format(name);
    if (next.format == nullptr) throw std::runtime_error("no format " + name);
    for (size_t i = 0; i < bytes.size(); i += 2)
      next.bytes.push_back(static_cast<uint8_t>(std::stoul(bytes.substr(i, 2), nullptr, 16)));
    for (size_t i = 0; i < values.size(); i += 8)
      next.values.push_back(bits_float(static_cast<uint32_t>(std::stoul(values.substr(i, 8), nullptr, 16))));
    all.push_back(next);
  }
  return all;
}

}  // namespace capstan::testing
