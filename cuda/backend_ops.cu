// The ops of the device contract: arguments and choice of kernels.
#include "cuda/cuda_backend.h"

namespace capstan::cuda {

void CudaBackend::embed(const Matrix& table) {
  enqueue([this, &table] {
    EmbedArgs args;
    args.type = type();
    args.table = cuda_matrix(table).device;
    args.vocab_begin = model_.vocab_begin;
    args.ids = step_.ids;
    args.num_tokens = step_.num_tokens;
    args.hidden_size = model_.hidden_size;
    args.scale = model_.embedding_scale;
    args.hidden = world_size() > 1 ? partial() : hidden_.as<float>();
    read_drawn_ids([&](const int32_t* drawn_ids) {
      args.drawn_ids = drawn_ids;
      launch_embed(args, stream_);
    });
    pending_.reset();
    if (world_size() > 1) pending_ = PendingSum{nullptr, true};
    const LoraRows rows = adapters_.rows_of(&AdapterWeights::embed_tokens);
    if (rows.num_rows > 0) updated_embeddings(rows);
  });
}

NormArgs CudaBackend::norm_args(const float* weight, const int32_t* rows, int num_rows) const {
  NormArgs args;
  args.type = type();
  args.hidden = hidden_.as<float>();
  args.rows = rows;
  args.num_rows = num_rows;
  args.hidden_size = model_.hidden_size;
  args.weight = weight;
  if (weight != nullptr && model_.norm_kind == NormKind::kLayer) args.bias = weight + model_.hidden_size;
  args.eps = model_.rms_norm_eps;
  args.split = norm_acts_.split;
  args.is_row_major = is_row_major(num_rows);
  args.acts = norm_acts_.data(args.is_row_major);
  args.uses_pdl = uses_pdl(num_rows);
  return args;
}

GemmArgs CudaBackend::gemm_args(const Matrix& weights, const Acts& acts, int num_tokens) const {
  GemmArgs args;
  args.type = type();
  args.weights = cuda_matrix(weights).device;
  args.num_tokens = num_tokens;
  args.uses_pdl = uses_pdl(num_tokens);
  if (is_row_major(num_tokens))
    args.act_maps = &acts.maps;
  else
    args.acts = acts.data(false);
  return args;
}

// Runs a product, the norm before it (if any) and the QKV epilogue after it (if any).
//   few tokens:   one fused kernel, with the same bits as separate kernels
//   more tokens:  launch_gemm; q, k and v stay in parts, which launch_qkv adds
//   many tokens:  launch_gemm_wgmma, with other bits
// Pending sums are added first, in the kernel of the norm unless the fused kernel contains the norm.
void CudaBackend::project(GemmArgs product, const NormArgs* norm, const QkvArgs* heads) {
  GemvArgs fused;
  fused.product = product;
  // launch_gemv has no output gates, and of the heads only what most models have. The other kernels add parts.
  const bool can_add_parts = heads != nullptr && !model_.has_output_gate && model_.qk_norm != QkNorm::kAllHeads;
  const bool can_fuse_heads =
      can_add_parts && !heads->rotates_before_norm && !heads->has_v_norm && heads->query_scales == nullptr;
  if (can_fuse_heads && features_.fused_heads) fused.has_heads = true, fused.heads = *heads;
  if (norm != nullptr && pending_) {
    if (is_gemv(fused) && norm->bias == nullptr && pending_->local == nullptr && pending_->norm == nullptr) {
      all_reduce_partials(hidden_.as<float>());
    } else {
      all_reduce_and_norm(*norm);
      norm = nullptr;
    }
  }
  // launch_gemv has RMS norms only.
  if (norm != nullptr && (norm->weight == nullptr || norm->bias != nullptr)) {
    launch_norm(*norm, stream_);
    norm = nullptr;
  }
  if (is_gemv(fused)) {
    if (norm != nullptr)
      fused.is_normed = true, fused.norm = *norm;
    else
      fused.has_heads = false;  // the kernel of q, k and v includes the norm, which all_reduce_and_norm has done
    fused.rows_done = rows_done_.as<int32_t>();
    fused.max_blocks = 2 * resources_.multiprocessors;
    launch_gemv(fused, stream_);
    if (heads != nullptr && !fused.has_heads) finish_heads(*heads);
    return;
  }
  if (norm != nullptr) launch_norm(*norm, stream_);
  QkvArgs of_parts;
  if (can_add_parts && features_.k_splits && product.num_tokens <= kSkinnyTokens) {
    of_parts = *heads;
    of_parts.qkv = parts_.as<float>();
    of_parts.parts = product.weights.split.parts;
    of_parts.bias = product.weights.bias;
    product.output = GemmOutput::kParts;
    product.out = parts_.as<float>();
    heads = &of_parts;
  }
  if (product.act_maps != nullptr)
    launch_gemm_wgmma(product, resources_.multiprocessors, stream_);
  else
    launch_gemm(product, resources_, stream_);
  if (heads != nullptr) finish_heads(*heads);
}

void CudaBackend::finish_heads(QkvArgs heads) {
  if (model_.qk_norm != QkNorm::kAllHeads) return launch_qkv(heads, stream_);
  launch_head_squares(heads, squares_.as<float>(), stream_);
  const auto all = ranks_->begin_exchange(squares_.as<void>(), stream_);
  heads.world_size = world_size();
  for (int rank = 0; rank < world_size(); ++rank)
    heads.squares[rank] = static_cast<const float*>(all[static_cast<size_t>(rank)]);
  launch_qkv(heads, stream_);
  ranks_->end_exchange(stream_);
}

void CudaBackend::norm_qkv(int layer, const LayerWeights& weights) {
  enqueue([this, layer, &weights] {
    limit_run_ahead();
    const NormArgs norm = norm_args(device_vector(weights.input_norm), nullptr, step_.num_tokens);
    GemmArgs product = gemm_args(*weights.qkv_proj, norm_acts_, step_.num_tokens);
    product.out = qkv_.as<float>();
    product.out_stride = qkv_stride_;
    QkvArgs heads;
    heads.type = type();
    heads.qkv = qkv_.as<float>();
    heads.qkv_stride = qkv_stride_;
    heads.num_tokens = step_.num_tokens;
    heads.num_heads = model_.num_heads;
    heads.total_kv_heads = model_.kv_shape(model_.layer(layer).kv_group).total_kv_heads;
    heads.has_kv = !model_.layer(layer).reads_kv;
    heads.has_v_norm = model_.has_v_norm && heads.has_kv;
    heads.q_norm = device_vector(weights.q_norm);
    heads.k_norm = device_vector(weights.k_norm);
    heads.eps = model_.rms_norm_eps;
    heads.rotates_before_norm = model_.rotates_before_qk_norm;
    if (const int rope = model_.layer(layer).rope; rope >= 0) {
      heads.rope = rope_.as<float>() + rope_offsets_[static_cast<size_t>(rope)];
      heads.rotary_dim = model_.rope_tables[static_cast<size_t>(rope)].rotary_dim;
      if (model_.rope_tables[static_cast<size_t>(rope)].has_query_scales)
        heads.query_scales = query_scales_.as<float>() + int64_t{rope} * model_.max_model_len;
    }
    heads.positions = step_.positions;
    heads.slots = step_.kv_groups[kv_group(layer)].slots;
    heads.layout = layouts_[kv_group(layer)];
    heads.cache = cache_of(layer);
    heads.q = q_.as<uint16_t>();
    heads.uses_pdl = uses_pdl(step_.num_tokens);
    layer_ = layer;
    const LoraRows rows = adapters_.rows_of(layer, &LayerAdapter::qkv_proj);
    if (rows.num_rows == 0) return project(product, &norm, &heads);
    norm_alone(norm);
    updated_product(rows, product, norm_acts_);
    finish_heads(heads);
  });
}

void CudaBackend::attention(int layer, const LayerWeights& weights) {
  mixer_acts_ = &attention_acts_[kv_group(layer)];
  enqueue([this, layer, &weights] {
    const DeviceKvGroup& group = step_.kv_groups[kv_group(layer)];
    const Acts& acts = attention_acts_[kv_group(layer)];
    AttentionArgs args;
    args.type = type();
    args.q = q_.as<uint16_t>();
    args.num_heads = model_.num_heads;
    args.layout = layouts_[kv_group(layer)];
    args.cache = cache_of(layer);
    args.cu_seqlens_q = step_.cu_seqlens;
    args.context_lens = step_.context_lens;
    args.block_tables = group.block_tables;
    args.max_blocks_per_seq = step_.max_blocks_per_seq;
    args.window = model_.window(layer);
    if (!model_.is_causal) args.reach = args.window > 0 ? args.window - 1 : model_.max_model_len;
    if (model_.embedding.num_distances > 0) {
      args.biases = distances_.biases.as<float>() + model_.max_model_len;
      args.bias_stride = num_distances();
    }
    args.scale = model_.attention_scale;
    args.soft_cap = model_.attention_soft_cap;
    args.sinks = device_vector(weights.sinks);
    args.split = acts.split;
    args.is_row_major = is_row_major(step_.num_tokens);
    args.acts = acts.data(args.is_row_major);
    if (group.num_wide_tiles > 0) {
      args.tiles = group.wide_tiles;
      args.num_tiles = group.num_wide_tiles;
      launch_attention_wgmma(args, stream_);
    }
    if (group.num_tiles > 0) {
      args.tiles = group.tiles;
      args.num_tiles = group.num_tiles;
      args.num_chunks = group.num_chunks;
      args.is_warp_per_tile = prefers_warp_per_tile(args.num_tiles, args.layout.num_kv_heads, args.num_chunks);
      args.uses_pdl = uses_pdl_;
      args.scratch = scratch_.as<float>();
      launch_attention(args, stream_);
    }
    if (model_.has_output_gate) gate_attention(layer);
  });
}

// `norm` is that of the result, or null.
void CudaBackend::row_parallel_residual(const Matrix& weights, const Acts& acts, StepAdapters::Member adapter,
                                        const float* norm) {
  enqueue([this, &weights, &acts, adapter, norm] {
    // With the MLP beside attention, the result of attention may wait too.
    finish_sum();
    GemmArgs product = gemm_args(weights, acts, step_.num_tokens);
    product.out_stride = model_.hidden_size;
    product.tile_flags = features_.k_splits ? tile_flags_.as<int32_t>() : nullptr;
    const LoraRows rows = adapters_.rows_of(layer_, adapter);
    if (rows.num_rows > 0) return updated_residual(rows, product, acts, norm);
    PendingSum sum{product.weights.bias, false, norm, model_.residual_scale};
    GemvArgs alone;
    alone.product = product;
    if (features_.k_splits && product.num_tokens <= kSkinnyTokens && !is_gemv(alone)) {
      product.output = GemmOutput::kParts;
      product.out = parts_.as<float>();
      launch_gemm(product, resources_, stream_);
      sum.local = product.out;
      sum.parts = product.weights.split.parts;
      if (world_size() > 1) {
        pending_ = PendingSum{nullptr, true, nullptr, 1, sum.local, sum.parts};
        AddPartialsArgs parts = local_sum_args();
        parts.hidden = partial();
        launch_add_partials(parts, stream_);
        sum.local = nullptr;
      }
      pending_ = sum;
      return;
    }
    if (world_size() == 1 && norm == nullptr) {
      product.output = GemmOutput::kResidual;
      product.out = hidden_.as<float>();
      product.residual_scale = model_.residual_scale;
      return project(product);
    }
    product.weights.bias = nullptr;
    product.out = partial();
    project(product);
    if (world_size() == 1) sum.local = product.out, sum.parts = 1;
    pending_ = sum;
  });
}

// As row_parallel_residual. `norm` is that of the result or of the sum.
void CudaBackend::add_result(const Matrix& weights, const Acts& acts, StepAdapters::Member adapter, const float* norm) {
  if (!model_.norms.is_of_sum) return row_parallel_residual(weights, acts, adapter, norm);
  row_parallel_residual(weights, acts, adapter, nullptr);
  enqueue([this, norm] {
    finish_sum();
    norm_hidden(norm);
  });
}

void CudaBackend::norm_gate_up(const LayerWeights& weights) {
  enqueue([this, &weights] {
    const NormArgs norm = norm_args(device_vector(weights.mlp_norm), nullptr, step_.num_tokens);
    GemmArgs product = gemm_args(*weights.gate_up_proj, norm_acts_, step_.num_tokens);
    product.output = model_.has_gated_mlp ? GemmOutput::kGated : GemmOutput::kActivated;
    const Acts& acts = mlp_acts_.at(weights.down_proj->cols);
    product.gated = acts.data(is_row_major(step_.num_tokens));
    product.gated_split = acts.split;
    product.activation = model_.activation;
    if (model_.activation == Activation::kXielu)
      product.xielu = make_xielu(first_value(weights.xielu.alpha_p), first_value(weights.xielu.alpha_n),
                                 first_value(weights.xielu.beta));
    const LoraRows rows = adapters_.rows_of(layer_, &LayerAdapter::gate_up_proj);
    if (rows.num_rows == 0) return project(product, &norm);
    norm_alone(norm);
    updated_gates(rows, product, norm_acts_, [this](const GemmArgs& some, int) { project(some); });
  });
}

}  // namespace capstan::cuda
