// The MTP head of the CPU backend, except for its layer.
#include <algorithm>

#include "native/backend/cpu/cpu_backend_class.h"
#include "native/base/check.h"

namespace capstan {

int64_t CpuBackend::stored_hidden_bytes(const DeviceModel& model, int kv_group) {
  if (!model.has_mtp || model.layers.back().kv_group != kv_group) return 0;
  return round_up(model.hidden_size, 16) * static_cast<int64_t>(sizeof(float));
}

void CpuBackend::allocate_mtp() {
  const int64_t rows = limits_.max_num_tokens;
  const int num_blocks = limits_.num_blocks[kv_group(model_.num_layers() - 1)];
  const auto floats = [](int64_t count, const char* purpose) {
    return HugeBuffer(static_cast<size_t>(count) * sizeof(float), purpose);
  };
  kept_hidden_ = floats(rows * hidden_stride_, "the hidden states for the MTP head");
  stored_hidden_ = floats(num_blocks * hidden_stride_, "the hidden states of blocks");
  mtp_rows_ = floats(rows * round_up(2 * model_.hidden_size, 16), "the inputs of the MTP head");
}

void CpuBackend::keep_hidden(const Vector& norm) {
  const PartScope part(profile_, StepPart::kMtp);
  team_.for_ranges(num_tokens(), kSerialRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      norm_row(hidden_row(row), &norm, model_.hidden_size, kept_hidden_.as<float>() + row * hidden_stride_);
  });
}

void CpuBackend::store_hidden(std::span<const StoredHidden> rows) {
  const PartScope part(profile_, StepPart::kMtp);
  const int num_blocks = limits_.num_blocks[kv_group(model_.num_layers() - 1)];
  for (const StoredHidden& stored : rows) {
    CAPSTAN_CHECK(stored.row >= 0 && stored.row < limits_.max_num_tokens);
    CAPSTAN_CHECK(stored.block >= 0 && stored.block < num_blocks);
    std::copy_n(kept_hidden_.as<float>() + stored.row * hidden_stride_, hidden_stride_,
                stored_hidden_.as<float>() + stored.block * hidden_stride_);
  }
}

void CpuBackend::mtp_input(const MtpWeights& weights, std::span<const int32_t> hidden_before) {
  const PartScope part(profile_, StepPart::kMtp);
  CAPSTAN_CHECK(static_cast<int64_t>(hidden_before.size()) == num_tokens());
  const int64_t size = model_.hidden_size, stride = round_up(2 * size, 16);
  team_.for_ranges(num_tokens(), kSerialRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* to = mtp_rows_.as<float>() + row * stride;
      norm_row(hidden_row(row), weights.embedding_norm.get(), size, to);
      const int32_t place = hidden_before[static_cast<size_t>(row)];
      if (place == kNoHidden) {
        std::fill_n(to + size, size, 0.0f);
        continue;
      }
      const float* before = place >= 0 ? kept_hidden_.as<float>() + place * hidden_stride_
                                       : stored_hidden_.as<float>() + int64_t{stored_hidden(place)} * hidden_stride_;
      norm_row(before, weights.hidden_norm.get(), size, to + size);
    }
  });
  const CpuMatrix& fc = matrix_of(weights.fc);
  GemmArgs gemm;
  gemm.acts = pack_rows(mtp_rows_.as<float>(), stride, fc);
  gemm.num_features = fc.rows;
  gemm.out = hidden_.as<float>();
  gemm.out_stride = hidden_stride_;
  run_gemm(gemm, fc);
}

}  // namespace capstan
