// Allocates the memory of the CPU backend before the first step, so that no step allocates any.
#include <algorithm>
#include <atomic>

#include "native/backend/cpu/cpu_backend_class.h"
#include "native/base/check.h"

namespace capstan {

void CpuBackend::prepare(const DeviceModel& model, const DeviceLimits& limits) {
  CAPSTAN_CHECK(limits.block_size > 0 && limits.block_size % kSlotGroup == 0);
  CAPSTAN_CHECK(limits.num_blocks.size() == model.kv_groups.size());
  CAPSTAN_CHECK(model.is_causal || model.pooling != Pooling::kNone);
  for (const DeviceLayer& layer : model.layers)
    CAPSTAN_CHECK(layer.mixer != Mixer::kAttention ||
                  layer.window == model.kv_groups[static_cast<size_t>(layer.kv_group)].window);
  CAPSTAN_CHECK(limits.max_num_tokens > 0 && limits.max_num_seqs > 0);
  for (const RopeTable& rope : model.rope_tables) {
    CAPSTAN_CHECK(rope.rotary_dim % 2 == 0);
    CAPSTAN_CHECK(static_cast<int64_t>(rope.values.size()) >= int64_t{model.max_model_len} * rope.rotary_dim);
  }
  model_ = model;
  limits_ = limits;
  kv_layouts_.clear();
  for (int group = 0; group < static_cast<int>(model.kv_groups.size()); ++group) {
    const KvShape shape = model.kv_shape(group);
    CAPSTAN_CHECK(shape.num_kv_heads > 0 && model.num_heads % shape.num_kv_heads == 0);
    CAPSTAN_CHECK(shape.head_dim <= kMaxHeadDim);
    kv_layouts_.push_back(make_kv_layout(shape, limits.block_size, limits.kv_cache_dtype));
  }
  plan_memory();
  allocate();
}

// Reserves the memory of the attention plans and their states.
void CpuBackend::plan_memory() {
  int max_splits = 0;
  int64_t state_floats = 0;
  const size_t num_groups = model_.kv_groups.size();
  attention_shapes_.clear();
  attention_plans_.resize(num_groups);
  for (size_t i = 0; i < num_groups; ++i) {
    AttentionShape shape{model_.num_heads, kv_layouts_[i].num_kv_heads, 0, team_.size(), 0, model_.is_causal};
    shape.max_states = max_attention_states(shape, limits_.max_num_seqs, model_.max_model_len);
    const int group_splits = max_attention_splits(shape);
    attention_plans_[i].items.reserve(static_cast<size_t>(max_attention_items(shape, limits_.max_num_tokens)));
    attention_plans_[i].splits.reserve(static_cast<size_t>(group_splits));
    max_splits = std::max(max_splits, group_splits);
    state_floats = std::max(state_floats, chunk_state_floats(shape.max_states, kv_layouts_[i].v_dim));
    shape.window = model_.kv_groups[i].window;
    attention_shapes_.push_back(shape);
  }
  split_items_left_ = std::vector<std::atomic<int>>(static_cast<size_t>(max_splits));
  states_ = HugeBuffer(static_cast<size_t>(state_floats) * sizeof(float), "the states of attention");
}

void CpuBackend::allocate() {
  weight_pool_ = {};  // all weights are loaded
  const int64_t rows = limits_.max_num_tokens;
  int64_t q_size = 0, qkv_size = 0, num_all_heads = 0, item_rows = kAttentionRows;
  for (const KvLayout& layout : kv_layouts_) {
    const int64_t queries = int64_t{model_.num_heads} * layout.head_dim;
    q_size = std::max(q_size, queries);
    qkv_size = std::max(
        qkv_size, (model_.has_output_gate ? 2 : 1) * queries + 2 * int64_t{layout.num_kv_heads} * layout.head_dim);
    num_all_heads = std::max<int64_t>(num_all_heads, model_.num_heads + layout.num_kv_heads);
    item_rows = std::max<int64_t>(item_rows, model_.num_heads / layout.num_kv_heads);
  }
  hidden_stride_ = round_up(model_.hidden_size, 16);
  qkv_stride_ = round_up(qkv_size, 16);
  const auto floats = [](int64_t count, const char* purpose) {
    return HugeBuffer(static_cast<size_t>(count) * sizeof(float), purpose);
  };
  hidden_ = floats(rows * hidden_stride_, "the hidden states");
  if (limits_.max_lora_rank > 0) allocate_lora(q_size);
  // A step may have more rows of logits than tokens.
  const int64_t act_rows = std::max<int64_t>(rows, limits_.max_num_seqs);
  partial_ = floats(rows * hidden_stride_ + act_rows * lora_t_stride_, "the partial sums of a rank");
  lora_.t = partial_.as<float>() + rows * hidden_stride_;
  if (model_.qk_norm == QkNorm::kAllHeads) {
    squares_ = floats(rows * num_all_heads, "the squares of the heads");
    inverse_rms_ = floats(rows * 2, "the norms of q and k");
  }
  qkv_ = floats(rows * qkv_stride_, "queries, keys and values");
  const int64_t max_words = std::max(max_act_words_, max_plain_words_);
  acts_ = floats(act_rows * std::max(round_up(std::max({model_.hidden_size, q_size, model_.recurrent.output_size(),
                                                        model_.max_head_size()}),
                                              2),
                                     std::max(max_words, lora_.act_words)),
                 "the activations");
  mlp_acts_ =
      floats(rows * std::max(round_up(model_.intermediate_size, 2), max_plain_words_), "the activations of the MLP");
  if (model_.per_layer_input_size > 0) {
    per_layer_stride_ = round_up(model_.num_layers() * model_.per_layer_input_size, 16);
    per_layer_gate_stride_ = round_up(model_.per_layer_end - model_.per_layer_begin, 16);
    per_layer_inputs_ = floats(rows * per_layer_stride_, "the inputs per layer");
    per_layer_rows_ = floats(team_.size() * per_layer_stride_, "the rows of the inputs per layer");
    per_layer_gate_ = floats(rows * per_layer_gate_stride_, "the gates of the inputs per layer");
  }
  if (model_.pooling == Pooling::kNone) {
    logits_ = floats(int64_t{limits_.max_num_seqs} * model_.vocab_size, "the logits");
    sampler_.emplace(kernels_, model_.vocab_size, model_.num_token_ids, team_);
  } else {
    pooled_stride_ = round_up(std::max(model_.hidden_size, model_.max_head_size()), 16);
    pooled_ = floats(2 * limits_.max_num_seqs * pooled_stride_, "the pooled hidden states");
  }
  if (model_.embedding.num_distances > 0) {
    biases_ = floats(model_.num_heads * bias_stride(), "the biases of distances");
    biases_of_ = nullptr;
  }
  if (model_.has_mtp) allocate_mtp();
  if (model_.has_recurrent_layers()) recurrent_.emplace(model_, limits_, kernels_, team_);

  if (model_.moe.num_experts > 0) {
    expert_plan_.reserve(model_.moe, limits_.max_num_tokens);
    const int64_t pairs = rows * expert_plan_.slots;
    const int64_t inner = std::max(model_.moe.intermediate_size, model_.moe.shared_intermediate_size);
    const int64_t widest = std::max(model_.hidden_size, inner);
    const bool has_lora = limits_.max_lora_rank > 0;
    if (has_lora) allocate_expert_lora(pairs, widest);
    expert_act_words_ = std::max({round_up(widest, 2), max_words, expert_lora_.act_words});
    router_logits_ = floats(rows * round_up(model_.moe.num_experts, 16), "the logits of the router");
    expert_acts_ = floats(pairs * expert_act_words_, "the inputs of the experts");
    expert_mlp_ = floats(pairs * expert_act_words_, "the activations of the experts");
    if (max_act_words_ > 0 || has_lora)
      expert_mlp_f32_ = floats(pairs * expert_act_words_, "the activations of the experts");
    expert_out_ = floats(pairs * (hidden_stride_ + lora_t_stride_), "the results of the experts");
    expert_lora_.t = expert_out_.as<float>() + pairs * hidden_stride_;
    if (model_.moe.has_separate_norms) expert_sums_ = floats(rows * hidden_stride_, "the sums of the experts");
  }

  scratch_floats_ = 0;
  for (const KvLayout& layout : kv_layouts_)
    scratch_floats_ =
        std::max(scratch_floats_, round_up(attention_scratch_floats(item_rows, layout.k_dim, layout.v_dim), 1024));
  scratch_floats_ = std::max(scratch_floats_, round_up(max_decoded_floats_, 1024));
  scratch_ = floats(team_.size() * scratch_floats_, "the attention scratch");
  kv_.clear();
  for (size_t group = 0; group < model_.kv_groups.size(); ++group) {
    const int64_t layer_bytes =
        limits_.num_blocks[group] * (k_block_bytes(kv_layouts_[group]) + v_block_bytes(kv_layouts_[group]));
    kv_.emplace_back(static_cast<size_t>(model_.kv_groups[group].num_layers * layer_bytes), "the KV cache");
  }
}

}  // namespace capstan
