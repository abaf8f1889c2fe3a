#pragma once
// Adapters in device memory, and the rows of a step that have one.
#include <memory>

#include "cuda/lora.h"
#include "cuda/memory.h"
#include "cuda/weights.h"
#include "native/backend/adapter.h"

namespace capstan::cuda {

struct CudaLora final : LoraMatrix {
  DeviceBuffer data;  // a DeviceLora, then its arrays
  const DeviceLora* device() const { return data.as<DeviceLora>(); }
};

// Packs and uploads an update of `matrix`. `dtype` is the 16-bit type of A and B. Returns when it is on the device.
// Throws kInvalidModel for NaN, Inf and values outside the range of `dtype`.
std::unique_ptr<CudaLora> upload_lora(const LoraSource& source, const CudaMatrix& matrix, DType dtype,
                                      cudaStream_t stream);

// The most values of t of an update.
constexpr int max_lora_values(int max_rank) {
  return 3 * max_rank;
}

// The adapters of a step, on the device.
class StepAdapters {
 public:
  using Member = std::unique_ptr<LoraMatrix> LayerAdapter::*;

  // Sends the rows of the step and the updates of all layers. Without adapters does nothing.
  void send(const StepInput& step, cudaStream_t stream);
  bool is_empty() const { return num_rows_ == 0; }
  // The rows, with the updates of one matrix of a layer. No rows when no adapter of the step has one.
  LoraRows rows_of(int layer, Member matrix) const;

 private:
  static constexpr Member kMembers[] = {&LayerAdapter::qkv_proj, &LayerAdapter::o_proj, &LayerAdapter::gate_up_proj,
                                        &LayerAdapter::down_proj};
  Staging staging_{"the adapters of a step"};
  std::vector<bool> has_update_;  // (layers, members)
  const int32_t *tokens_ = nullptr, *adapters_ = nullptr;
  const DeviceLora* const* loras_ = nullptr;  // (layers, members, adapters)
  size_t num_adapters_ = 0;
  int num_rows_ = 0;
};

}  // namespace capstan::cuda
