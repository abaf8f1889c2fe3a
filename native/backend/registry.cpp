#include "native/backend/registry.h"

#include <algorithm>

#include "native/backend/cpu/cpu_backend.h"
#include "native/base/error.h"
#include "native/base/machine.h"

namespace capstan {
namespace {

CpuIsa find_isa(const std::string& name) {
  const std::vector<CpuIsa> available = available_cpu_isas();
  if (name == "auto") return available.front();
  std::string names;
  for (const CpuIsa isa : available) {
    if (name == cpu_isa_name(isa)) return isa;
    names += std::string(names.empty() ? "" : ", ") + cpu_isa_name(isa);
  }
  throw Error(ErrorCode::kInvalidArgument, "isa: expected auto or one this machine has (" + names + "), got " + name);
}

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const CpuIsa isa : available_cpu_isas()) names.emplace_back(cpu_isa_name(isa));
  return names;
}

DeviceGroup make_device_group(const DeviceOptions& options) {
  if (options.device != "auto" && options.device != "cpu")
    throw Error(ErrorCode::kInvalidArgument, "device: expected auto or cpu (CUDA is not part of this build), got " + options.device);
  CpuBackendOptions cpu;
  cpu.isa = find_isa(options.isa);
  cpu.weight_dtype = options.weight_dtype;
  cpu.compute_f32 = options.compute_f32;

  const std::vector<int> cpus = usable_cpus();
  const int num_cpus = static_cast<int>(cpus.size());
  const int per_rank = std::max(1, (options.num_threads > 0 ? options.num_threads : num_cpus) / options.world_size);
  DeviceGroup group;
  group.num_threads = per_rank * options.world_size;
  cpu.may_spin = group.num_threads <= num_cpus;
  const auto comms = options.world_size > 1 ? make_thread_comms(options.world_size) : nullptr;
  for (int rank = 0; rank < options.world_size; ++rank) {
    cpu.cpus.assign(static_cast<size_t>(per_rank), -1);
    if (options.is_pinned)
      for (int i = 0; i < per_rank; ++i) cpu.cpus[static_cast<size_t>(i)] = cpus[static_cast<size_t>((rank * per_rank + i) % num_cpus)];
    group.backends.push_back(make_cpu_backend(cpu, comms ? make_thread_comm(comms, rank) : nullptr));
  }
  if (comms) group.control = make_thread_comm(comms, 0);
  return group;
}

}  // namespace capstan
