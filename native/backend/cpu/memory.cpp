#include "native/backend/cpu/memory.h"

#include <sys/mman.h>

#include <utility>

#include "native/base/error.h"

namespace capstan {

namespace {
constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr size_t kSlackBytes = 4096;  // kernels read full vectors and prefetch past the end
}  // namespace

HugeBuffer::HugeBuffer(size_t bytes, const std::string& purpose) : bytes_(bytes) {
  const size_t alignment = bytes >= kHugePageBytes ? kHugePageBytes : size_t{4096};
  mapped_bytes_ = (bytes + kSlackBytes + alignment + 4095) & ~size_t{4095};
  const bool is_overflow = mapped_bytes_ < bytes;
  mapping_ = is_overflow ? MAP_FAILED
                         : mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    throw Error(ErrorCode::kOutOfMemory, "cannot allocate " + std::to_string(bytes) + " bytes for " + purpose);
  }
  const uintptr_t address = reinterpret_cast<uintptr_t>(mapping_);
  data_ = reinterpret_cast<void*>((address + alignment - 1) & ~(alignment - 1));
#ifdef MADV_HUGEPAGE
  if (bytes >= kHugePageBytes) madvise(data_, bytes, MADV_HUGEPAGE);  // a failure costs only speed
#endif
}

HugeBuffer::HugeBuffer(HugeBuffer&& other) noexcept {
  *this = std::move(other);
}

HugeBuffer& HugeBuffer::operator=(HugeBuffer&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

HugeBuffer::~HugeBuffer() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_bytes_);
}

}  // namespace capstan
