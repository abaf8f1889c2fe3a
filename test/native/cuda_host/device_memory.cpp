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

constexpr size_t kRoom = size_t{4} << 30;  // of addresses
constexpr size_t kAlignment = 256;

// With as much behind it that belongs to nobody.
size_t taken(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment + kAlignment;
}

const char* hidden = nullptr;
bool was_touched = false;
struct sigaction before;

// Gives the memory back, and the access happens.
void notice(int, siginfo_t* info, void*) {
  const auto* address = static_cast<const char*>(info->si_addr);
  if (hidden != nullptr && address >= hidden && address < hidden + kRoom) {
    was_touched = true;
    mprotect(const_cast<char*>(hidden), kRoom, PROT_READ | PROT_WRITE);
  } else {
    sigaction(SIGSEGV, &before, nullptr);  // a fault like any other: it comes again
  }
}

void watch() {
  [[maybe_unused]] static const bool is_watching = [] {
    struct sigaction action = {};
    action.sa_sigaction = notice;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, &before);
    return true;
  }();
}

char* reserve() {
  void* room = mmap(nullptr, kRoom, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) throw std::runtime_error("cuda_host: no addresses for the memory of a device");
  return static_cast<char*>(room);
}

}  // namespace

DeviceMemory::DeviceMemory() : begin_(reserve()) {}

// The first gap that is wide enough.
void* DeviceMemory::allocate(size_t bytes) {
  char* place = begin_;
  for (const auto& [memory, size] : used_) {
    if (memory >= place + taken(bytes)) break;
    place = const_cast<char*>(memory) + taken(size);
  }
  if (static_cast<size_t>(place - begin_) + taken(bytes) > kRoom) return nullptr;
  ASAN_UNPOISON_MEMORY_REGION(place, bytes);
  std::memset(place, 0xff, bytes);
  ASAN_POISON_MEMORY_REGION(place + bytes, taken(bytes) - bytes);
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

void DeviceMemory::hide() {
  watch();
  was_touched = false;
  hidden = begin_;
  mprotect(begin_, kRoom, PROT_NONE);
}

bool DeviceMemory::show() {
  mprotect(begin_, kRoom, PROT_READ | PROT_WRITE);
  hidden = nullptr;
  return was_touched;
}

}  // namespace capstan::cuda_host
