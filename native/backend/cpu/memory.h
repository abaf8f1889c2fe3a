#pragma once
// Large zeroed buffers for weights, KV cache and activations, aligned to huge pages and advised to use them.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace capstan {

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

class HugeBuffer {
 public:
  HugeBuffer() = default;
  // Throws kOutOfMemory with `purpose` in the message.
  HugeBuffer(size_t bytes, const std::string& purpose);
  HugeBuffer(HugeBuffer&& other) noexcept { *this = std::move(other); }
  HugeBuffer& operator=(HugeBuffer&& other) noexcept;

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  friend class HugePool;

  std::shared_ptr<void> mapping_;  // unmapped with its last buffer
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Cuts buffers from chunks, so that small ones lie in huge pages too.
class HugePool {
 public:
  // As HugeBuffer's constructor. A chunk is freed with the last of its buffers, which may outlive the pool.
  HugeBuffer allocate(size_t bytes, const std::string& purpose);

 private:
  HugeBuffer chunk_;
  size_t num_used_ = 0;  // bytes of the chunk
};

}  // namespace capstan
