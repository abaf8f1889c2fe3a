#pragma once
// LoRA adapters of the CPU backend, and the rows of a step grouped by adapter.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "native/backend/adapter.h"
#include "native/backend/cpu/kernels.h"
#include "native/backend/cpu/matrix.h"
#include "native/backend/cpu/memory.h"

namespace capstan {

// All matrices of an adapter are in one pool, because a step reads a little of each adapter in turn.
struct CpuLoraMemory final : LoraMemory {
  HugePool pool;
};

// The update of one matrix. t = A · x holds the values of all factors, one after the other.
struct CpuLora final : LoraMatrix {
  std::unique_ptr<CpuMatrix> a;
  std::vector<float> scales;  // (panels of a * 16) of the values of t
  // The ranges of t for the gate and the up projection of a gated matrix.
  struct Range {
    int begin = 0, count = 0;
  };
  Range gate, up;

  // B for the output features of a matrix, or of one of those that follow it as `rest`.
  struct Part {
    HugeBuffer weights;
    std::vector<LoraPanel> panels;
    LoraPanels view;
  };
  std::vector<Part> parts;

  bool is_gated() const { return parts[0].view.is_gated; }
};

// Packs the update of `matrix`. A and B get the type `dtype`. Throws kInvalidModel for NaN, Inf and values outside the
// range of `dtype`.
std::unique_ptr<CpuLora> pack_lora(const LoraSource& source, const CpuMatrix& matrix, DType dtype,
                                   const CpuKernels& kernels);

// The largest number of values of t in an update, and of rows (values, 16) in a gated one. The matrix of a delta net
// holds four projections, and that of attention three.
constexpr int64_t max_lora_values(int max_rank, bool has_delta_nets) {
  return round_up(int64_t{has_delta_nets ? 4 : 3} * max_rank, kPanelFeatures);
}
constexpr int64_t max_lora_lanes(int max_rank) {
  return round_up(max_rank, 2) * kPanelFeatures;
}

// The rows of a step that have an adapter, in the order of their adapters.
struct LoraPlan {
  struct Group {
    const AdapterWeights* adapter = nullptr;
    int first = 0, count = 0;  // of its rows
  };
  std::vector<Group> groups;
  std::vector<int32_t> group_of;  // (num_rows) index into groups, or -1
  std::vector<int32_t> place_of;  // (num_rows) place of the row among all rows with an adapter

  // Reserves the memory for the largest step.
  void reserve(int max_num_rows, int max_num_seqs);
  void begin_step(const StepInput& step);
  // Plans some rows of the step that `all` plans.
  void select(const LoraPlan& all, std::span<const int32_t> rows);

 private:
  // Sets the groups' rows and place_of from group_of.
  void place_rows();
};

// Neighbouring rows of a product that have the same update. `first` is the place of the first one in LoraBuffers.
struct LoraRun {
  const CpuLora* lora = nullptr;
  int64_t first = 0, count = 0;
  int expert = 0;  // whose pairs these are; unused for rows of a step
};

// The inputs of rows with an update, and their products with A.
struct LoraBuffers {
  int64_t act_words = 0;
  HugeBuffer acts;            // (rows, act_words) ActTiles of each run
  HugeBuffer lanes;           // (rows, lane_stride) t for gated matrices
  float* t = nullptr;         // (rows, t_stride) not owned
  std::vector<LoraRow> rows;  // of the product
  std::vector<LoraRun> runs;
};

}  // namespace capstan
