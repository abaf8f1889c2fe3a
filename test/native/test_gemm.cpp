// The matrix kernels of every instruction set, compared with double precision, and bit for bit with the order of sums
// of contract 3.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "native/backend/cpu/act_tiles.h"
#include "native/backend/cpu/isa.h"
#include "native/backend/cpu/matrix.h"
#include "native/backend/cpu/row_check.h"
#include "native/base/number.h"
#include "test/native/act_values.h"
#ifdef CAPSTAN_AMX_TWIN
#include "test/native/amx/amx_scope.h"
#endif
#include "test/native/checkpoint.h"
#include "test/native/reference.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

struct Kind {
  DType weights;
  bool is_rounded;  // bf16 activations
};
constexpr Kind kKinds[] = {{DType::kF32, false}, {DType::kF16, false}, {DType::kBf16, false}, {DType::kBf16, true}};

std::string name_of(const Kind& kind, CpuIsa isa, int64_t rows, int64_t n, int64_t k) {
  return std::string(cpu_isa_name(isa)) + " " + dtype_name(kind.weights) + (kind.is_rounded ? " x bf16" : "") +
         " rows " + show(rows) + " n " + show(n) + " k " + show(k);
}

// A packed matrix, its values, and activations of several rows.
struct Problem {
  int64_t rows, n, k;
  Kind kind;
  std::unique_ptr<CpuMatrix> matrix;
  std::vector<float> weights, up_weights;  // (n, k), rounded as stored; up_weights only when gated
  std::vector<float> x;                    // (rows, k), rounded as the kernel reads them

  Problem(int64_t num_rows, int64_t num_features, int64_t num_k, const Kind& what, MatrixKind matrix_kind,
          bool is_gated = false)
      : rows(num_rows), n(num_features), k(num_k), kind(what) {
    Team team({-1}, false);
    HugePool pool;
    MemoryCheckpoint checkpoint;
    weights = random_values(1, n * k, 1.0f);
    up_weights = random_values(2, n * k, 1.0f);
    MatrixSource source;
    source.kind = matrix_kind;
    source.total_cols = k;
    source.slices = {whole(checkpoint.add("w", kind.weights, n, k, weights))};
    if (is_gated) source.slices.push_back(whole(checkpoint.add("u", kind.weights, n, k, up_weights)));
    source.interleave_pairs = is_gated;
    matrix = pack_matrix(source, kind.weights, cpu_kernels(CpuIsa::kPortable), team, pool, {});
    x = random_values(3, rows * k + 16, 1.0f);
    if (kind.is_rounded)
      for (float& value : x)
        value = bf16_to_float(float_to_bf16(value));
  }

  // Packs rows [first_row, first_row + num_rows) of x into `memory`.
  ActTiles pack(const CpuKernels& kernels, std::vector<uint32_t>& memory, int64_t first_row, int64_t num_rows) const {
    const ActFormat format = kind.is_rounded ? bf16_act_format(kernels, num_rows) : ActFormat::kF32;
    ActTiles acts = plain_act_tiles(kernels, format, num_rows, matrix->padded_k, matrix->num_parts);
    memory.assign(static_cast<size_t>(num_rows * acts.words), 0x7fc07fc0u);  // NaN: every word must be written
    acts.data = memory.data();
    for (int64_t row = 0; row < num_rows; ++row)
      kernels.pack_rows(x.data() + (first_row + row) * k, k, k, acts, row, 1);
    return acts;
  }

  GemmArgs args(const ActTiles& acts) const {
    GemmArgs args;
    args.acts = acts;
    args.weights = matrix->data.as<void>();
    args.weight_dtype = kind.weights;
    args.num_parts = matrix->num_parts;
    args.panel_end = matrix->num_panels;
    args.num_features = n;
    return args;
  }
};

std::vector<float> multiply(const Problem& problem, const CpuKernels& kernels, int64_t first_row, int64_t num_rows) {
  std::vector<uint32_t> memory;
  const ActTiles acts = problem.pack(kernels, memory, first_row, num_rows);
  std::vector<float> out(static_cast<size_t>(num_rows * problem.n));
  GemmArgs args = problem.args(acts);
  args.out = out.data();
  args.out_stride = problem.n;
  kernels.gemm(args);
  return out;
}

// Products of bf16 with bf16 on AMX: blocks of 32, each with a chain over the even and one over the odd columns.
bool has_blocks(const Problem& problem, const CpuKernels& kernels) {
  return problem.kind.is_rounded && kernels.bf16_act_format == ActFormat::kBf16Blocks;
}

// Returns the sum of one part, [begin, end) of K.
float expected_part(const Problem& problem, bool has_blocks, int64_t row, int64_t feature, int64_t begin, int64_t end) {
  const auto term = [&](int64_t k, float sum) {
    if (k >= problem.k) return sum + 0.0f;
    return std::fma(problem.x[row * problem.k + k], problem.weights[feature * problem.k + k], sum);
  };
  float sum = 0;
  if (has_blocks) {
    for (int64_t block = begin; block < end; block += 32) {
      float even = 0, odd = 0;
      for (int64_t k = block; k < std::min(block + 32, end); k += 2) {
        even = term(k, even);
        odd = term(k + 1, odd);
      }
      sum += even + odd;
    }
    return sum;
  }
  for (int64_t k = begin; k < end; k += 2) {
    const bool is_odd_first = problem.kind.is_rounded;
    sum = term(is_odd_first ? k + 1 : k, sum);
    sum = term(is_odd_first ? k : k + 1, sum);
  }
  return sum;
}

// Returns one element in the order of contract 3: a chain of FMAs per part, and the parts added by the tree. Products
// of bf16 with bf16 add the odd element of a pair first, or in blocks.
float expected_sum(const Problem& problem, bool has_blocks, int64_t row, int64_t feature) {
  const int parts = problem.matrix->num_parts;
  const int64_t part_size = problem.matrix->padded_k / parts;
  std::vector<float> sums;
  for (int part = 0; part < parts; ++part)
    sums.push_back(expected_part(problem, has_blocks, row, feature, part * part_size, (part + 1) * part_size));
  for (int width = parts; width > 1; width /= 2)
    for (int i = 0; i < width / 2; ++i)
      sums[i] = sums[2 * i] + sums[2 * i + 1];
  return sums[0];
}

TEST(gemm_adds_in_the_order_of_the_contract) {
  for (const CpuIsa isa : available_cpu_isas()) {
    const CpuKernels& kernels = cpu_kernels(isa);
    for (const Kind& kind : kKinds) {
      for (const MatrixKind matrix_kind : {MatrixKind::kColumn, MatrixKind::kRow}) {
        for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33}) {
          for (const auto& [n, k] :
               {std::pair<int64_t, int64_t>{1, 1}, {16, 2}, {50, 33}, {64, 128}, {70, 80}, {33, 24}, {49, 300}}) {
            const Problem problem(rows, n, k, kind, matrix_kind);
            const std::vector<float> out = multiply(problem, kernels, 0, rows);
            for (int64_t row = 0; row < rows; ++row)
              for (int64_t feature = 0; feature < n; ++feature) {
                const float wanted = expected_sum(problem, has_blocks(problem, kernels), row, feature),
                            got = out[row * n + feature];
                if (got != wanted)
                  fail(__FILE__, __LINE__,
                       name_of(kind, isa, rows, n, k) + ": got " + show(got) + ", expected " + show(wanted));
              }
          }
        }
      }
    }
  }
}

#ifdef CAPSTAN_AMX_TWIN
// Parts of K that end within a block of 32, in 1 to 8 parts.
TEST(gemm_on_tiles_adds_in_the_order_of_the_contract_in_any_number_of_parts) {
  if (!has_isa(CpuIsa::kAmxTwin)) return;
  const CpuKernels& kernels = cpu_kernels(CpuIsa::kAmxTwin);
  for (const int64_t k : {16, 48, 96, 160, 192, 320, 896}) {
    for (const int64_t rows : {1, 4, 5, 16, 31, 33}) {
      const Problem problem(rows, 40, k, {DType::kBf16, true}, MatrixKind::kRow);
      const std::vector<float> out = multiply(problem, kernels, 0, rows);
      for (int64_t i = 0; i < rows * 40; ++i)
        EXPECT_EQ(out[i], expected_sum(problem, true, i / 40, i % 40));
    }
  }
}

// The machine code of the AMX kernels. It must run on a processor with AMX, and in the emulator elsewhere.
TEST(gemm_on_amx_gives_the_bits_of_the_twin) {
  if (!has_isa(CpuIsa::kAmxTwin)) return;
  const AmxScope amx;
  for (const int64_t rows : {1, 5, 16, 17, 32, 67}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{16, 32}, {70, 896}, {33, 20}}) {
      const Problem problem(rows, n, k, {DType::kBf16, true}, MatrixKind::kRow);
      EXPECT(multiply(problem, kAmxKernels, 0, rows) == multiply(problem, kAmxTwinKernels, 0, rows));
    }
  }
}
#endif

#ifdef CAPSTAN_AMX_TWIN
TEST(gemm_check_of_rows_accepts_one_order_and_refuses_two) {
  if (!has_isa(CpuIsa::kAmxTwin)) return;
  EXPECT(rows_give_the_same_bits(kAmxTwinKernels));
  const AmxScope amx;
  EXPECT(rows_give_the_same_bits(kAmxKernels));
  CpuKernels two_orders = kAmxTwinKernels;
  two_orders.gemm = [](const GemmArgs& args) {
    kAmxTwinKernels.gemm(args);
    if (args.acts.rows > 1) args.out[args.out_stride + 3] = std::nextafter(args.out[args.out_stride + 3], 1e30f);
  };
  EXPECT(!rows_give_the_same_bits(two_orders));
}
#endif

TEST(gemm_is_close_to_double_precision) {
  for (const CpuIsa isa : available_cpu_isas()) {
    for (const Kind& kind : kKinds) {
      for (const int64_t rows : {1, 9, 64}) {
        const Problem problem(rows, 40, 500, kind, MatrixKind::kRow);
        const std::vector<float> out = multiply(problem, cpu_kernels(isa), 0, rows);
        for (int64_t row = 0; row < rows; ++row)
          for (int64_t feature = 0; feature < 40; ++feature) {
            double sum = 0, magnitude = 0;
            for (int64_t k = 0; k < 500; ++k) {
              const double product = static_cast<double>(problem.x[row * 500 + k]) * problem.weights[feature * 500 + k];
              sum += product;
              magnitude += std::abs(product);
            }
            EXPECT_NEAR(out[row * 40 + feature], sum, 1e-6 * magnitude);
          }
      }
    }
  }
}

TEST(gemm_rows_do_not_depend_on_each_other) {
  for (const CpuIsa isa : available_cpu_isas()) {
    const CpuKernels& kernels = cpu_kernels(isa);
    for (const Kind& kind : kKinds) {
      const Problem problem(19, 100, 160, kind, MatrixKind::kRow);
      const std::vector<float> together = multiply(problem, kernels, 0, 19);
      for (int64_t row = 0; row < 19; ++row) {
        const std::vector<float> alone = multiply(problem, kernels, row, 1);
        EXPECT(std::memcmp(alone.data(), together.data() + row * 100, 100 * sizeof(float)) == 0);
      }
    }
  }
}

// More rows than fit in the cache beside the panels. Then panels so long that two of them do not fit.
TEST(gemm_of_large_operands_gives_the_bits_of_each_row_alone) {
  for (const CpuIsa isa : available_cpu_isas()) {
    const CpuKernels& kernels = cpu_kernels(isa);
    if (kernels.bf16_act_format != ActFormat::kBf16Blocks) continue;
    for (const auto& [rows, k] : {std::pair<int64_t, int64_t>{421, 4096}, {40, 16000}}) {
      const Problem problem(rows, 70, k, {DType::kBf16, true}, MatrixKind::kRow);
      const std::vector<float> together = multiply(problem, kernels, 0, rows);
      for (const int64_t row : {int64_t{0}, int64_t{31}, int64_t{32}, rows - 1}) {
        const std::vector<float> alone = multiply(problem, kernels, row, 1);
        EXPECT(std::memcmp(alone.data(), together.data() + row * 70, 70 * sizeof(float)) == 0);
      }
    }
  }
}

// Denormal operands, products and sums are zero, in a team as in every step.
TEST(gemm_flushes_denormals_alike_for_any_number_of_rows) {
  Problem problem(9, 20, 160, {DType::kBf16, true}, MatrixKind::kRow);
  for (size_t i = 0; i < problem.x.size(); ++i)
    problem.x[i] = bf16_to_float(float_to_bf16(problem.x[i] * (i % 3 == 0 ? 1e-38f : 1e-36f)));
  Team team({-1}, false);
  for (const CpuIsa isa : available_cpu_isas()) {
    const CpuKernels& kernels = cpu_kernels(isa);
    team.run([&](int) {
      const std::vector<float> together = multiply(problem, kernels, 0, 9);
      for (int64_t row = 0; row < 9; ++row) {
        const std::vector<float> alone = multiply(problem, kernels, row, 1);
        EXPECT(std::memcmp(alone.data(), together.data() + row * 20, 20 * sizeof(float)) == 0);
      }
    });
  }
}

TEST(gemm_writes_only_its_panels_and_adds_bias_then_residual) {
  for (const CpuIsa isa : available_cpu_isas()) {
    const CpuKernels& kernels = cpu_kernels(isa);
    const Problem problem(3, 75, 48, {DType::kF32, false}, MatrixKind::kColumn);
    const std::vector<float> plain = multiply(problem, kernels, 0, 3);
    std::vector<uint32_t> memory;
    const ActTiles acts = problem.pack(kernels, memory, 0, 3);
    const std::vector<float> bias = random_values(5, 80, 1.0f), before = random_values(6, 3 * 90, 1.0f);
    for (const GemmOutput output : {GemmOutput::kStore, GemmOutput::kResidual}) {
      std::vector<float> out = before;
      GemmArgs args = problem.args(acts);
      args.panel_begin = 1;
      args.bias = bias.data();
      args.output = output;
      args.out = out.data();
      args.out_stride = 90;
      kernels.gemm(args);
      for (int64_t row = 0; row < 3; ++row)
        for (int64_t i = 0; i < 90; ++i) {
          const float old = before[row * 90 + i];
          float expected = old;
          if (i >= 16 && i < 75) {
            const float sum = plain[row * 75 + i] + bias[i];
            expected = output == GemmOutput::kResidual ? old + sum : sum;
          }
          EXPECT_EQ(out[row * 90 + i], expected);
        }
    }
  }
}

TEST(gemm_applies_activations_without_gates) {
  for (const CpuIsa isa : available_cpu_isas()) {
    const CpuKernels& kernels = cpu_kernels(isa);
    for (const Kind& kind : kKinds) {
      for (const Activation activation :
           {Activation::kGelu, Activation::kRelu, Activation::kTanh, Activation::kXielu}) {
        for (const int64_t n : {5, 16, 37, 48}) {
          const int64_t rows = 11, k = 20;
          const Problem problem(rows, n, k, kind, MatrixKind::kColumn);
          const std::vector<float> bias = random_values(5, (n + 15) / 16 * 16, 1.0f);
          std::vector<uint32_t> memory, activated_memory;
          const ActTiles acts = problem.pack(kernels, memory, 0, rows);
          GemmArgs args = problem.args(acts);
          args.output = GemmOutput::kActivated;
          args.activation = activation;
          args.xielu = {0.7f, 0.4f, 0.9f};
          args.bias = bias.data();
          args.gated = plain_act_tiles(kernels, acts.format, rows, (n + 1) / 2 * 2, row_parallel_parts(n));
          activated_memory.assign(static_cast<size_t>(rows * args.gated.words), 0x7fc07fc0u);
          args.gated.data = activated_memory.data();
          kernels.gemm(args);
          for (int64_t row = 0; row < rows; ++row)
            for (int64_t i = 0; i < (n + 1) / 2 * 2; ++i) {
              double sum = i < n ? bias[i] : 0;
              for (int64_t j = 0; i < n && j < k; ++j)
                sum += static_cast<double>(problem.x[row * k + j]) * problem.weights[i * k + j];
              double wanted = i < n ? reference::activation(activation, sum) : 0;
              if (activation == Activation::kXielu) wanted = reference::xielu(0.7, 0.4, 0.9, i < n ? sum : 0);
              EXPECT_NEAR(act_value(args.gated, row, i), wanted,
                          (kind.is_rounded ? 0.005 : 2e-6) * std::abs(wanted) + 2e-5);
            }
        }
      }
    }
  }
}

TEST(gemm_applies_every_gate_activation) {
  for (const CpuIsa isa : available_cpu_isas()) {
    const CpuKernels& kernels = cpu_kernels(isa);
    for (const Kind& kind : kKinds) {
      for (const Activation activation : {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh}) {
        for (const int64_t n : {5, 8, 24, 37, 48}) {
          const int64_t rows = 11, k = 20;
          const Problem problem(rows, n, k, kind, MatrixKind::kColumn, true);
          std::vector<uint32_t> memory, gated_memory;
          const ActTiles acts = problem.pack(kernels, memory, 0, rows);
          GemmArgs args = problem.args(acts);
          args.output = GemmOutput::kGated;
          args.activation = activation;
          const int num_parts = row_parallel_parts(n);
          args.gated = plain_act_tiles(kernels, acts.format, rows, (n + 1) / 2 * 2, num_parts);
          gated_memory.assign(static_cast<size_t>(rows * args.gated.words), 0x7fc07fc0u);
          args.gated.data = gated_memory.data();
          kernels.gemm(args);
          for (int64_t row = 0; row < rows; ++row)
            for (int64_t i = 0; i < (n + 1) / 2 * 2; ++i) {
              const float got = act_value(args.gated, row, i);
              double gate = 0, up = 0;
              for (int64_t j = 0; i < n && j < k; ++j) {
                gate += static_cast<double>(problem.x[row * k + j]) * problem.weights[i * k + j];
                up += static_cast<double>(problem.x[row * k + j]) * problem.up_weights[i * k + j];
              }
              const double wanted = reference::activation(activation, gate) * up;
              const double tolerance = (kind.is_rounded ? 0.005 : 2e-6) * std::abs(wanted) + 2e-5;
              if (!(std::abs(got - wanted) <= tolerance))
                fail(__FILE__, __LINE__,
                     name_of(kind, isa, rows, n, k) + ": got " + show(got) + ", expected " + show(wanted));
            }
        }
      }
    }
  }
}

}  // namespace
}  // namespace capstan::testing
