#pragma once
// Loads one rank's shard of an adapter (LoRA) from a table of its tensors.
#include <string>
#include <vector>

#include "native/backend/adapter.h"
#include "native/model/checkpoint_files.h"
#include "native/model/weights.h"

namespace capstan {

// The factors of one projection of an adapter.
struct AdapterModule {
  int layer = 0;
  // q_proj, k_proj, v_proj, qkv_proj, o_proj, gate_proj, up_proj, gate_up_proj or down_proj. Of a recurrent mixer,
  // o_proj and those of recurrent_projections.
  std::string projection;
  TensorEntry a, b;  // (r, inputs) and (outputs, r)
  float scale = 1;
};

// An adapter as `ts/model/lora` reads it from its files.
struct AdapterSource {
  std::vector<std::string> files;
  std::vector<AdapterModule> modules;
};

// Returns the tensors of the modules, by the names of their entries. Throws kInvalidModel with the name of a tensor
// unless the modules are projections of the model, each at most once (fused or in parts), and have the right shapes and
// ranks up to `max_rank`.
TensorTable check_adapter(const ModelSpec& spec, const AdapterSource& source, const CheckpointFiles& files,
                          int max_rank);

// `tensors` come from check_adapter, and `weights` are those that `backend` has loaded for the same rank.
AdapterWeights load_adapter_weights(const ModelSpec& spec, const ShardPlan& plan, const AdapterSource& source,
                                    const TensorTable& tensors, const Weights& weights, const Backend& backend);

}  // namespace capstan
