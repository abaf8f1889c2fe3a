// The mixture of experts of the CPU backend: the router, and the products of each expert with the rows of its tokens.
#include <algorithm>

#include "native/backend/cpu/cpu_backend_class.h"
#include "native/base/portable_exp.h"

namespace capstan {
namespace {

// Returns the shared expert for the number after that of the last one.
const ExpertWeights& expert_of(const MoeWeights& moe, int expert) {
  return expert < static_cast<int>(moe.experts.size()) ? moe.experts[static_cast<size_t>(expert)] : moe.shared;
}

// Returns the norm of the hidden states that an expert, or the shared one, reads.
const Vector* norm_of(const LayerWeights& weights, int expert) {
  const MoeWeights& moe = *weights.moe;
  const bool is_shared = expert == static_cast<int>(moe.experts.size());
  return moe.expert_norm == nullptr || is_shared ? weights.mlp_norm.get() : moe.expert_norm.get();
}

// A row that an expert reads, and its norm.
struct ExpertRow {
  const float* x = nullptr;
  const Vector* norm = nullptr;
  int64_t size = 0;
};

}  // namespace

// Chooses the experts of each token from the logits of the router and of the shared expert's gate.
void CpuBackend::route(const LayerWeights& weights) {
  const PartScope part(profile_, StepPart::kRouter);
  const MoeWeights& moe = *weights.moe;
  const CpuMatrix& router = matrix_of(moe.router);
  const int64_t stride = round_up(model_.moe.num_experts, 16);
  begin_layer_update(&LayerAdapter::router);
  GemmArgs gemm;
  gemm.acts = norm_rows((moe.router_norm ? moe.router_norm : weights.mlp_norm).get(), {}, num_tokens(), router);
  multiply_a(false);
  gemm.lora = update_rows(0);
  gemm.num_features = router.rows;
  gemm.bias = router.bias.empty() ? nullptr : router.bias.data();
  gemm.out = router_logits_.as<float>();
  gemm.out_stride = stride;
  run_gemm(gemm, router);
  end_update();
  expert_plan_.begin(model_.moe, num_tokens());
  const int slots = expert_plan_.slots, top_k = model_.moe.top_k;
  const ExpertFactors factors{values_of(moe.selection_bias.get()), values_of(moe.scales.get())};
  team_.for_ranges(num_tokens(), kSerialRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int32_t* experts = expert_plan_.experts.data() + row * slots;
      choose_experts(model_.moe, router_logits_.as<float>() + row * stride, factors,
                     {experts, expert_plan_.weights.data() + row * slots});
      if (slots > top_k) experts[top_k] = model_.moe.num_experts;
    }
  });
  expert_plan_.sort_by_expert();
  if (slots == top_k || moe.shared_gate == nullptr) return;
  const CpuMatrix& gate = matrix_of(moe.shared_gate);
  begin_layer_update(&LayerAdapter::shared_gate);
  gemm.acts = norm_rows(weights.mlp_norm.get(), {}, num_tokens(), gate);
  multiply_a(false);
  gemm.lora = update_rows(0);
  gemm.num_features = 1;
  gemm.bias = nullptr;
  run_gemm(gemm, gate);
  end_update();
  for (int64_t row = 0; row < num_tokens(); ++row)
    expert_plan_.weights[static_cast<size_t>(row * slots + top_k)] =
        1.0f / (1.0f + portable_exp(-router_logits_.as<float>()[row * stride]));
}

ActTiles CpuBackend::expert_tiles(const HugeBuffer& buffer, int expert, const CpuMatrix& matrix) const {
  const int64_t first_pair = expert_plan_.first_pair[static_cast<size_t>(expert)];
  return act_tiles(buffer.as<uint32_t>() + first_pair * expert_act_words_, expert_plan_.num_pairs(expert), matrix);
}

void CpuBackend::pack_expert_inputs(const LayerWeights& weights) {
  const PartScope part(profile_, StepPart::kNorms);
  const MoeWeights& moe = *weights.moe;
  team_.for_pieces(model_.moe.num_experts + 1, 1, [&](int, int64_t begin, int64_t end) {
    for (int expert = static_cast<int>(begin); expert < end; ++expert) {
      const int count = expert_plan_.num_pairs(expert);
      if (count == 0) continue;
      const ActTiles acts = expert_tiles(expert_acts_, expert, matrix_of(expert_of(moe, expert).gate_up_proj));
      const int32_t* tokens = expert_plan_.tokens.data() + expert_plan_.first_pair[static_cast<size_t>(expert)];
      for (int i = 0; i < count; ++i)
        store_row(hidden_row(tokens[i]), norm_of(weights, expert), model_.hidden_size, acts, i);
    }
  });
  plan_expert_update(&ExpertAdapter::gate_up_proj);
  store_expert_runs([&](const LoraRun& run, int64_t pair) {
    const int32_t token = expert_plan_.tokens[static_cast<size_t>(pair)];
    return ExpertRow{hidden_row(token), norm_of(weights, run.expert), model_.hidden_size};
  });
}

template <typename RowOf>
void CpuBackend::store_expert_runs(RowOf row_of) {
  const std::vector<LoraRun>& runs = expert_lora_.runs;
  if (runs.empty()) return;
  team_.for_pieces(static_cast<int64_t>(runs.size()), 1, [&](int, int64_t begin, int64_t end) {
    for (; begin < end; ++begin) {
      const LoraRun& run = runs[static_cast<size_t>(begin)];
      for (int64_t i = 0; i < run.count; ++i) {
        const ExpertRow row = row_of(run, run.first + i);
        store_run_row(expert_lora_, run, row.x, row.norm, row.size, i);
      }
    }
  });
}

template <typename MatrixOf, typename Work>
void CpuBackend::for_expert_panels(MatrixOf matrix_of, Work work) {
  // Panels of all experts with tokens are numbered one after the other.
  const int num_experts = model_.moe.num_experts + 1;
  int64_t total = 0;
  expert_panels_.assign(static_cast<size_t>(num_experts) + 1, 0);
  for (int expert = 0; expert < num_experts; ++expert) {
    if (expert_plan_.num_pairs(expert) > 0) total += matrix_of(expert).num_panels;
    expert_panels_[static_cast<size_t>(expert) + 1] = total;
  }
  const int64_t least = least_panels(num_tokens(), kernels_.tile_panels);
  team_.for_pieces(total, kGemmPanels, least, [&](int thread, int64_t begin, int64_t end) {
    auto next = std::upper_bound(expert_panels_.begin(), expert_panels_.end(), begin);
    for (; begin < end; ++next) {
      const int64_t first = *(next - 1), last = std::min(end, *next);
      if (last > begin) work(thread, static_cast<int>(next - expert_panels_.begin()) - 1, begin - first, last - first);
      begin = std::max(begin, last);
    }
  });
}

void CpuBackend::run_expert_gate_up(const MoeWeights& moe) {
  const auto gate_up = [&](int expert) -> const CpuMatrix& { return matrix_of(expert_of(moe, expert).gate_up_proj); };
  if (profile_ != nullptr) count_experts(expert_acts_, moe, &ExpertWeights::gate_up_proj);
  const LoraRow* updates = multiply_expert_a(false);
  for_expert_panels(gate_up, [&](int thread, int expert, int64_t begin, int64_t end) {
    const CpuMatrix& matrix = gate_up(expert);
    const CpuMatrix& down = matrix_of(expert_of(moe, expert).down_proj);
    GemmArgs gemm;
    gemm.acts = expert_tiles(expert_acts_, expert, matrix);
    if (updates != nullptr) gemm.lora = updates + expert_plan_.first_pair[static_cast<size_t>(expert)];
    gemm.num_features = matrix.rows / 2;
    gemm.bias = matrix.bias.empty() ? nullptr : matrix.bias.data();
    gemm.output = GemmOutput::kGated;
    gemm.gated = gated_tiles(expert, down);
    gemm.activation = model_.activation;
    run_panels(gemm, matrix, thread, begin, end);
  });
}

ActTiles CpuBackend::gated_tiles(int expert, const CpuMatrix& down_proj) const {
  const ActTiles acts = expert_tiles(expert_mlp_, expert, down_proj);
  if (!is_int8(acts.format) && !updates_expert_down_) return acts;
  return float_rows(expert_tiles(expert_mlp_f32_, expert, down_proj).data, acts.rows, down_proj);
}

void CpuBackend::run_expert_down(const MoeWeights& moe) {
  const auto down = [&](int expert) -> const CpuMatrix& { return matrix_of(expert_of(moe, expert).down_proj); };
  const bool has_float_rows = max_act_words_ > 0 || updates_expert_down_;
  team_.for_pieces(has_float_rows ? model_.moe.num_experts + 1 : 0, 1, [&](int, int64_t begin, int64_t end) {
    for (int expert = static_cast<int>(begin); expert < end; ++expert) {
      if (expert_plan_.num_pairs(expert) == 0) continue;
      const ActTiles acts = expert_tiles(expert_mlp_, expert, down(expert)), rows = gated_tiles(expert, down(expert));
      if (acts.data == rows.data) continue;
      for (int64_t i = 0; i < acts.rows; ++i)
        store_row(reinterpret_cast<const float*>(rows.data) + i * rows.words, nullptr, down(expert).cols, acts, i);
    }
  });
  plan_expert_update(&ExpertAdapter::down_proj);
  store_expert_runs([&](const LoraRun& run, int64_t pair) {
    const CpuMatrix& matrix = down(run.expert);
    const ActTiles rows = gated_tiles(run.expert, matrix);
    const int64_t i = pair - expert_plan_.first_pair[static_cast<size_t>(run.expert)];
    return ExpertRow{reinterpret_cast<const float*>(rows.data) + i * rows.words, nullptr, matrix.cols};
  });
  // Several ranks add the update to the sum of their parts.
  const LoraRow* products = multiply_expert_a(world_size() > 1);
  const LoraRow* updates = world_size() > 1 ? nullptr : products;
  if (profile_ != nullptr) count_experts(expert_mlp_, moe, &ExpertWeights::down_proj);
  for_expert_panels(down, [&](int thread, int expert, int64_t begin, int64_t end) {
    GemmArgs gemm;
    gemm.acts = expert_tiles(expert_mlp_, expert, down(expert));
    if (updates != nullptr) gemm.lora = updates + expert_plan_.first_pair[static_cast<size_t>(expert)];
    gemm.num_features = down(expert).rows;
    gemm.out = expert_out_.as<float>() + expert_plan_.first_pair[static_cast<size_t>(expert)] * hidden_stride_;
    gemm.out_stride = hidden_stride_;
    run_panels(gemm, down(expert), thread, begin, end);
  });
}

// to += scale · norm(x), or scale · x without a norm.
void CpuBackend::add_normed(const float* x, const Vector* norm, float scale, float* to) const {
  kernels_.add_residual({to, &x, 1, nullptr, values_of(norm), model_.rms_norm_eps, scale, model_.hidden_size});
}

const float* CpuBackend::summed_expert_update(int expert, int64_t pair, void* const* published) {
  if (expert_lora_.runs.empty() || world_size() == 1) return nullptr;
  const CpuLora* lora = lora_of_pair(expert, pair, &ExpertAdapter::down_proj);
  if (lora == nullptr) return nullptr;
  return sum_update(expert_lora_, *lora, pair, expert_lora_.t - expert_out_.as<float>(), published);
}

// Adds the weighted results of each token's experts, over all ranks.
void CpuBackend::add_expert_sums(const LayerWeights& weights) {
  const PartScope part(profile_, StepPart::kResidual);
  void* own = expert_out_.as<void>();
  void* const* published = exchange(own);
  const int slots = expert_plan_.slots, num_ranks = world_size();
  team_.for_ranges(num_tokens(), kSerialRows, [&](int64_t begin, int64_t end) {
    const float* partials[(kMaxTopK + 1) * 8];
    const float* biases[kMaxTopK + 1];
    const float* updates[kMaxTopK + 1];
    for (int64_t row = begin; row < end; ++row) {
      for (int slot = 0; slot < slots; ++slot) {
        const size_t i = static_cast<size_t>(row * slots + slot);
        for (int rank = 0; rank < num_ranks; ++rank)
          partials[slot * num_ranks + rank] =
              static_cast<const float*>(published[rank]) + expert_plan_.pairs[i] * hidden_stride_;
        const CpuMatrix& down = matrix_of(expert_of(*weights.moe, expert_plan_.experts[i]).down_proj);
        biases[slot] = down.bias.empty() ? nullptr : down.bias.data();
        updates[slot] = summed_expert_update(expert_plan_.experts[i], expert_plan_.pairs[i], published);
      }
      float* sum = partial_.as<float>() + row * hidden_stride_;
      const float* slot_weights = expert_plan_.weights.data() + row * slots;
      if (model_.moe.has_separate_norms) {
        float* part = expert_sums_.as<float>() + row * hidden_stride_;
        const int top_k = model_.moe.top_k;
        std::fill(sum, sum + hidden_stride_, 0.0f);
        kernels_.weighted_sum({part, 1, partials + top_k * num_ranks, num_ranks, biases + top_k, updates + top_k,
                               slot_weights + top_k, model_.hidden_size});
        add_normed(part, weights.moe->shared_out_norm.get(), 1.0f, sum);
        kernels_.weighted_sum({part, top_k, partials, num_ranks, biases, updates, slot_weights, model_.hidden_size});
        add_normed(part, weights.moe->expert_out_norm.get(), 1.0f, sum);
      } else {
        kernels_.weighted_sum({sum, slots, partials, num_ranks, biases, updates, slot_weights, model_.hidden_size});
      }
      add_normed(sum, weights.mlp_out_norm.get(), model_.residual_scale, hidden_row(row));
    }
  });
  meet_ranks();  // the others have read this rank's results
}

void CpuBackend::moe_residual(const LayerWeights& weights) {
  const PartScope part(profile_, StepPart::kExperts);
  updates_expert_down_ = has_expert_update(&ExpertAdapter::down_proj);
  route(weights);
  pack_expert_inputs(weights);
  run_expert_gate_up(*weights.moe);
  run_expert_down(*weights.moe);
  add_expert_sums(weights);
}

}  // namespace capstan
