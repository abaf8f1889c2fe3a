#pragma once
// Large zeroed buffers for weights, KV cache and activations, aligned to huge pages and advised to use them.
#include <cstddef>
#include <cstdint>
#include <string>

namespace capstan {

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

class HugeBuffer {
 public:
  HugeBuffer() = default;
  // Throws kOutOfMemory with `purpose` in the message.
  HugeBuffer(size_t bytes, const std::string& purpose);
  HugeBuffer(HugeBuffer&& other) noexcept;
  HugeBuffer& operator=(HugeBuffer&& other) noexcept;
  ~HugeBuffer();

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  void* mapping_ = nullptr;
  size_t mapped_bytes_ = 0;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace capstan
