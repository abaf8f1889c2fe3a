#pragma once
// Creates backends by device name: the only way to get a Backend.
#include <memory>
#include <string>
#include <vector>

#include "native/backend/backend.h"
#include "native/base/step_profile.h"
#include "native/comm/comm.h"

namespace capstan {

struct DeviceOptions {
  // 'auto' | 'cpu' | 'cuda' | 'cuda:0,1'. The list has one device per rank; a repeated number makes virtual ranks.
  std::string device = "auto";
  std::string isa = "auto";  // 'auto' or a name of available_isas()
  int world_size = 1;
  int num_threads = 0;  // over all ranks; 0 = the cores this process may use
  bool is_pinned = false;
  DType weight_dtype = DType::kBf16;
  bool compute_f32 = false;
  bool has_int8_acts = true;       // activations in 8 bits with quantized weights
  StepProfile* profile = nullptr;  // of rank 0 on the CPU; null = none
  bool is_deterministic = false;   // CUDA: the same kernels for every number of tokens. The CPU always does this.
};

// Returns the instruction sets of this machine, best first.
std::vector<std::string> available_isas();

// The connected backends of one tensor-parallel group.
struct DeviceGroup {
  std::vector<std::unique_ptr<Backend>> backends;  // by rank
  std::unique_ptr<Comm> control;                   // null with one rank; wakes all ranks when one fails
  int num_threads = 0;                             // in use, over all ranks
  int num_sharing = 1;                             // the most ranks with memory on one device
  std::vector<std::string> notes;                  // lines for the log, such as why 'auto' chose the CPU
};

// A GroupQuantizer (cuda_api.h) with the CPU's kernels, so that all devices choose the same codes.
uint16_t quantize_group(const float* values, int count, int bits, uint8_t* codes);

// Throws kInvalidArgument, with the available names, for a device or instruction set that this machine does not have.
DeviceGroup make_device_group(const DeviceOptions& options);

}  // namespace capstan
