// The complete CPU backend: a small decoder through every op, compared with the double-precision reference, and tests
// that the bits do not depend on batch, threads, ranks or instruction set.
#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>

#include "native/backend/cpu/cpu_backend.h"
#include "native/backend/cpu/isa.h"
#include "native/base/number.h"
#include "test/native/decoder_fixture.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

std::vector<int32_t> random_ids(uint64_t seed, int count, int64_t vocab_size) {
  std::vector<int32_t> ids;
  for (const float value : random_values(seed, count, 1000.0f))
    ids.push_back(static_cast<int32_t>(std::abs(value)) % static_cast<int32_t>(vocab_size));
  return ids;
}

// Returns the largest difference to the reference over all rows of all prompts, for the `num_top` most likely ids.
double worst_difference(const DecoderShape& shape, const RunOptions& options,
                        const std::vector<std::vector<int32_t>>& prompts, size_t num_top) {
  DecoderFixture fixture(shape);
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

TEST(backend_refuses_sizes_above_its_limits_before_loading) {
  CpuBackendOptions options;
  options.cpus = {-1};
  const std::unique_ptr<Backend> backend = make_cpu_backend(options, nullptr);
  const auto check = [&](int head_dim, int conv_taps) {
    DeviceModel model;
    model.head_dim = head_dim, model.recurrent.conv_taps = conv_taps;
    model.kv_groups = {{0, 1}};
    backend->check_model(model, 0);
  };
  check(512, 16);
  EXPECT_ERROR("unsupported_model", check(513, 16));
  EXPECT_ERROR("unsupported_model", check(512, 17));
}

std::string case_name(const DecoderShape& shape, CpuIsa isa, DType dtype) {
  return std::string(cpu_isa_name(isa)) + " " + dtype_name(dtype) + " heads " + std::to_string(shape.num_heads) + "/" +
         std::to_string(shape.num_kv_heads) + " of " + std::to_string(shape.head_dim);
}

const std::vector<DecoderShape>& shapes() {
  static const std::vector<DecoderShape> all = [] {
    std::vector<DecoderShape> list;
    DecoderShape shape;  // GQA 2, tied embeddings
    list.push_back(shape);
    shape = {};  // odd sizes, QKV bias, GQA 7, all biases
    shape.hidden_size = 72, shape.intermediate_size = 112, shape.num_heads = 7, shape.num_kv_heads = 1,
    shape.head_dim = 24, shape.rotary_dim = 24;
    shape.vocab_size = 101, shape.has_bias = true;
    list.push_back(shape);
    shape = {};  // QK norm, window, partial rotary, untied head, GELU
    shape.num_heads = 3, shape.num_kv_heads = 3, shape.head_dim = 40, shape.rotary_dim = 20, shape.has_qk_norm = true,
    shape.window = 37;
    shape.is_tied = false, shape.activation = Activation::kGelu;
    list.push_back(shape);
    shape = {};  // odd K everywhere
    shape.hidden_size = 45, shape.intermediate_size = 51, shape.num_heads = 3, shape.num_kv_heads = 1,
    shape.head_dim = 15, shape.rotary_dim = 14;
    shape.activation = Activation::kGeluTanh;
    list.push_back(shape);
    return list;
  }();
  return all;
}

TEST(backend_matches_the_reference) {
  for (const DecoderShape& base : shapes()) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
      for (const CpuIsa isa : available_cpu_isas()) {
        DecoderShape shape = base;
        shape.file_dtype = dtype;
        RunOptions options;
        options.isa = isa;
        options.weight_dtype = dtype;
        options.kv_cache_dtype = DType::kF32;
        options.compute_f32 = true;
        const std::vector<std::vector<int32_t>> prompts = {random_ids(1, 70, shape.vocab_size),
                                                           random_ids(2, 5, shape.vocab_size)};
        const double worst = worst_difference(shape, options, prompts, 1000);
        if (!(worst < 2e-4)) fail(__FILE__, __LINE__, case_name(shape, isa, dtype) + ": difference " + show(worst));
      }
    }
  }
}

bool is_same(const LogProbs& a, const LogProbs& b) {
  for (size_t s = 0; s < a.size(); ++s)
    for (size_t i = 0; i < a[s].size(); ++i)
      if (std::memcmp(a[s][i].data(), b[s][i].data(), a[s][i].size() * sizeof(float)) != 0) return false;
  return true;
}

const char* format_name(WeightFormat format) {
  if (format == WeightFormat::kDType) return "";
  return format == WeightFormat::kInt8 ? " int8" : " int4";
}

// AMX adds products of bf16 with bf16 in a different order.
bool has_own_order(const RunOptions& options) {
  return cpu_kernels(options.isa).bf16_act_format == ActFormat::kBf16Blocks && options.weight_dtype == DType::kBf16 &&
         !options.compute_f32 && options.format == WeightFormat::kDType;
}

// Returns one instruction set for each order of sums that this machine can run with these options.
std::vector<CpuIsa> isas_by_order(RunOptions options) {
  std::vector<CpuIsa> isas;
  for (const bool is_own : {false, true})
    for (const CpuIsa isa : available_cpu_isas()) {
      options.isa = isa;
      if (has_own_order(options) != is_own) continue;
      isas.push_back(isa);
      break;
    }
  return isas;
}

// Calls check(shape, options, name) for every shape, number type, weight format, activation type, order of sums, and
// for a cache in the number type and in 8 bits.
template <class Check>
void for_each_kind(Check check) {
  for (const DecoderShape& base : shapes()) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
      for (const bool compute_f32 : {false, true}) {
        if (compute_f32 && dtype != DType::kBf16) continue;
        DecoderShape shape = base;
        shape.file_dtype = dtype;
        RunOptions options;
        options.weight_dtype = options.kv_cache_dtype = dtype;
        options.compute_f32 = compute_f32;
        for (const WeightFormat format : {WeightFormat::kDType, WeightFormat::kInt8, WeightFormat::kInt4}) {
          if (format != WeightFormat::kDType && dtype != DType::kBf16) continue;
          options.format = format;
          for (const DType cache : {dtype, DType::kInt8}) {
            if (cache != dtype && (format != WeightFormat::kDType || dtype == DType::kF16)) continue;
            options.kv_cache_dtype = cache;
            for (const CpuIsa isa : isas_by_order(options)) {
              options.isa = isa;
              check(shape, options,
                    case_name(shape, isa, dtype) + format_name(format) + (compute_f32 ? " computed in f32" : "") +
                        (cache != dtype ? " with a cache in int8" : ""));
            }
          }
        }
      }
    }
  }
}

TEST(backend_instruction_sets_of_one_order_give_the_same_bits) {
  for_each_kind([](const DecoderShape& shape, RunOptions options, const std::string& name) {
    DecoderFixture fixture(shape);
    const std::vector<std::vector<int32_t>> prompts = {random_ids(3, 90, shape.vocab_size),
                                                       random_ids(4, 3, shape.vocab_size)};
    const LogProbs first = fixture.run(options, prompts);
    const bool is_own = has_own_order(options);
    for (const CpuIsa isa : available_cpu_isas()) {
      options.isa = isa;
      if (has_own_order(options) != is_own) continue;
      if (!is_same(first, fixture.run(options, prompts)))
        fail(__FILE__, __LINE__, name + " differs with " + cpu_isa_name(isa));
    }
  });
}

TEST(backend_bits_do_not_depend_on_batch_chunk_or_threads) {
  for_each_kind([](const DecoderShape& shape, RunOptions options, const std::string& name) {
    DecoderFixture fixture(shape);
    std::vector<std::vector<int32_t>> prompts;
    for (const int size : {1, 17, 64, 65, 130})
      prompts.push_back(random_ids(size, size, shape.vocab_size));
    const LogProbs together = fixture.run(options, prompts);
    RunOptions alone = options;
    alone.max_num_seqs_per_step = 1;
    if (!is_same(together, fixture.run(alone, prompts)))
      fail(__FILE__, __LINE__, name + ": one sequence at a time differs");
    for (const int chunk : {1, 7, 64}) {
      RunOptions chunked = options;
      chunked.prefill_chunk_size = chunk;
      chunked.block_size = chunk == 7 ? 48 : 16;
      if (!is_same(together, fixture.run(chunked, prompts)))
        fail(__FILE__, __LINE__, name + ": chunks of " + show(chunk) + " differ");
    }
    for (const int threads : {2, 3}) {
      RunOptions threaded = options;
      threaded.num_threads = threads;
      if (!is_same(together, fixture.run(threaded, prompts)))
        fail(__FILE__, __LINE__, name + ": " + show(threads) + " threads differ");
    }
  });
}

// A window masks the keys that no row sees, whether their blocks exist or not.
TEST(backend_bits_do_not_depend_on_blocks_that_no_row_sees) {
  for (const int window : {1, 37, 100}) {
    DecoderShape shape;
    shape.window = window;
    DecoderFixture fixture(shape);
    const std::vector<std::vector<int32_t>> prompts = {random_ids(6, 240, shape.vocab_size),
                                                       random_ids(7, 131, shape.vocab_size)};
    RunOptions options;
    for (const CpuIsa isa : available_cpu_isas())
      for (const int chunk : {19, 1 << 20}) {
        options.isa = isa, options.prefill_chunk_size = chunk, options.keeps_unseen_blocks = true;
        const LogProbs masked = fixture.run(options, prompts);
        options.keeps_unseen_blocks = false;
        EXPECT(is_same(masked, fixture.run(options, prompts)));
      }
  }
}

// Sequences of several chunks of keys: with more threads, one step's chunks are split over them.
TEST(backend_bits_of_long_sequences_do_not_depend_on_chunk_or_threads) {
  DecoderShape shape;
  shape.window = 1500, shape.max_model_len = 3500;
  for (const auto& [dtype, cache] :
       {std::pair{DType::kF32, DType::kF32}, {DType::kBf16, DType::kBf16}, {DType::kBf16, DType::kInt8}}) {
    shape.file_dtype = dtype;
    DecoderFixture fixture(shape);
    RunOptions options;
    options.isa = available_cpu_isas()[0];
    options.weight_dtype = dtype;
    options.kv_cache_dtype = cache;
    const std::vector<std::vector<int32_t>> prompts = {random_ids(6, 3'150, shape.vocab_size),
                                                       random_ids(7, 1'040, shape.vocab_size)};
    const LogProbs whole = fixture.run(options, prompts);
    EXPECT(is_same({whole[1]}, fixture.run(options, {prompts[1]})));
    for (const auto& [threads, chunk] : {std::pair{1, 700}, {2, 7}, {3, 6}, {3, 1 << 20}}) {
      options.num_threads = threads;
      options.prefill_chunk_size = chunk;
      if (!is_same(whole, fixture.run(options, prompts)))
        fail(__FILE__, __LINE__,
             std::string(dtype_name(cache)) + ": " + show(threads) + " threads, chunks of " + show(chunk) + " differ");
    }
  }
}

TEST(backend_bits_do_not_depend_on_ranks) {
  for (const bool has_bias : {false, true}) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
      DecoderShape shape;
      shape.num_heads = 8, shape.num_kv_heads = 2, shape.intermediate_size = 128, shape.has_bias = has_bias,
      shape.is_tied = !has_bias;
      shape.file_dtype = dtype;
      RunOptions options;
      options.weight_dtype = options.kv_cache_dtype = dtype;
      DecoderFixture fixture(shape);
      const std::vector<std::vector<int32_t>> prompts = {random_ids(5, 40, shape.vocab_size),
                                                         random_ids(6, 9, shape.vocab_size)};
      for (const WeightFormat format : {WeightFormat::kDType, WeightFormat::kInt8, WeightFormat::kInt4}) {
        options.format = format;
        for (const CpuIsa isa : isas_by_order(options)) {
          options.isa = isa;
          options.world_size = options.num_threads = 1;
          const LogProbs one = fixture.run(options, prompts);
          for (const int world_size : {2, 4, 8}) {
            options.world_size = world_size;
            options.num_threads = world_size == 2 ? 2 : 1;
            if (!is_same(one, fixture.run(options, prompts)))
              fail(__FILE__, __LINE__,
                   show(world_size) + " ranks differ in " + case_name(shape, isa, dtype) + format_name(format));
          }
        }
      }
    }
  }
}

// The tolerance for bf16 activations is that of contract 4. Codes of 8 bits round the keys and values of these small
// heads about as much again.
TEST(backend_bf16_is_close_to_the_reference) {
  for (const DecoderShape& base : shapes()) {
    for (const CpuIsa isa : available_cpu_isas()) {
      DecoderShape shape = base;
      shape.file_dtype = DType::kBf16;
      RunOptions options;
      options.isa = isa;
      options.weight_dtype = DType::kBf16;
      for (const DType cache : {DType::kBf16, DType::kInt8}) {
        options.kv_cache_dtype = cache;
        const double worst = worst_difference(shape, options, {random_ids(1, 70, shape.vocab_size)}, 5);
        if (!(worst < (cache == DType::kInt8 ? 0.3 : 0.15)))
          fail(__FILE__, __LINE__, case_name(shape, isa, cache) + ": difference " + show(worst));
      }
    }
  }
}

}  // namespace
}  // namespace capstan::testing
