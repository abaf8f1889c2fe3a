#include "native/backend/registry.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "native/backend/cpu/cpu_backend.h"
#include "native/backend/cpu/isa.h"
#include "native/backend/cpu/kernels.h"
#include "native/backend/cuda_library.h"
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
  throw Error(ErrorCode::kInvalidArgument,
              "isa: expected auto or an instruction set of this machine (" + names + "), got " + name);
}

DeviceGroup make_cpu_group(const DeviceOptions& options) {
  CpuBackendOptions cpu;
  cpu.isa = find_isa(options.isa);
  cpu.weight_dtype = options.weight_dtype;
  cpu.compute_f32 = options.compute_f32;
  cpu.has_int8_acts = options.has_int8_acts;

  const std::vector<int> cpus = usable_cpus();
  const int num_cpus = static_cast<int>(cpus.size());
  const int num_wanted = options.num_threads > 0 ? options.num_threads : num_cpus;
  const int per_rank = std::max(1, num_wanted / options.world_size);
  DeviceGroup group;
  group.num_threads = per_rank * options.world_size;
  group.num_sharing = options.world_size;
  cpu.may_spin = group.num_threads <= num_cpus;
  const auto comms = options.world_size > 1 ? make_thread_comms(options.world_size) : nullptr;
  for (int rank = 0; rank < options.world_size; ++rank) {
    cpu.cpus.assign(static_cast<size_t>(per_rank), -1);
    if (options.is_pinned)
      for (int i = 0; i < per_rank; ++i)
        cpu.cpus[static_cast<size_t>(i)] = cpus[static_cast<size_t>((rank * per_rank + i) % num_cpus)];
    cpu.profile = rank == 0 ? options.profile : nullptr;
    group.backends.push_back(make_cpu_backend(cpu, comms ? make_thread_comm(comms, rank) : nullptr));
  }
  if (comms) group.control = make_thread_comm(comms, 0);
  return group;
}

// Returns the device indexes of 'cuda:0,1'. Plain 'cuda' stands for the first `world_size` devices.
std::vector<int> cuda_devices(const DeviceOptions& options) {
  std::vector<int> devices;
  const std::string list = options.device.size() > 5 ? options.device.substr(5) : "";
  if (list.empty())
    for (int i = 0; i < options.world_size; ++i)
      devices.push_back(i);
  std::istringstream in(list);
  for (std::string number; std::getline(in, number, ',');) {
    if (number.empty() || number.size() > 3 ||
        !std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; }))
      throw Error(ErrorCode::kInvalidArgument,
                  "device: expected a list of device numbers, such as cuda:0 or cuda:0,1, got " + options.device);
    devices.push_back(std::stoi(number));
  }
  return devices;
}

// Virtual ranks share a device and need no links. Deterministic mode does not use them, because NCCL has its own order
// of sums.
std::shared_ptr<CudaLinks> link_devices(const DeviceOptions& options, const std::vector<int>& devices,
                                        const CudaLibrary& library, std::vector<std::string>& notes) {
  const bool has_virtual_ranks = std::set<int>(devices.begin(), devices.end()).size() < devices.size();
  if (devices.size() == 1 || has_virtual_ranks || options.is_deterministic) return nullptr;
  char note[512] = "";
  std::shared_ptr<CudaLinks> links(
      library.api->link(devices.data(), static_cast<int>(devices.size()), note, sizeof note));
  notes.emplace_back(note);
  return links;
}

DeviceGroup make_cuda_group(const DeviceOptions& options, const CudaLibrary& library) {
  const std::vector<int> devices = cuda_devices(options);
  if (static_cast<int>(devices.size()) != options.world_size)
    throw Error(ErrorCode::kInvalidArgument, "tensorParallelSize: expected " + std::to_string(devices.size()) +
                                                 ", the number of devices in " + options.device + ", got " +
                                                 std::to_string(options.world_size));
  DeviceGroup group;
  group.num_threads = options.world_size;
  for (const int device : devices)
    if (device >= library.num_devices)
      throw Error(ErrorCode::kInvalidArgument, "device: expected numbers below " + std::to_string(library.num_devices) +
                                                   ", the number of CUDA devices, got " + std::to_string(device));
  const auto comms = options.world_size > 1 ? make_thread_comms(options.world_size) : nullptr;
  const std::shared_ptr<CudaLinks> links = link_devices(options, devices, library, group.notes);
  for (int rank = 0; rank < options.world_size; ++rank) {
    const int device = devices[static_cast<size_t>(rank)];
    CudaBackendOptions cuda;
    cuda.device = device;
    cuda.weight_dtype = options.weight_dtype;
    cuda.is_deterministic = options.is_deterministic;
    cuda.num_sharing = static_cast<int>(std::ranges::count(devices, device));
    group.num_sharing = std::max(group.num_sharing, cuda.num_sharing);
    cuda.links = links;
    cuda.quantize_group = quantize_group;
    int code = 0;
    char message[512] = "";
    Backend* backend = library.api->make_backend(&cuda, comms ? make_thread_comm(comms, rank).release() : nullptr,
                                                 &code, message, sizeof message);
    if (backend == nullptr) throw Error(static_cast<ErrorCode>(code), message);
    group.backends.emplace_back(backend);
  }
  if (comms) group.control = make_thread_comm(comms, 0);
  if (options.is_deterministic)
    group.notes.emplace_back("deterministic: the tokens of a request do not depend on other requests in the batch");
  return group;
}

}  // namespace

uint16_t quantize_group(const float* values, int count, int bits, uint8_t* codes) {
  static const CpuKernels& kernels = cpu_kernels(available_cpu_isas().front());
  return kernels.quantize_group({values, count, bits, codes});
}

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const CpuIsa isa : available_cpu_isas())
    names.emplace_back(cpu_isa_name(isa));
  return names;
}

DeviceGroup make_device_group(const DeviceOptions& options) {
  if (options.device == "cpu") return make_cpu_group(options);
  const bool is_auto = options.device == "auto";
  if (!is_auto && options.device != "cuda" && !options.device.starts_with("cuda:"))
    throw Error(ErrorCode::kInvalidArgument,
                "device: expected auto, cpu, cuda or a list such as cuda:0,1, got " + options.device);
  const CudaLibrary library = open_cuda_library();
  // NOTE: the CUDA backend has not yet run on real hardware, so 'auto' stays on the CPU.
  if (is_auto) {
    DeviceGroup group = make_cpu_group(options);
    group.notes.push_back(library.num_devices > 0
                              ? "running on the CPU; to use the CUDA device, pass --device cuda (device: 'cuda')"
                              : "running on the CPU: " + library.reason);
    return group;
  }
  if (library.num_devices == 0)
    throw Error(ErrorCode::kInvalidArgument, "device: cuda is not available: " + library.reason);
  return make_cuda_group(options, library);
}

}  // namespace capstan
