#pragma once
// Kernels at the shapes of Qwen2.5-1.5B: for measurements, for repeated runs that must have the same bits, and for
// single runs under a profiler.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/gpu/inputs.h"
#include "cuda/kernels.h"

namespace capstan::benchmarks {

// Device memory that a kernel writes.
struct Output {
  void* data = nullptr;
  size_t bytes = 0;
};

// A case in device memory.
struct PreparedCase {
  std::function<void(int)> run;  // `run(i)` enqueues the kernel. The data rotates with i, so that no cache holds it.
  std::vector<Output> outputs;   // of run(0)
};

// The type of an element of the first output.
enum class Element : uint8_t { kFloat, kBf16, kId };

// The double-precision value of one element of the first output.
struct Sample {
  int64_t element = 0;
  double value = 0, tolerance = 0;
};

struct KernelCase {
  std::string name;
  std::string kernel;           // the __global__ function
  double bytes = 0, flops = 0;  // that it reads at least, and computes
  std::function<PreparedCase(cudaStream_t)> prepare;
  Element element = Element::kFloat;
  std::function<Sample(int)> sample;  // the n-th of an endless list; null: no reference
};

struct Layer {
  const char* name;
  int64_t rows, cols;
  GemmOutput output;
  bool uses_parts;  // GemmOutput::kParts with few tokens
};
const std::vector<Layer>& layers();

// kGemv: few tokens, fused with the norm before it (if any). kWgmma: many tokens on compute capability 9.0.
enum class GemmKernel : uint8_t { kGemm, kGemv, kWgmma };
bool has_wgmma();
DeviceResources device_resources();

// `code_bits`: weights as `--quantization int8` (8) or `int4` (4) keeps them, without reference values; 16 = bf16.
KernelCase gemm_case(const Layer& layer, int tokens, GemmKernel kernel, int code_bits = 16);
// q, k and v of one token in one kernel: norm, product, RoPE and the cache entries.
KernelCase heads_case();
// `count` queries at the end of each of `num_seqs` sequences, with 12 heads and 2 KV heads, split as the engine does.
struct AttentionShape {
  int num_seqs = 0, context = 0, count = 1;
  bool is_wgmma = false, is_fp8 = false;
  int head_dim = 128;
};
KernelCase attention_case(const AttentionShape& shape);
KernelCase sampling_case(int rows, const char* name, const SampleRow& like);
KernelCase embed_case(int tokens);
KernelCase norm_case(int tokens, bool is_row_major);
KernelCase add_norm_case(int tokens);
KernelCase qkv_case(int tokens);
KernelCase head_squares_case(int tokens);  // for norms over all heads
KernelCase logits_case(int num_rows);
// The inputs of 35 layers with 256 values each (Gemma 4 E2B).
KernelCase layer_inputs_case(int tokens);

// The kernels of a mixture of 128 experts, 8 per token, with sizes of 2,048 and 768, and those of an adapter of
// rank 16.
std::vector<KernelCase> expert_cases(int tokens);

// The recurrent layer of Qwen3.5-9B between its projections.
KernelCase recurrent_case(int num_seqs, int tokens_per_seq);
// An adapter of rank 16: its updates of a product of 1,536 by 1,536 and of the embedding, and the gates of an MLP.
std::vector<KernelCase> lora_cases(int num_tokens);

// All cases whose repeated runs are compared, one or more per kernel.
std::vector<KernelCase> repeated_cases();

}  // namespace capstan::benchmarks
