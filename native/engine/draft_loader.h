#pragma once
// Loads the draft model of speculative decoding, on one rank. The functions run once each, in the order of declaration.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "native/engine/load.h"
#include "native/engine/memory_plan.h"
#include "native/engine/model_drafter.h"
#include "native/engine/model_runner.h"

namespace capstan {

class DraftLoader {
 public:
  // `target` has a draft model.
  explicit DraftLoader(const LoadRequest& target);

  // Opens the files and checks what does not depend on a device.
  void check_model();
  // `limits` and `target_weight_bytes`, which are those of all ranks, belong to the target. Its weights are not loaded
  // yet. Throws kOutOfMemory when the weights of both models do not fit.
  void open_device(const DeviceLimits& limits, int max_step_tokens, int64_t target_weight_bytes);
  int64_t num_file_bytes() const { return capstan::num_file_bytes(tensors_); }
  void load_weights(const LoadProgress& progress);
  // Returns the memory of its KV groups, which follow those of the target.
  std::vector<KvGroupMemory> kv_groups() const;
  // Allocates the KV cache.
  void prepare(std::span<const int> num_blocks, int max_model_len);
  int64_t weight_bytes() const { return weight_bytes_; }
  // Returns a line for the log: what the model takes.
  std::string note() const;
  // `target_work`: see weight_work.
  DraftModelOptions options(double target_work);

 private:
  DeviceModel device_model(int max_model_len) const;
  int64_t kv_cache_bytes() const;

  const LoadRequest& target_;
  const DraftRequest& draft_;
  LoadRequest request_;  // the part of the target's that holds for the draft model too, with its own weights
  std::optional<CheckpointFiles> files_;
  TensorTable tensors_;
  ShardPlan plan_;
  Rank rank_;  // until the runner owns it
  BackendInfo backend_info_;
  DeviceLimits limits_;
  int64_t weight_bytes_ = 0;
  int max_model_len_ = 0;
};

// Throws kOutOfMemory when the weights of both models do not fit into the available memory.
void check_weights_fit(int64_t target_bytes, int64_t draft_bytes, int64_t available_bytes);

// Returns the bytes of weights that a step with one token reads. An estimate.
double weight_work(const ModelSpec& spec, const TensorTable& tensors, int64_t weight_bytes);

}  // namespace capstan
