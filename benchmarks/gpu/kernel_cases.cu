// Products, and the list of all cases.
#include "benchmarks/gpu/kernel_cases.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>

#include "benchmarks/gpu/case_parts.h"
#include "benchmarks/gpu/coded_weights.h"
#include "cuda/wgmma_layout.h"

namespace capstan::benchmarks {
namespace {

const char* kernel_name(GemmKernel kernel) {
  return kernel == GemmKernel::kGemm ? "gemm" : kernel == GemmKernel::kGemv ? "gemv" : "wgmma";
}

double silu(double x) {
  return x / (1 + std::exp(-x));
}

// Buffers of a product, which live as long as the case.
struct Product {
  int64_t rows, cols, tokens;
  DepthSplit split, gated_split;
  int64_t elements, copies;
  DeviceBuffer weights, acts, out, gated, hidden, norm, flags;
  ActMaps maps;
  std::optional<CodedWeights> coded;  // in place of weights
};

struct GemmInputs {
  Pattern weights = bf16_pattern(kWeights, 0.015625f), acts = bf16_pattern(kActs, 1), hidden = float_pattern(kHidden),
          norm = float_pattern(kNorm), before = float_pattern(kBefore);
};

// The inputs of a product for one token, in memory order of K, as doubles.
std::vector<double> product_acts(const GemmInputs& in, int64_t token, int64_t cols, const DepthSplit& split,
                                 bool is_row_major, bool is_normed) {
  std::vector<double> acts(static_cast<size_t>(split.padded()), 0.0);
  if (!is_normed) {
    for (int64_t k = 0; k < split.padded(); ++k)
      acts[static_cast<size_t>(k)] = bf16_at(in.acts, act_index(is_row_major, token, k, split.padded()));
    return acts;
  }
  double square = 0;
  for (int64_t k = 0; k < cols; ++k) {
    const double value = float_at(in.hidden, token * cols + k);
    square += value * value;
  }
  const double scale = 1 / std::sqrt(square / static_cast<double>(cols) + 1e-6);
  for (int64_t k = 0; k < cols; ++k)
    acts[static_cast<size_t>(split.place(k))] = bf16_to_float(
        float_to_bf16(static_cast<float>(float_at(in.hidden, token * cols + k) * scale * float_at(in.norm, k))));
  return acts;
}

// The sum over the given range of K, and the sum of magnitudes.
std::pair<double, double> product_sum(const GemmInputs& in, const std::vector<double>& acts, int64_t row,
                                      const DepthSplit& split, int64_t begin, int64_t end) {
  double sum = 0, size = 1;
  for (int64_t k = begin; k < end; ++k) {
    const double term = acts[static_cast<size_t>(k)] * bf16_at(in.weights, weight_index(row, k, split.padded()));
    sum += term, size += std::abs(term);
  }
  return {sum, size};
}

}  // namespace

const std::vector<Layer>& layers() {
  static const std::vector<Layer> all = {{"qkv", 2048, 1536, GemmOutput::kStore, true},
                                         {"output", 1536, 1536, GemmOutput::kResidual, true},
                                         {"gate_up", 17920, 1536, GemmOutput::kGated, false},
                                         {"down", 1536, 8960, GemmOutput::kResidual, true},
                                         {"head", 151936, 1536, GemmOutput::kStore, false}};
  return all;
}

bool has_wgmma() {
#if defined(__CUDACC__)
  return supports_gemm_wgmma() && supports_attention_wgmma();
#else
  return true;  // the launchers work at any compute capability of the emulation
#endif
}

DeviceResources device_resources() {
  return {attribute_of(0, cudaDevAttrMultiProcessorCount),
          static_cast<size_t>(attribute_of(0, cudaDevAttrMaxSharedMemoryPerBlockOptin))};
}

KernelCase gemm_case(const Layer& layer, int tokens, GemmKernel kernel, int code_bits) {
  const bool has_codes = code_bits < 16;
  // Plain codes need parts of whole K tiles.
  const int64_t tiny_cols = has_codes ? 256 : 64;
  const int64_t rows = is_tiny ? 64 : layer.rows, cols = is_tiny ? tiny_cols : layer.cols;
  const DepthSplit split = split_depth(cols, cols, row_parallel_parts(cols));
  const DepthSplit gated_split = split_depth(rows / 2, rows / 2, row_parallel_parts(rows / 2));
  const GemmOutput output =
      kernel == GemmKernel::kGemm && layer.uses_parts && tokens <= 64 ? GemmOutput::kParts : layer.output;
  const bool is_row_major = kernel == GemmKernel::kWgmma;
  const bool is_normed = kernel == GemmKernel::kGemv && layer.output != GemmOutput::kResidual;
  KernelCase made;
  made.name = (has_codes ? "int" + std::to_string(code_bits) + " " : "") + kernel_name(kernel) + " " + layer.name +
              " x" + std::to_string(tokens);
  made.kernel = kernel == GemmKernel::kGemm   ? "gemm_kernel"
                : kernel == GemmKernel::kGemv ? "gemv_kernel"
                                              : "gemm_wgmma_kernel";
  made.bytes = static_cast<double>(rows * cols) * (code_bits == 16 ? 2 : code_bits == 8 ? 8.125 / 8 : 4.25 / 8);
  made.flops = 2.0 * static_cast<double>(rows * cols) * tokens;
  made.element = output == GemmOutput::kGated ? Element::kBf16 : Element::kFloat;
  if (!has_codes)
    made.sample = [=](int n) {
      const GemmInputs in;
      const int64_t token = draw(n, 11, tokens);
      const std::vector<double> acts = product_acts(in, token, cols, split, is_row_major, is_normed);
      if (output == GemmOutput::kGated) {
        const int64_t feature = draw(n, 12, rows / 2), row = feature / 8 * 16 + feature % 8;
        const double value = silu(product_sum(in, acts, row, split, 0, split.padded()).first) *
                             product_sum(in, acts, row + 8, split, 0, split.padded()).first;
        return Sample{act_index(is_row_major, token, gated_split.place(feature), gated_split.padded()), value,
                      bf16_tolerance(value)};
      }
      const int64_t row = draw(n, 12, rows), part = output == GemmOutput::kParts ? draw(n, 13, split.parts) : 0;
      const int64_t element = (part * tokens + token) * rows + row;
      const auto [sum, size] =
          output == GemmOutput::kParts
              ? product_sum(in, acts, row, split, part * split.padded_part, (part + 1) * split.padded_part)
              : product_sum(in, acts, row, split, 0, split.padded());
      return Sample{element, sum + (output == GemmOutput::kResidual ? float_at(in.before, element) : 0.0), 1e-5 * size};
    };
  made.prepare = [=](cudaStream_t stream) {
    const GemmInputs in;
    const auto made_buffers = std::make_shared<Product>();
    Product& product = *made_buffers;
    product.elements = round_up(rows, kTileRows) * split.padded();
    product.copies = num_copies(product.elements * code_bits / 8);
    if (has_codes)
      product.coded.emplace(code_bits, rows, split, product.copies, stream);
    else
      product.weights = filled_bf16(product.elements * product.copies, in.weights, stream);
    product.acts = filled_bf16(round_up(tokens, 64) * split.padded(), in.acts, stream);
    product.out = filled_words((output == GemmOutput::kParts ? split.parts : 1) * tokens * rows, in.before, stream);
    product.gated = filled_bf16(round_up(tokens, 64) * gated_split.padded(), in.acts, stream);
    product.hidden = filled_words(tokens * cols, in.hidden, stream);
    product.norm = filled_words(cols, in.norm, stream);
    product.flags = zeros(num_tile_flags(rows, tokens), stream);
    if (kernel == GemmKernel::kWgmma &&
        !make_act_maps(product.maps, product.acts.as<uint16_t>(), round_up(tokens, 64), split.padded()))
      throw Error(ErrorCode::kInternal, "cannot create tensor maps of the activations");
    GemvArgs fused;
    GemmArgs& args = fused.product;
    args.output = output;
    if (output == GemmOutput::kResidual) args.tile_flags = product.flags.as<int32_t>();
    args.acts = product.acts.as<uint16_t>();
    args.num_tokens = tokens;
    args.out = product.out.as<float>();
    args.out_stride = rows;
    args.gated = product.gated.as<uint16_t>();
    args.gated_split = gated_split;
    args.act_maps = &product.maps;
    args.uses_pdl = kernel != GemmKernel::kWgmma && tokens <= 64 && supports_pdl();
    fused.is_normed = is_normed;
    fused.norm.hidden = product.hidden.as<float>();
    fused.norm.num_rows = tokens;
    fused.norm.hidden_size = cols;
    fused.norm.weight = product.norm.as<float>();
    fused.norm.eps = 1e-6f;
    fused.norm.split = split;
    fused.max_blocks = 2 * device_resources().multiprocessors;
    PreparedCase prepared;
    prepared.outputs = {output_of(output == GemmOutput::kGated ? product.gated : product.out)};
    prepared.run = [=](int i) {
      GemvArgs run = fused;
      if (made_buffers->coded)
        run.product.weights = made_buffers->coded->matrix(i % made_buffers->copies);
      else
        run.product.weights = {made_buffers->weights.as<uint16_t>() + i % made_buffers->copies * made_buffers->elements,
                               nullptr, rows, split};
      if (kernel == GemmKernel::kGemm) return launch_gemm(run.product, device_resources(), stream);
      if (kernel == GemmKernel::kWgmma)
        return launch_gemm_wgmma(run.product, device_resources().multiprocessors, stream);
      launch_gemv(run, stream);
    };
    return prepared;
  };
  return made;
}

std::vector<KernelCase> repeated_cases() {
  const auto layer = [](const char* name) {
    return *std::ranges::find_if(layers(), [&](const Layer& one) { return std::string(one.name) == name; });
  };
  const auto size = [](int real, int tiny) { return is_tiny ? tiny : real; };
  std::vector<KernelCase> cases = {
      embed_case(size(256, 3)),
      norm_case(size(64, 3), false),
      norm_case(size(1024, 5), true),
      add_norm_case(size(64, 3)),
      qkv_case(size(64, 3)),
      head_squares_case(size(64, 3)),
      logits_case(size(64, 3)),
      layer_inputs_case(size(64, 3)),
      heads_case(),
      gemm_case(layer("qkv"), 1, GemmKernel::kGemv),
      gemm_case(layer("output"), 1, GemmKernel::kGemv),
      gemm_case(layer("gate_up"), 1, GemmKernel::kGemv),
      gemm_case(layer("down"), 1, GemmKernel::kGemv),
      gemm_case(layer("head"), 1, GemmKernel::kGemv),
      gemm_case(layer("qkv"), 8, GemmKernel::kGemm),
      gemm_case(layer("gate_up"), 8, GemmKernel::kGemm),
      gemm_case(layer("down"), size(64, 17), GemmKernel::kGemm),
      gemm_case(layer("gate_up"), size(64, 17), GemmKernel::kGemm),
      gemm_case(layer("head"), size(64, 17), GemmKernel::kGemm),
      gemm_case(layer("gate_up"), 1, GemmKernel::kGemv, 8),
      gemm_case(layer("down"), 1, GemmKernel::kGemv, 4),
      gemm_case(layer("down"), size(64, 17), GemmKernel::kGemm, 8),
      gemm_case(layer("gate_up"), 8, GemmKernel::kGemm, 4),
      attention_case({1, size(1024, 270)}),
      attention_case({size(64, 3), size(1024, 70)}),
      attention_case({size(2048, 1030), size(200, 5)}),
      attention_case({1, size(1024, 70), size(1024, 70)}),
      attention_case({size(64, 3), size(1024, 70), 1, false, true}),
      attention_case({size(64, 3), size(1024, 70), 1, false, false, 256}),
  };
  if (has_wgmma()) {
    for (const auto& [name, tokens, tiny_tokens] :
         std::vector<std::tuple<const char*, int, int>>{{"qkv", 65, 65}, {"down", 256, 66}, {"gate_up", 1024, 67}})
      cases.push_back(gemm_case(layer(name), size(tokens, tiny_tokens), GemmKernel::kWgmma));
    cases.push_back(gemm_case(layer("down"), size(256, 66), GemmKernel::kWgmma, 8));
    cases.push_back(gemm_case(layer("gate_up"), size(1024, 67), GemmKernel::kWgmma, 4));
    cases.push_back(attention_case({1, size(1024, 70), size(1024, 70), true}));
    cases.push_back(attention_case({1, size(1024, 70), size(1024, 70), true, false, 256}));
  }
  for (const int tokens : {size(64, 3), size(1024, 40)})
    for (KernelCase& one : expert_cases(tokens))
      cases.push_back(std::move(one));
  cases.push_back(recurrent_case(size(64, 3), 1));
  cases.push_back(recurrent_case(2, size(512, 9)));
  for (KernelCase& one : lora_cases(size(64, 3)))
    cases.push_back(std::move(one));
  SampleRow greedy, drawn, top_p, top_k;
  greedy.temperature = 0;
  drawn.temperature = top_p.temperature = top_k.temperature = 0.8f;
  top_p.top_p = 0.9f, top_k.top_k = 40;
  const int rows = size(64, 2);
  cases.push_back(sampling_case(rows, "greedy", greedy));
  cases.push_back(sampling_case(rows, "temperature", drawn));
  cases.push_back(sampling_case(rows, "top_p", top_p));
  cases.push_back(sampling_case(rows, "top_k", top_k));
  return cases;
}

}  // namespace capstan::benchmarks
