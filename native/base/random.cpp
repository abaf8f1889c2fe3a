#include "native/base/random.h"

#include <random>

namespace capstan {

uint64_t draw_seed() {
  thread_local std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

}  // namespace capstan
