// The CUDA backend on the host runtime: index arithmetic exhaustively, and a small decoder through every kernel against the double-precision reference.
#include <algorithm>
#include <cstring>
#include <set>

#include "cuda/backend.h"
#include "cuda/layout.h"
#include "cuda/memory.h"
#include "cuda/sampling.h"
#include "native/backend/cpu/sample.h"
#include "native/backend/cuda_library.h"
#include "native/backend/registry.h"
#include "test/native/cuda_host/cuda_host.h"
#include "test/native/decoder_fixture.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

using namespace cuda;

// Every element has a place of its own, and together they fill the array.
template <class Index>
bool is_bijection(int64_t rows, int64_t cols, const Index& index) {
  std::vector<bool> is_taken(static_cast<size_t>(rows * cols));
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t col = 0; col < cols; ++col) {
      const int64_t place = index(row, col);
      if (place < 0 || place >= rows * cols || is_taken[static_cast<size_t>(place)]) return false;
      is_taken[static_cast<size_t>(place)] = true;
    }
  return true;
}

TEST(cuda_layouts_give_every_element_a_place) {
  for (const int64_t k : {32, 64, 96, 1536}) {
    EXPECT(is_bijection(48, k, [&](int64_t row, int64_t col) { return weight_index(row, col, k); }));
    EXPECT(is_bijection(24, k, [&](int64_t row, int64_t col) { return operand_index(row, col, k); }));
  }
  for (const int64_t cols : {1536, 8960, 896, 64, 72, 45, 48, 2}) {
    const int parts = row_parallel_parts(cols);
    const DepthSplit split = split_depth(cols, cols, parts);
    EXPECT(split.parts == parts && split.padded_part % kTileDepth == 0 && split.parts * split.part_cols == cols);
    std::set<int64_t> places;
    for (int64_t k = 0; k < cols; ++k) {
      places.insert(split.place(k));
      EXPECT(split.place(k) < split.padded());
    }
    EXPECT(static_cast<int64_t>(places.size()) == cols);
  }
  const KvLayout layout = make_kv_layout(64, 3, 40);
  EXPECT(layout.k_dim == 64 && layout.v_dim == 40);
  std::set<int64_t> places;
  for (int64_t slot = 0; slot < 128; ++slot)
    for (int head = 0; head < 3; ++head) {
      for (int dim = 0; dim < layout.k_dim; ++dim) places.insert(layout.key(slot, head, dim));
      for (int dim = 0; dim < layout.v_dim; ++dim) places.insert(layout.value(slot, head, dim));
    }
  EXPECT(static_cast<int64_t>(places.size()) == 2 * layout.block_elements() && *places.rbegin() == 2 * layout.block_elements() - 1);
}

// The operands of one instruction are where its lanes look for them (PTX manual, m16n8k16): lane 4 g + t has rows g and g + 8.
TEST(cuda_layouts_follow_the_instruction) {
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int element = 0; element < 8; ++element) {
      const int row = g + element / 2 % 2 * 8, col = 2 * t + element % 2 + element / 4 * 8;
      EXPECT(weight_index(row, col, 32) == lane * 8 + element);
      EXPECT(operand_index(g, 2 * t + element % 2 + element / 2 % 2 * 8 + element / 4 * 16, 32) == lane * 8 + element);
    }
  }
}

std::vector<int32_t> random_ids(uint64_t seed, int count, int64_t vocab_size) {
  std::vector<int32_t> ids;
  for (const float value : random_values(seed, count, 1000.0f)) ids.push_back(static_cast<int32_t>(std::abs(value)) % static_cast<int32_t>(vocab_size));
  return ids;
}

RunOptions cuda_options(DType dtype) {
  RunOptions options;
  options.weight_dtype = options.kv_cache_dtype = dtype;
  options.block_size = 64;
  options.make_backend = [](const RunOptions& run, std::unique_ptr<Comm> comm) {
    CudaBackendOptions backend;
    backend.weight_dtype = run.weight_dtype;
    return make_cuda_backend(backend, std::move(comm));
  };
  return options;
}

double worst_difference(DecoderFixture& fixture, const RunOptions& options, const std::vector<std::vector<int32_t>>& prompts, size_t num_top) {
  const LogProbs got = fixture.run(options, prompts);
  double worst = 0;
  for (size_t s = 0; s < prompts.size(); ++s) {
    auto cache = fixture.reference().make_cache();
    for (size_t i = 0; i < prompts[s].size(); ++i) {
      const reference::Row wanted = fixture.reference().step(cache, prompts[s][i]);
      reference::Row sorted = wanted;
      std::sort(sorted.rbegin(), sorted.rend());
      for (size_t n = 0; n < wanted.size(); ++n) {
        if (wanted[n] < sorted[std::min(num_top, sorted.size()) - 1]) continue;
        const double difference = std::abs(got[s][i][n] - wanted[n]);
        if (!(difference <= worst)) worst = difference;
      }
    }
  }
  return worst;
}

const std::vector<DecoderShape>& shapes() {
  static const std::vector<DecoderShape> all = [] {
    std::vector<DecoderShape> list;
    DecoderShape shape;  // GQA 2, tied embeddings
    list.push_back(shape);
    shape = {};  // odd sizes, GQA 7, all biases
    shape.hidden_size = 72, shape.intermediate_size = 112, shape.num_heads = 7, shape.num_kv_heads = 1, shape.head_dim = 24, shape.rotary_dim = 24;
    shape.vocab_size = 101, shape.has_bias = true;
    list.push_back(shape);
    shape = {};  // QK norm, window, partial rotary, untied head, GELU
    shape.num_heads = 3, shape.num_kv_heads = 3, shape.head_dim = 40, shape.rotary_dim = 20, shape.has_qk_norm = true, shape.window = 37;
    shape.is_tied = false, shape.activation = Activation::kGelu;
    list.push_back(shape);
    shape = {};  // odd K everywhere
    shape.hidden_size = 45, shape.intermediate_size = 51, shape.num_heads = 3, shape.num_kv_heads = 1, shape.head_dim = 15, shape.rotary_dim = 14;
    shape.activation = Activation::kGeluTanh;
    list.push_back(shape);
    return list;
  }();
  return all;
}

TEST(cuda_equals_reference) {
  for (const DecoderShape& base : shapes())
    for (const DType dtype : {DType::kF16, DType::kBf16}) {
      DecoderShape shape = base;
      shape.file_dtype = dtype;
      DecoderFixture fixture(shape);
      const std::vector<std::vector<int32_t>> prompts = {random_ids(1, 70, shape.vocab_size), random_ids(2, 5, shape.vocab_size)};
      const double worst = worst_difference(fixture, cuda_options(dtype), prompts, 5);
      // Activations of narrow models lose more to bf16 than contract 4 allows wide ones; f16 shows that the arithmetic is right.
      const double limit = dtype == DType::kF16 ? 0.02 : 0.25;
      if (!(worst < limit)) fail(__FILE__, __LINE__, std::string(dtype_name(dtype)) + " head_dim " + std::to_string(shape.head_dim) + ": difference " + show(worst));
    }
}

// Samples rows of one array of logits, without a model.
std::vector<SampleResult> sample_on_device(const std::vector<float>& logits, int64_t num_token_ids, const std::vector<SampleRow>& rows) {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
  std::vector<SampleResult> results(rows.size());
  {
    const DeviceBuffer device_logits(logits.size() * sizeof(float), "logits");
    check(cudaMemcpyAsync(device_logits.as<void>(), logits.data(), logits.size() * sizeof(float), cudaMemcpyHostToDevice, stream), "logits");
    DeviceSampler sampler(static_cast<int64_t>(logits.size()), num_token_ids, static_cast<int>(rows.size()));
    sampler.sample(device_logits.as<float>(), rows, results, stream);
  }
  check(cudaStreamDestroy(stream), "a stream");
  return results;
}

bool is_same(const LogProbs& a, const LogProbs& b) {
  for (size_t s = 0; s < a.size(); ++s)
    for (size_t i = 0; i < a[s].size(); ++i)
      if (std::memcmp(a[s][i].data(), b[s][i].data(), a[s][i].size() * sizeof(float)) != 0) return false;
  return true;
}

TEST(cuda_batch_chunks_ranks_and_order_change_no_bit) {
  for (const DecoderShape& base : shapes()) {
    DecoderShape shape = base;
    shape.file_dtype = DType::kBf16;
    DecoderFixture fixture(shape);
    const std::vector<std::vector<int32_t>> prompts = {random_ids(1, 1, shape.vocab_size), random_ids(2, 65, shape.vocab_size), random_ids(3, 290, shape.vocab_size)};
    const RunOptions together = cuda_options(DType::kBf16);
    const LogProbs wanted = fixture.run(together, prompts);
    const auto expect_same = [&](const RunOptions& options, const std::string& what) {
      if (!is_same(wanted, fixture.run(options, prompts))) fail(__FILE__, __LINE__, "head_dim " + std::to_string(shape.head_dim) + ": differs with " + what);
    };
    RunOptions changed = together;
    changed.max_num_seqs_per_step = 1;
    expect_same(changed, "one sequence at a time");
    changed = together;
    changed.prefill_chunk_size = 23;
    changed.block_size = 128;
    expect_same(changed, "chunks of 23, blocks of 128");
    cuda_host::set_seed(99);
    expect_same(together, "another order of threads");
    cuda_host::set_seed(1);
    for (const int world_size : {2, 4}) {
      if (shape.num_heads % world_size != 0 || shape.intermediate_size % (16 * world_size) != 0) continue;
      changed = together;
      changed.world_size = world_size;
      expect_same(changed, std::to_string(world_size) + " ranks");
    }
  }
}

TEST(cuda_missing_barrier_is_noticed) {
  DecoderShape shape;
  shape.file_dtype = DType::kF16;
  DecoderFixture fixture(shape);
  const std::vector<std::vector<int32_t>> prompts = {random_ids(1, 40, shape.vocab_size)};
  cuda_host::skip_barrier(0);
  const double worst = worst_difference(fixture, cuda_options(DType::kF16), prompts, 5);
  cuda_host::skip_barrier(-1);
  EXPECT(!(worst < 0.02));
}

TEST(cuda_frees_what_it_took) {
  const size_t before = cuda_host::device_memory_in_use();
  DecoderShape shape;
  shape.file_dtype = DType::kBf16;
  DecoderFixture fixture(shape);
  fixture.run(cuda_options(DType::kBf16), {random_ids(1, 9, shape.vocab_size)});
  EXPECT_EQ(cuda_host::device_memory_in_use(), before);
}

TEST(cuda_out_of_memory_is_told) {
  DecoderShape shape;
  shape.file_dtype = DType::kBf16;
  DecoderFixture fixture(shape);
  cuda_host::set_device_memory(200'000);
  EXPECT_ERROR("out_of_memory", fixture.run(cuda_options(DType::kBf16), {random_ids(1, 9, shape.vocab_size)}));
  cuda_host::set_device_memory(size_t{1} << 30);
}

TEST(cuda_library_says_why_it_is_not_used) {
  EXPECT(open_cuda_library("/nowhere/capstan_cuda.so").reason.find("cannot be opened") != std::string::npos);
  EXPECT(open_cuda_library("libm.so.6").reason.find("is no CUDA backend") != std::string::npos);
  DeviceOptions options;
  options.device = "cuda:0,x";
  EXPECT_ERROR("invalid_argument", make_device_group(options));
  options.device = "tpu";
  EXPECT_ERROR("invalid_argument", make_device_group(options));
  options.device = "auto";
  const DeviceGroup group = make_device_group(options);
  EXPECT(group.backends[0]->info().name == "cpu" && group.notes.size() == 1 && group.notes[0].find("running on the CPU") == 0);
}

TEST(cuda_lost_device_is_not_called_again) {
  DecoderShape shape;
  shape.file_dtype = DType::kBf16;
  DecoderFixture fixture(shape);
  cuda_host::break_device(cudaErrorIllegalAddress);
  EXPECT_ERROR("device_lost", fixture.run(cuda_options(DType::kBf16), {random_ids(1, 9, shape.vocab_size)}));
  cuda_host::repair_device();
  EXPECT_ERROR("device_lost", fixture.run(cuda_options(DType::kBf16), {random_ids(1, 9, shape.vocab_size)}));
  is_device_lost() = false;
}

// Every way to sample, against the CPU's own on the same logits: the embedding's rows, as one layer without attention would give them.
TEST(cuda_samples_like_the_cpu) {
  constexpr int64_t kVocab = 1000;
  const std::vector<float> logits = random_values(5, kVocab, 4.0f);
  const std::vector<int32_t> prompt_ids = {3, 17, 500}, banned = {9, 10};
  const std::vector<std::pair<int32_t, int32_t>> counts = {{17, 2}, {40, 1}, {990, 5}};
  const std::vector<std::pair<int32_t, float>> bias = {{4, 3.5f}, {5, -80.0f}};
  std::vector<uint32_t> mask(kVocab / 32 + 1, 0x5a5a5a5a);
  std::vector<SampleRow> rows;
  for (int i = 0; i < 200; ++i) {
    SampleRow row;
    row.logits_row = 0;
    row.num_logprobs = i % 4 == 0 ? i % 30 : -1;
    row.temperature = i % 5 == 0 ? 0.0f : 0.3f + static_cast<float>(i % 7) * 0.4f;
    row.top_k = i % 3 == 0 ? 1 + i % 60 : 0;
    row.top_p = i % 4 == 1 ? 0.1f + static_cast<float>(i % 9) * 0.1f : 1.0f;
    row.min_p = i % 6 == 2 ? 0.05f : 0.0f;
    row.presence_penalty = i % 8 == 3 ? 0.7f : 0.0f;
    row.frequency_penalty = i % 9 == 4 ? 0.4f : 0.0f;
    row.repetition_penalty = i % 7 == 5 ? 1.3f : 1.0f;
    row.seed = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15ull;
    row.position = static_cast<uint32_t>(i);
    row.counts = {prompt_ids, counts};
    if (i % 5 == 1) row.logit_bias = bias;
    if (i % 5 == 2) row.banned_ids = banned;
    if (i % 5 == 3) row.allowed_mask = mask;
    rows.push_back(row);
  }
  const std::vector<SampleResult> got = sample_on_device(logits, kVocab - 7, rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    SampleResult wanted;
    sample_row(kPortableKernels, logits, kVocab - 7, rows[i], wanted);
    EXPECT_EQ(got[i].token_id, wanted.token_id);
    if (rows[i].num_logprobs < 0) continue;
    EXPECT_EQ(got[i].rank, wanted.rank);
    EXPECT_NEAR(got[i].logprob, wanted.logprob, 1e-4);
    EXPECT_EQ(got[i].top.size(), wanted.top.size());
    for (size_t top = 0; top < wanted.top.size(); ++top) EXPECT_EQ(got[i].top[top].token_id, wanted.top[top].token_id);
  }
}

}  // namespace
}  // namespace capstan::testing
