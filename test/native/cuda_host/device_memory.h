#pragma once
// The memory of a device: addresses of its own, so that it can be taken away from a kernel of another device that does
// not reach it.
#include <cstddef>
#include <map>

namespace capstan::cuda_host {

class DeviceMemory {
 public:
  DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // Begins as NaN patterns; the address sanitizer sees the first byte beyond it. Null where there is no room.
  void* allocate(size_t bytes);
  // False where nothing begins there.
  bool release(void* memory);
  bool has(const void* memory) const { return used_.contains(static_cast<const char*>(memory)); }
  bool is_empty() const { return used_.empty(); }
  size_t bytes_in_use() const { return bytes_in_use_; }

  // From here until it is shown, whoever touches it is noticed.
  void hide();
  // Whether somebody has.
  bool show();

 private:
  char* const begin_;
  std::map<const char*, size_t> used_;  // and its size
  size_t bytes_in_use_ = 0;
};

}  // namespace capstan::cuda_host
