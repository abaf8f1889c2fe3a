#pragma once
// The memory of an emulated device. Its address range can be protected, to detect kernels of another device that access
// it without peer access.
#include <cstddef>
#include <map>

namespace capstan::cuda_host {

class DeviceMemory {
 public:
  DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // Memory starts as NaN patterns, and AddressSanitizer detects the first byte out of bounds. Returns null when the
  // range is full.
  void* allocate(size_t bytes);
  // Returns false if no allocation starts at `memory`.
  bool release(void* memory);
  bool has(const void* memory) const { return used_.contains(static_cast<const char*>(memory)); }
  bool is_empty() const { return used_.empty(); }
  size_t bytes_in_use() const { return bytes_in_use_; }

  // Until unprotect(), every access is detected.
  void protect();
  // Returns whether there was an access.
  bool unprotect();

 private:
  char* const begin_;
  std::map<const char*, size_t> used_;  // address → size
  size_t bytes_in_use_ = 0;
};

}  // namespace capstan::cuda_host
