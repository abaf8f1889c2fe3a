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
  int layer = 0;  // -1 = outside of the layers
  // q_proj, k_proj, v_proj, qkv_proj, o_proj, gate_proj, up_proj, gate_up_proj or down_proj. Of a recurrent mixer,
  // o_proj and those of recurrent_projections. Of a mixture of experts: router, shared_gate, and those of an MLP after
  // "shared_expert.", after "experts.N." for one expert, or after "experts." for all of them. Of inputs per layer:
  // per_layer_gate and per_layer_projection. Outside of the layers: embed_tokens, lm_head and per_layer_projection.
  std::string projection;
  // (r, inputs) and (outputs, r). For all experts: (experts * r, inputs) and (outputs, r * experts), where experts are
  // the inner index of the columns. Of embed_tokens: (vocabulary, r) and (hidden_size, r).
  TensorEntry a, b;
  float scale = 1;

  bool holds_experts() const;
  bool is_of_table() const;
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
