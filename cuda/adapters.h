#pragma once
// Adapters in device memory, and the rows of a step that have one.
#include <memory>
#include <span>
#include <vector>

#include "cuda/lora.h"
#include "cuda/memory.h"
#include "cuda/weights.h"
#include "native/backend/adapter.h"

namespace capstan::cuda {

// The device memory of an adapter. Its buffers hold several updates each, because an adapter of experts has thousands.
class CudaLoraMemory final : public LoraMemory {
 public:
  explicit CudaLoraMemory(int64_t reserve) : reserve_(reserve) {}
  // Returns `bytes` of device memory. Throws kOutOfMemory if less than the reserve would stay free.
  char* allocate(size_t bytes);

 private:
  const int64_t reserve_;
  std::vector<DeviceBuffer> buffers_;
  size_t used_ = 0, total_ = 0;  // of the last buffer; of all buffers
};

struct CudaLora final : LoraMatrix {
  const DeviceLora* device = nullptr;  // followed by its arrays, in the memory of the adapter
  int num_values = 0;                  // of t
};

// Packs an update of `matrix` and uploads it to `memory`. `dtype` is the 16-bit type of A and B, which are f32 if the
// matrix is. Returns when it is on the device. Throws kInvalidModel for NaN, Inf and values outside the range of
// `dtype`, and kOutOfMemory.
std::unique_ptr<CudaLora> upload_lora(const LoraSource& source, const CudaMatrix& matrix, DType dtype,
                                      CudaLoraMemory& memory, cudaStream_t stream);

// The most values of t of an update. The matrix of a delta net holds four projections, and that of attention three.
constexpr int max_lora_values(int max_rank, bool has_delta_nets) {
  return (has_delta_nets ? 4 : 3) * max_rank;
}

// The adapters of a step, on the device.
class StepAdapters {
 public:
  using Member = std::unique_ptr<LoraMatrix> LayerAdapter::*;
  using OuterMember = std::unique_ptr<LoraMatrix> AdapterWeights::*;
  using Loras = const DeviceLora* const*;

  // Sends the rows of the step and the updates of all layers. Without adapters does nothing.
  void send(const StepInput& step, cudaStream_t stream);
  bool is_empty() const { return tokens_.empty(); }
  // The rows, with the updates of one matrix of a layer. No rows when no adapter of the step has one.
  LoraRows rows_of(int layer, Member matrix) const { return rows_with(loras_of(layer, matrix)); }
  LoraRows rows_of(OuterMember matrix) const { return rows_with(loras_of(matrix)); }
  // The same for row i of a product that is of token `tokens[i]`. `staging` has begun, with space for two integers per
  // token, and is sent later.
  LoraRows rows_of(OuterMember matrix, std::span<const int32_t> tokens, Staging& staging) const;

  // The updates of one matrix by adapter. Null when no adapter of the step has one.
  Loras loras_of(int layer, Member matrix) const;
  // Those of the experts of a layer, (experts + 1, adapters). The last ones are of the shared expert.
  struct Experts {
    Loras gate_ups = nullptr, downs = nullptr;
  };
  Experts experts_of(int layer) const { return is_empty() ? Experts{} : experts_[static_cast<size_t>(layer)]; }
  const int32_t* token_adapters() const { return token_adapters_; }  // (num_tokens) -1 = none
  int num_adapters() const { return static_cast<int>(num_adapters_); }

 private:
  using ExpertMember = std::unique_ptr<LoraMatrix> ExpertAdapter::*;
  static constexpr Member kMembers[] = {&LayerAdapter::qkv_proj,       &LayerAdapter::o_proj,
                                        &LayerAdapter::gate_up_proj,   &LayerAdapter::down_proj,
                                        &LayerAdapter::router,         &LayerAdapter::shared_gate,
                                        &LayerAdapter::per_layer_gate, &LayerAdapter::per_layer_projection};
  static constexpr OuterMember kOuterMembers[] = {&AdapterWeights::embed_tokens, &AdapterWeights::per_layer_projection,
                                                  &AdapterWeights::lm_head};
  static constexpr size_t kNumMembers = std::size(kMembers), kNumOuterMembers = std::size(kOuterMembers);

  // Appends the updates of one matrix, and returns their place on the device, or null if all are null.
  template <class Of>
  Loras add(const StepInput& step, Of of_adapter);
  Loras add_experts(const StepInput& step, size_t layer, ExpertMember matrix);
  Loras loras_of(OuterMember matrix) const;
  LoraRows rows_with(Loras loras) const;

  Staging staging_{"the adapters of a step"};
  std::vector<Loras> loras_;      // (layers, members), then the outer members
  std::vector<Experts> experts_;  // by layer
  std::vector<int32_t> tokens_, adapters_, adapter_of_token_;
  const int32_t *device_tokens_ = nullptr, *device_adapters_ = nullptr, *token_adapters_ = nullptr;
  size_t num_adapters_ = 0;
};

}  // namespace capstan::cuda
