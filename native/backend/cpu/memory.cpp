#include "native/backend/cpu/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "native/base/error.h"

namespace capstan {

namespace {
constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr size_t kSlackBytes = 4096;  // kernels read full vectors and prefetch past the end
constexpr size_t kChunkBytes = size_t{64} << 20;
constexpr size_t kMaxPooledBytes = kChunkBytes / 8;  // larger buffers have little outside huge pages
constexpr size_t kPooledAlignment = 64;
}  // namespace

HugeBuffer::HugeBuffer(size_t bytes, const std::string& purpose) : bytes_(bytes) {
  const size_t alignment = bytes >= kHugePageBytes ? kHugePageBytes : size_t{4096};
  const size_t mapped_bytes = (bytes + kSlackBytes + alignment + 4095) & ~size_t{4095};
  const bool is_overflow = mapped_bytes < bytes;
  void* mapping = is_overflow ? MAP_FAILED
                              : mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED)
    throw Error(ErrorCode::kOutOfMemory, "cannot allocate " + std::to_string(bytes) + " bytes for " + purpose);
  mapping_ = std::shared_ptr<void>(mapping, [mapped_bytes](void* from) { munmap(from, mapped_bytes); });
  const uintptr_t address = reinterpret_cast<uintptr_t>(mapping);
  data_ = reinterpret_cast<void*>((address + alignment - 1) & ~(alignment - 1));
#ifdef MADV_HUGEPAGE
  if (bytes >= kHugePageBytes) madvise(data_, bytes, MADV_HUGEPAGE);  // a failure costs only speed
#endif
}

HugeBuffer& HugeBuffer::operator=(HugeBuffer&& other) noexcept {
  mapping_ = std::move(other.mapping_);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

HugeBuffer HugePool::allocate(size_t bytes, const std::string& purpose) {
  if (bytes > kMaxPooledBytes) return HugeBuffer(bytes, purpose);
  if (chunk_.bytes() - num_used_ < bytes) {
    chunk_ = HugeBuffer(kChunkBytes, purpose);
    num_used_ = 0;
  }
  HugeBuffer buffer;
  buffer.mapping_ = chunk_.mapping_;
  buffer.data_ = chunk_.as<char>() + num_used_;
  buffer.bytes_ = bytes;
  num_used_ =
      std::min(chunk_.bytes(), (num_used_ + bytes + kPooledAlignment - 1) / kPooledAlignment * kPooledAlignment);
  return buffer;
}

}  // namespace capstan
