#include "cuda/timeline.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "cuda/launch.h"
#include "cuda/memory.h"

namespace capstan::cuda {
namespace {

constexpr size_t kMaxSlots = 1024;  // kernels beyond this number are not measured

struct Slot {
  unsigned long long nanoseconds, runs;
};

struct Timeline {
  std::map<std::string, size_t> slot_of;  // by the name of a kernel
  DeviceBuffer slots;                     // (kMaxSlots)
  DeviceBuffer last;                      // the time of the last stamp
};
Timeline*& timeline() {
  static Timeline* one = nullptr;
  return one;
}

// NOTE: one thread of the stream at a time, because every stamp waits for the work before it.
__global__ void stamp_kernel(Slot* slot, unsigned long long* last) {
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  if (threadIdx.x != 0) return;
  const unsigned long long now = globaltimer();
  if (*last != 0) slot->nanoseconds += now - *last, slot->runs += 1;
  *last = now;
}

// The emulation has no names, only the types of the parameters.
std::string name_of(const void* kernel, const char* signature) {
#if defined(__CUDACC__)
  const char* name = nullptr;
  if (cudaFuncGetName(&name, kernel) == cudaSuccess && name != nullptr) return name;
#else
  static_cast<void>(kernel);
#endif
  const std::string all = signature;
  const size_t begin = all.find("Parameters = ");
  return begin == std::string::npos ? all : all.substr(begin + 13, all.find_first_of(";]", begin) - begin - 13);
}

void stamp(const void* kernel, const char* signature, unsigned blocks, bool uses_pdl, cudaStream_t stream) {
  Timeline& all = *timeline();
  const auto [slot, is_new] =
      all.slot_of.try_emplace(name_of(kernel, signature) + " x" + std::to_string(blocks), all.slot_of.size());
  if (slot->second >= kMaxSlots) return;
  enqueue_kernel(uses_pdl, stamp_kernel, dim3(1), dim3(kWarpSize), 0, stream, all.slots.as<Slot>() + slot->second,
                 all.last.as<unsigned long long>());
}

const char* file_name() {
  return std::getenv("CAPSTAN_CUDA_TIMELINE");
}

}  // namespace

void begin_timeline(cudaStream_t stream) {
  if (file_name() == nullptr || timeline() != nullptr) return;
  timeline() = new Timeline{{},
                            DeviceBuffer(kMaxSlots * sizeof(Slot), "the timeline"),
                            DeviceBuffer(sizeof(unsigned long long), "the timeline")};
  check(cudaMemsetAsync(timeline()->slots.as<void>(), 0, timeline()->slots.bytes(), stream), "the timeline");
  check(cudaMemsetAsync(timeline()->last.as<void>(), 0, timeline()->last.bytes(), stream), "the timeline");
  launch_hook() = stamp;
}

void end_timeline(cudaStream_t stream) {
  Timeline* const all = timeline();
  if (all == nullptr) return;
  launch_hook() = nullptr;
  std::vector<Slot> slots(kMaxSlots);
  check(cudaMemcpyAsync(slots.data(), all->slots.as<void>(), all->slots.bytes(), cudaMemcpyDeviceToHost, stream),
        "the timeline");
  wait_for(stream);
  std::FILE* const out = std::fopen(file_name(), "w");
  for (const auto& [name, slot] : all->slot_of)
    if (out != nullptr && slot < kMaxSlots && slots[slot].runs > 0)
      std::fprintf(out, "{\"name\":\"%s\",\"runs\":%llu,\"us\":%.3f}\n", name.c_str(), slots[slot].runs,
                   static_cast<double>(slots[slot].nanoseconds) / 1e3 / static_cast<double>(slots[slot].runs));
  if (out != nullptr) std::fclose(out);
  delete all;
  timeline() = nullptr;
}

}  // namespace capstan::cuda
