#pragma once
// Which devices there are, by name: the only way to get a Backend.
#include <memory>
#include <string>
#include <vector>

#include "native/backend/backend.h"
#include "native/comm/comm.h"

namespace capstan {

struct DeviceOptions {
  std::string device =
      "auto";  // 'auto' | 'cpu' | 'cuda' | 'cuda:0,1': one rank per number, a repeated one makes virtual ranks
  std::string isa = "auto";  // 'auto' or a name of available_isas()
  int world_size = 1;
  int num_threads = 0;  // over all ranks; 0 = the cores this process may use
  bool is_pinned = false;
  DType weight_dtype = DType::kBf16;
  bool compute_f32 = false;
  bool is_deterministic =
      false;  // on CUDA: one family of kernels for any number of tokens (the CPU knows no other way)
};

// Instruction sets this machine can run, best first.
std::vector<std::string> available_isas();

// One backend per rank, connected. `num_threads` comes back as the total in use. Throws kInvalidArgument for a device
// or instruction set that is not there, naming those that are.
struct DeviceGroup {
  std::vector<std::unique_ptr<Backend>> backends;  // by rank
  std::unique_ptr<Comm> control;                   // null with one rank; wakes all ranks when one fails
  int num_threads = 0;
  std::vector<std::string>
      notes;  // what the log should say: why 'auto' is not the fastest there could be, who adds up between devices
};
DeviceGroup make_device_group(const DeviceOptions& options);

}  // namespace capstan
