#include "native/backend/cpu/cpu_backend.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>

#include "native/backend/cpu/cpu_backend_class.h"
#include "native/backend/cpu/recurrent_kernels.h"
#include "native/base/check.h"
#include "native/base/error.h"

namespace capstan {

namespace {

// Up to this many multiply-adds (about two microseconds) the calling thread runs attention alone.
constexpr int64_t kSerialAttention = 64 << 10;

void check_at_most(const char* what, int limit, int value) {
  if (value > limit)
    throw Error(ErrorCode::kUnsupportedModel,
                std::string(what) + ": expected at most " + std::to_string(limit) + ", got " + std::to_string(value));
}

}  // namespace

KvCache CpuBackend::kv_cache(int layer) const {
  const size_t group = kv_group(layer);
  const KvLayout& layout = kv_layouts_[group];
  const int64_t k_bytes = limits_.num_blocks[group] * k_block_bytes(layout);
  const int64_t layer_bytes = k_bytes + limits_.num_blocks[group] * v_block_bytes(layout);
  char* k = kv_[group].as<char>() + model_.layer(layer).kv_layer * layer_bytes;
  return {layout, k, k + k_bytes};
}

ActTiles CpuBackend::act_tiles(uint32_t* data, int64_t rows, const CpuMatrix& matrix) const {
  const QuantWeights& quant = matrix.quant;
  if (quant.type.bits != 0 && has_int8_acts_) {
    ActTiles acts = int8_act_tiles(kernels_, rows, quant);
    if (data != nullptr) place_int8_acts(data, acts);
    return acts;
  }
  const bool is_bf16 = quant.type.bits == 0 && has_bf16_acts_ && matrix.dtype == DType::kBf16;
  ActTiles acts = plain_act_tiles(kernels_, is_bf16 ? bf16_act_format(kernels_, rows) : ActFormat::kF32, rows,
                                  matrix.padded_k, matrix.num_parts);
  acts.data = data;
  return acts;
}

void CpuBackend::store_row(const float* x, const Vector* norm, int64_t k, const ActTiles& acts, int64_t row) const {
  const float* weight = values_of(norm);
  if (is_int8(acts.format))
    kernels_.quantize_row(x, weight, k, model_.rms_norm_eps, acts, row);
  else if (norm != nullptr)
    kernels_.rms_norm(x, weight, k, model_.rms_norm_eps, acts, row);
  else
    kernels_.pack_rows(x, k, k, acts, row, 1);
}

void CpuBackend::store_rows(const float* x, int64_t stride, int64_t k, const ActTiles& acts, int64_t row,
                            int64_t count) {
  if (is_int8(acts.format))
    for (int64_t i = 0; i < count; ++i)
      store_row(x + i * stride, nullptr, k, acts, row + i);
  else
    kernels_.pack_rows(x, stride, k, acts, row, count);
  for (int64_t i = 0; i < count && has_update_; ++i)
    store_lora_row(x + i * stride, nullptr, k, row + i);
}

ActTiles CpuBackend::pack_rows(const float* x, int64_t stride, const CpuMatrix& matrix) {
  const PartScope part(profile_, StepPart::kNorms);
  const ActTiles acts = act_tiles(acts_.as<uint32_t>(), num_tokens(), matrix);
  team_.for_ranges(num_tokens(), kSerialRows, [&](int64_t begin, int64_t end) {
    store_rows(x + begin * stride, stride, matrix.cols, acts, begin, end - begin);
  });
  return acts;
}

void CpuBackend::begin_step(const StepInput& step) {
  check_step(step, model_, limits_);
  team_.pin_caller();
  step_ = step;
  lora_plan_.begin_step(step);
  for (size_t i = 0; i < attention_plans_.size(); ++i)
    plan_attention(step, attention_shapes_[i], attention_plans_[i]);
}

void CpuBackend::embed(const Matrix& table) {
  const PartScope part(profile_, StepPart::kEmbedding);
  const auto& matrix = static_cast<const CpuMatrix&>(table);
  const bool is_shared = world_size() > 1;
  float* out = is_shared ? partial_.as<float>() : hidden_.as<float>();
  team_.for_ranges(num_tokens(), kSerialRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int32_t id = step_.input_ids[row];
      CAPSTAN_CHECK(id >= 0 && id < model_.vocab_size);  // depth 1: the host knows every id
      float* to = out + row * hidden_stride_;
      std::fill(hidden_row(row), hidden_row(row) + hidden_stride_, 0.0f);
      if (id >= model_.vocab_begin && id < model_.vocab_end)
        gather_row(matrix, id - model_.vocab_begin, to);
      else
        std::fill(to, to + hidden_stride_, 0.0f);
      // NOTE: adding the zeros of other ranks turns -0 into +0, so one rank adds +0 too, for equal bits.
      for (int64_t i = 0; i < matrix.cols; ++i)
        to[i] = to[i] * model_.embedding_scale + 0.0f;
    }
  });
  if (is_shared) add_all_partials(nullptr, nullptr, 1.0f);
  update_embeddings();
}

ActTiles CpuBackend::norm_rows(const Vector* norm, std::span<const int32_t> rows, int64_t num_rows,
                               const CpuMatrix& matrix) {
  const PartScope part(profile_, StepPart::kNorms);
  const ActTiles acts = act_tiles(acts_.as<uint32_t>(), num_rows, matrix);
  const bool is_layer_norm = norm != nullptr && model_.norm_kind == NormKind::kLayer;
  const auto input = [&](int64_t row) { return hidden_row(rows.empty() ? row : rows[static_cast<size_t>(row)]); };
  team_.for_ranges(num_rows, kSerialRows, [&](int64_t begin, int64_t end) {
    if (!is_layer_norm) {
      for (int64_t row = begin; row < end; ++row) {
        store_row(input(row), norm, model_.hidden_size, acts, row);
        if (has_update_) store_lora_row(input(row), norm, model_.hidden_size, row);
      }
      return;
    }
    for (int64_t row = begin, next; row < end; row = next) {
      next = std::min(end, row - row % acts.tile_rows + acts.tile_rows);
      float* normed = partial_.as<float>() + row * hidden_stride_;
      for (int64_t i = row; i < next; ++i)
        norm_row(input(i), norm, model_.hidden_size, normed + (i - row) * hidden_stride_);
      store_rows(normed, hidden_stride_, model_.hidden_size, acts, row, next - row);
    }
  });
  return acts;
}

void CpuBackend::check_model(const DeviceModel& model, int64_t weight_bytes) const {
  for (int group = 0; group < static_cast<int>(model.kv_groups.size()); ++group)
    check_at_most("head size", kMaxHeadDim, model.kv_shape(group).head_dim);
  check_at_most("inputs of the convolution of a recurrent layer", kMaxConvTaps, model.recurrent.conv_taps);
  // All ranks keep their weights in the memory of this machine.
  const int64_t needed = weight_bytes * world_size(), available = available_bytes();
  if (needed > available)
    throw Error(ErrorCode::kOutOfMemory, "the weights need " + std::to_string(needed >> 20) + " MiB as " +
                                             dtype_name(weight_dtype_) + ", and " + std::to_string(available >> 20) +
                                             " MiB of memory are available");
}

void CpuBackend::run_panels(const GemmArgs& args, const CpuMatrix& matrix, int thread, int64_t begin, int64_t end) {
  GemmArgs part = args;
  part.weights = matrix.data.as<void>();
  part.weight_dtype = matrix.dtype;
  part.quant = matrix.quant;
  part.scratch = scratch_.as<float>() + thread * scratch_floats_;
  part.num_parts = matrix.num_parts;
  part.panel_begin = begin;
  part.panel_end = end;
  part.prefetches = wants_prefetch_;
  kernels_.gemm(part);
}

void CpuBackend::run_gemm(const GemmArgs& args, const CpuMatrix& matrix) {
  CAPSTAN_CHECK(args.acts.words == act_tiles(nullptr, args.acts.rows, matrix).words);
  if (profile_ != nullptr) count_product(args.acts, matrix);
  team_.for_pieces(matrix.num_panels, kGemmPanels, least_panels(args.acts.rows, kernels_.tile_panels),
                   [&](int thread, int64_t begin, int64_t end) { run_panels(args, matrix, thread, begin, end); });
}

void CpuBackend::norm_all_heads(const KvShape& shape) {
  const PartScope part(profile_, StepPart::kNorms);
  const int heads = model_.num_heads, kv_heads = shape.num_kv_heads, stride = heads + kv_heads;
  team_.for_ranges(num_tokens(), kSerialRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      kernels_.head_squares(qkv_.as<float>() + row * qkv_stride_, stride, shape.head_dim,
                            squares_.as<float>() + row * stride);
  });
  void* own = squares_.as<void>();
  void* const* published = exchange(own);
  // The heads are added in order, so that the sum does not depend on the number of ranks. More ranks than KV heads hold
  // copies of them.
  const auto inverse_rms = [&](int64_t row, int first, int per_rank, int total) {
    float sum = 0;
    for (int head = 0; head < total; ++head) {
      const int rank = static_cast<int>(int64_t{head} * world_size() / total);
      const int own_head = total >= world_size() ? head % per_rank : 0;
      sum += static_cast<const float*>(published[rank])[row * stride + first + own_head];
    }
    return 1.0f / std::sqrt(sum / static_cast<float>(total * shape.head_dim) + model_.rms_norm_eps);
  };
  for (int64_t row = 0; row < num_tokens(); ++row) {
    inverse_rms_.as<float>()[row * 2] = inverse_rms(row, 0, heads, heads * world_size());
    inverse_rms_.as<float>()[row * 2 + 1] = inverse_rms(row, heads, kv_heads, shape.total_kv_heads);
  }
  meet_ranks();
}

void CpuBackend::norm_gemm(const Vector* norm, const Matrix& weights, const FloatRows& out) {
  GemmArgs gemm;
  gemm.out = out.data;
  gemm.out_stride = out.stride;
  size_t part = 0;
  for (auto* matrix = static_cast<const CpuMatrix*>(&weights); matrix != nullptr; matrix = matrix->rest.get()) {
    gemm.acts = norm_rows(norm, {}, num_tokens(), *matrix);
    if (part == 0) multiply_a(false);
    gemm.lora = update_rows(part++);
    gemm.num_features = matrix->rows;
    gemm.bias = matrix->bias.empty() ? nullptr : matrix->bias.data();
    run_gemm(gemm, *matrix);
    gemm.out += matrix->rows;
  }
}

void CpuBackend::recurrent(int layer, const LayerWeights& weights) {
  const PartScope part(profile_, StepPart::kRecurrence);
  layer_ = layer;
  {
    const PartScope product(profile_, StepPart::kQkv);
    begin_layer_update(&LayerAdapter::qkv_proj);
    norm_gemm(weights.input_norm.get(), *weights.recurrent.in_proj, recurrent_->projections());
    end_update();
  }
  mixer_rows_ = recurrent_->run(layer, weights.recurrent, step_);
}

void CpuBackend::norm_qkv(int layer, const LayerWeights& weights) {
  const PartScope part(profile_, StepPart::kQkv);
  layer_ = layer;
  begin_layer_update(&LayerAdapter::qkv_proj);
  norm_gemm(weights.input_norm.get(), *weights.qkv_proj, {qkv_.as<float>(), qkv_stride_});
  end_update();
  const bool has_norm_of_all = model_.qk_norm == QkNorm::kAllHeads;
  if (has_norm_of_all) norm_all_heads(kv_shape(layer));
  const PartScope rows_part(profile_, StepPart::kRotary);
  QkvRowArgs args;
  args.num_heads = model_.num_heads;
  args.q_norm.weight = values_of(weights.q_norm.get());
  args.k_norm.weight = values_of(weights.k_norm.get());
  args.q_norm.is_of_all_heads = args.k_norm.is_of_all_heads = has_norm_of_all;
  args.has_v_norm = model_.has_v_norm;
  args.stores_kv = !model_.layer(layer).reads_kv;
  args.eps = model_.rms_norm_eps;
  args.rotates_before_norm = model_.rotates_before_qk_norm;
  args.cache = kv_cache(layer);
  const int rope = model_.layer(layer).rope;
  static const RopeTable kNoRope;
  const RopeTable& table = rope < 0 ? kNoRope : model_.rope_tables[static_cast<size_t>(rope)];
  args.rotary_dim = table.rotary_dim;
  const std::span<const int32_t> slots = step_.kv_groups[kv_group(layer)].slot_mapping;
  team_.for_ranges(num_tokens(), kSerialRows, [&](int64_t begin, int64_t end) {
    QkvRowArgs row_args = args;
    for (int64_t row = begin; row < end; ++row) {
      row_args.qkv = qkv_.as<float>() + row * qkv_stride_;
      const int64_t position = step_.positions[row];
      row_args.rope = table.values.data() + position * args.rotary_dim;
      row_args.q_scale = model_.attention_scale * kLog2E;
      if (!table.query_scales.empty()) row_args.q_scale *= table.query_scales[static_cast<size_t>(position)];
      if (has_norm_of_all) {
        row_args.q_norm.inverse_rms = inverse_rms_.as<float>()[row * 2];
        row_args.k_norm.inverse_rms = inverse_rms_.as<float>()[row * 2 + 1];
      }
      row_args.slot = slots[row];
      kernels_.qkv_row(row_args);
    }
  });
}

AttentionArgs CpuBackend::attention_args(int layer, const Vector* sinks, const AttentionItem& item, int thread) const {
  const KvShape shape = kv_shape(layer);
  const int heads_per_kv = model_.num_heads / shape.num_kv_heads;
  AttentionArgs args;
  args.q = qkv_.as<float>() + item.first_row * qkv_stride_ +
           (item.kv_head * heads_per_kv + item.first_head) * shape.head_dim;
  args.q_stride = qkv_stride_;
  args.num_rows = item.num_rows;
  args.num_heads = item.num_heads;
  args.first_position = item.first_position;
  args.window = model_.window(layer);
  args.num_keys = model_.is_causal ? 0 : step_.context_lens[item.seq];
  args.first_key = model_.layer(layer).first_key;
  args.first_chunk = item.first_chunk;
  args.end_chunk = item.end_chunk;
  args.has_bf16_products = has_bf16_acts_;
  args.soft_cap = model_.attention_soft_cap * kLog2E;
  if (model_.embedding.num_distances > 0) {
    args.bias_stride = bias_stride();
    args.biases =
        biases_.as<float>() + (item.kv_head * heads_per_kv + item.first_head) * args.bias_stride + model_.max_model_len;
  }
  if (sinks != nullptr) args.sinks = values_of(sinks) + item.kv_head * heads_per_kv + item.first_head;
  args.kv_head = item.kv_head;
  const KvGroupInput& group = step_.kv_groups[kv_group(layer)];
  args.block_table = group.block_tables.data() + int64_t{item.seq} * step_.max_blocks_per_seq;
  args.cache = kv_cache(layer);
  args.scratch = scratch_.as<float>() + thread * scratch_floats_;
  return args;
}

void CpuBackend::run_attention_item(int layer, const Vector* sinks, const AttentionItem& item, int thread) {
  AttentionArgs args = attention_args(layer, sinks, item, thread);
  if (item.split < 0) return kernels_.attention(args);
  const AttentionSplit& split = attention_plans_[kv_group(layer)].splits[item.split];
  const int64_t v_dim = args.cache.layout.v_dim;
  const int64_t chunk_states = int64_t{item.num_rows} * item.num_heads;
  float* states = states_.as<float>() + chunk_state_floats(split.first_state, v_dim);
  args.states = states + chunk_state_floats((item.first_chunk - split.first_chunk) * chunk_states, v_dim);
  kernels_.attention(args);
  if (split_items_left_[item.split].fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  args.first_chunk = split.first_chunk;
  args.end_chunk = split.end_chunk;
  args.states = states;
  kernels_.combine_chunks(args);
}

void CpuBackend::attention(int layer, const LayerWeights& weights) {
  const PartScope part(profile_, StepPart::kAttention);
  if (profile_ != nullptr) count_attention(layer);
  const AttentionPlan& plan = attention_plans_[kv_group(layer)];
  const KvShape shape = kv_shape(layer);
  for (size_t i = 0; i < plan.splits.size(); ++i)
    split_items_left_[i].store(plan.splits[i].num_items, std::memory_order_relaxed);
  std::atomic<size_t> next_item{0};
  const auto work = [&](int thread) {
    for (size_t i; (i = next_item.fetch_add(1, std::memory_order_relaxed)) < plan.items.size();)
      run_attention_item(layer, weights.sinks.get(), plan.items[i], thread);
  };
  int64_t cost = 0;
  for (const AttentionItem& item : plan.items)
    cost += item.cost * shape.head_dim * 2;
  if (cost <= kSerialAttention)
    team_.for_ranges(1, 1, [&](int64_t, int64_t) { work(0); });
  else
    team_.run(work);
  mixer_rows_ = {qkv_.as<float>(), qkv_stride_};
  if (model_.has_output_gate) gate_attention(shape);
}

void CpuBackend::gate_attention(const KvShape& shape) {
  const int64_t q_size = int64_t{model_.num_heads} * shape.head_dim;
  const int64_t gate_at = q_size + 2 * int64_t{shape.num_kv_heads} * shape.head_dim;
  team_.for_ranges(num_tokens(), kSerialRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      kernels_.recurrent.sigmoid_gate(mixer_rows_.row(row), mixer_rows_.row(row) + gate_at, q_size);
  });
}

void CpuBackend::add_all_partials(const float* bias, const Vector* norm, float scale) {
  const PartScope part(profile_, StepPart::kResidual);
  const float* partials[8];
  CAPSTAN_CHECK(world_size() <= 8);
  void* own = partial_.as<void>();
  void* const* published = exchange(own);
  for (int rank = 0; rank < world_size(); ++rank)
    partials[rank] = static_cast<const float*>(published[rank]);
  team_.for_ranges(num_tokens(), kSerialRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* row_partials[8];
      for (int rank = 0; rank < world_size(); ++rank)
        row_partials[rank] = partials[rank] + row * hidden_stride_;
      const float* update = world_size() > 1 ? summed_update(row, published) : nullptr;
      kernels_.add_residual({hidden_row(row), row_partials, world_size(), bias, values_of(norm), model_.rms_norm_eps,
                             scale, model_.hidden_size, update});
    }
  });
  meet_ranks();  // the others have read this rank's partials
}

void CpuBackend::row_parallel_residual(const ActTiles& acts, const CpuMatrix& matrix, const Vector* layer_norm) {
  const bool is_of_sum = model_.norms.is_of_sum;
  const Vector* norm = is_of_sum ? nullptr : layer_norm;
  const float* bias = matrix.bias.empty() ? nullptr : matrix.bias.data();
  GemmArgs gemm;
  gemm.acts = acts;
  gemm.num_features = matrix.rows;
  gemm.out_stride = hidden_stride_;
  // Several ranks add the update to the sum of their parts.
  multiply_a(world_size() > 1);
  if (world_size() == 1) gemm.lora = update_rows(0);
  if (world_size() == 1 && norm == nullptr && model_.residual_scale == 1.0f) {
    gemm.output = GemmOutput::kResidual;
    gemm.bias = bias;
    gemm.out = hidden_.as<float>();
    run_gemm(gemm, matrix);
  } else {
    gemm.out = partial_.as<float>();
    run_gemm(gemm, matrix);
    add_all_partials(bias, norm, model_.residual_scale);
  }
  end_update();
  if (is_of_sum) norm_hidden(*layer_norm);
}

void CpuBackend::output_residual(const LayerWeights& weights) {
  const PartScope part(profile_, StepPart::kOutput);
  const auto& matrix = static_cast<const CpuMatrix&>(*weights.o_proj);
  begin_layer_update(&LayerAdapter::o_proj);
  row_parallel_residual(pack_rows(mixer_rows_.data, mixer_rows_.stride, matrix), matrix,
                        weights.attention_out_norm.get());
}

// Quantization needs f32 rows, and so do adapters of the down projection, which store the rows a second time.
bool CpuBackend::mlp_is_input(const CpuMatrix& down_proj) const {
  if (is_int8(act_tiles(nullptr, num_tokens(), down_proj).format)) return false;
  return std::none_of(lora_plan_.groups.begin(), lora_plan_.groups.end(), [&](const LoraPlan::Group& group) {
    return group.adapter->layers[static_cast<size_t>(layer_)].down_proj != nullptr;
  });
}

ActTiles CpuBackend::mlp_tiles(const CpuMatrix& down_proj) const {
  if (mlp_is_input(down_proj)) return act_tiles(mlp_acts_.as<uint32_t>(), num_tokens(), down_proj);
  return float_rows(mlp_acts_.as<uint32_t>(), num_tokens(), down_proj);
}

ActTiles CpuBackend::float_rows(uint32_t* data, int64_t rows, const CpuMatrix& matrix) const {
  ActTiles acts;
  acts.data = data;
  acts.rows = rows;
  acts.words = matrix.padded_k;
  return acts;
}

void CpuBackend::norm_gate_up(const LayerWeights& weights) {
  const PartScope part(profile_, StepPart::kGateUp);
  const auto& matrix = static_cast<const CpuMatrix&>(*weights.gate_up_proj);
  begin_layer_update(&LayerAdapter::gate_up_proj);
  GemmArgs gemm;
  gemm.acts = norm_rows(weights.mlp_norm.get(), {}, num_tokens(), matrix);
  multiply_a(false);
  gemm.lora = update_rows(0);
  gemm.num_features = model_.has_gated_mlp ? matrix.rows / 2 : matrix.rows;
  gemm.bias = matrix.bias.empty() ? nullptr : matrix.bias.data();
  gemm.output = model_.has_gated_mlp ? GemmOutput::kGated : GemmOutput::kActivated;
  gemm.gated = mlp_tiles(static_cast<const CpuMatrix&>(*weights.down_proj));
  gemm.activation = model_.activation;
  if (model_.activation == Activation::kXielu) {
    const auto value = [](const std::unique_ptr<Vector>& vector) { return values_of(vector.get())[0]; };
    gemm.xielu = make_xielu(value(weights.xielu.alpha_p), value(weights.xielu.alpha_n), value(weights.xielu.beta));
  }
  run_gemm(gemm, matrix);
  end_update();
}

void CpuBackend::down_residual(const LayerWeights& weights) {
  const PartScope part(profile_, StepPart::kDown);
  const auto& matrix = static_cast<const CpuMatrix&>(*weights.down_proj);
  const ActTiles mlp = mlp_tiles(matrix);
  begin_layer_update(&LayerAdapter::down_proj);
  row_parallel_residual(mlp_is_input(matrix) ? mlp : pack_rows(mlp_acts_.as<float>(), mlp.words, matrix), matrix,
                        weights.mlp_out_norm.get());
}

void CpuBackend::lm_head(const Vector& norm, const Matrix& head, std::span<const int32_t> rows) {
  const PartScope part(profile_, StepPart::kHead);
  const auto& matrix = static_cast<const CpuMatrix&>(head);
  num_logit_rows_ = static_cast<int64_t>(rows.size());
  CAPSTAN_CHECK(num_logit_rows_ > 0 && num_logit_rows_ <= limits_.max_num_seqs);
  for (const int32_t row : rows)
    CAPSTAN_CHECK(row >= 0 && row < num_tokens());
  head_plan_.select(lora_plan_, rows);
  row_plan_ = &head_plan_;
  begin_update([](const AdapterWeights& adapter) { return adapter.lm_head.get(); });
  GemmArgs gemm;
  gemm.acts = norm_rows(&norm, rows, num_logit_rows_, matrix);
  multiply_a(false);
  gemm.lora = update_rows(0);
  gemm.num_features = matrix.rows;
  gemm.bias = matrix.bias.empty() ? nullptr : matrix.bias.data();
  gemm.out_stride = model_.vocab_size;
  void* own = logits_.as<void>();
  // Every rank writes its columns of rank 0's array.
  gemm.out = static_cast<float*>(exchange(own)[0]) + model_.vocab_begin;
  run_gemm(gemm, matrix);
  end_update();
  row_plan_ = &lora_plan_;
  scale_logits(gemm.out, matrix.rows);
  meet_ranks();
}

void CpuBackend::scale_logits(float* logits, int64_t num_ids) {
  const float scale = model_.logit_scale, cap = model_.logit_soft_cap;
  if (scale == 1.0f && cap == 0.0f) return;
  team_.for_ranges(num_logit_rows_, 0, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      kernels_.scale_logits(logits + row * model_.vocab_size, num_ids, scale, cap);
  });
}

void CpuBackend::sample(std::span<const SampleRow> rows, std::span<SampleResult> results) {
  const PartScope part(profile_, StepPart::kSampling);
  for (const SampleRow& row : rows)
    CAPSTAN_CHECK(row.logits_row >= 0 && row.logits_row < num_logit_rows_);
  sampler_->sample(logits_.as<float>(), rows, results);
}

std::unique_ptr<Backend> make_cpu_backend(const CpuBackendOptions& options, std::unique_ptr<Comm> comm) {
  return std::make_unique<CpuBackend>(options, std::move(comm));
}

}  // namespace capstan
