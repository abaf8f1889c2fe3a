#include "test/native/cuda_host/device_memory.h"

#include <sys/mman.h>

#include <csignal>
#include <cstring>
#include <stdexcept>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(begin, size) static_cast<void>(0)
#define ASAN_UNPOISON_MEMORY_REGION(begin, size) static_cast<void>(0)
#endif

namespace capstan::cuda_host {
namespace {

// Size of the address range.
constexpr size_t kRangeBytes = size_t{4} << 30;
constexpr size_t kAlignment = 256;

// The space of an allocation, followed by an unused gap.
size_t padded_size(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment + kAlignment;
}

const char* protected_range = nullptr;
bool was_touched = false;
struct sigaction before;

// Makes the memory accessible again, so that the access succeeds.
void handle_fault(int, siginfo_t* info, void*) {
  const auto* address = static_cast<const char*>(info->si_addr);
  if (protected_range != nullptr && address >= protected_range && address < protected_range + kRangeBytes) {
    was_touched = true;
    mprotect(const_cast<char*>(protected_range), kRangeBytes, PROT_READ | PROT_WRITE);
  } else {
    sigaction(SIGSEGV, &before, nullptr);  // an ordinary fault: it repeats with the original handler
  }
}

void install_handler() {
  [[maybe_unused]] static const bool is_installed = [] {
    struct sigaction action = {};
    action.sa_sigaction = handle_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, &before);
    return true;
  }();
}

char* reserve() {
  void* range = mmap(nullptr, kRangeBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) throw std::runtime_error("cuda_host: cannot reserve the address range of a device");
  return static_cast<char*>(range);
}

}  // namespace

DeviceMemory::DeviceMemory() : begin_(reserve()) {}

// First fit.
void* DeviceMemory::allocate(size_t bytes) {
  char* place = begin_;
  for (const auto& [memory, size] : used_) {
    if (memory >= place + padded_size(bytes)) break;
    place = const_cast<char*>(memory) + padded_size(size);
  }
  if (static_cast<size_t>(place - begin_) + padded_size(bytes) > kRangeBytes) return nullptr;
  ASAN_UNPOISON_MEMORY_REGION(place, bytes);
  std::memset(place, 0xff, bytes);
  ASAN_POISON_MEMORY_REGION(place + bytes, padded_size(bytes) - bytes);
  used_[place] = bytes;
  bytes_in_use_ += bytes;
  return place;
}

bool DeviceMemory::release(void* memory) {
  const auto found = used_.find(static_cast<const char*>(memory));
  if (found == used_.end()) return false;
  ASAN_POISON_MEMORY_REGION(memory, found->second);
  bytes_in_use_ -= found->second;
  used_.erase(found);
  return true;
}

void DeviceMemory::protect() {
  install_handler();
  was_touched = false;
  protected_range = begin_;
  mprotect(begin_, kRangeBytes, PROT_NONE);
}

bool DeviceMemory::unprotect() {
  mprotect(begin_, kRangeBytes, PROT_READ | PROT_WRITE);
  protected_range = nullptr;
  return was_touched;
}

}  // namespace capstan::cuda_host
