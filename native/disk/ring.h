#pragma once
// A bounded queue between one thread that pushes and one that pops. Neither ever waits for the other.
#include <atomic>
#include <cstddef>
#include <utility>
#include <vector>

namespace capstan::disk {

template <class T>
class Ring {
 public:
  explicit Ring(size_t capacity) : slots_(capacity + 1) {}

  bool push(T&& value) {
    const size_t end = end_.load(std::memory_order_relaxed), next = after(end);
    if (next == begin_.load(std::memory_order_acquire)) return false;
    slots_[end] = std::move(value);
    end_.store(next, std::memory_order_release);
    return true;
  }
  bool pop(T& value) {
    const size_t begin = begin_.load(std::memory_order_relaxed);
    if (begin == end_.load(std::memory_order_acquire)) return false;
    value = std::move(slots_[begin]);
    begin_.store(after(begin), std::memory_order_release);
    return true;
  }
  bool is_empty() const { return begin_.load(std::memory_order_acquire) == end_.load(std::memory_order_acquire); }

 private:
  size_t after(size_t index) const { return index + 1 == slots_.size() ? 0 : index + 1; }

  std::vector<T> slots_;
  std::atomic<size_t> begin_{0}, end_{0};
};

}  // namespace capstan::disk
