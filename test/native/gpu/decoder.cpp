// A small decoder through all ops of the device contract, compared with the double-precision reference.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "test/native/gpu/device.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

TEST(cuda_decoder_equals_reference) {
  expect_like_reference(false);
  if (is_full_run()) expect_like_reference(true);
}

// An 8-bit cache rounds by up to 1/16, which random narrow models amplify. The result must still depend only on the
// cache's contents.
TEST(cuda_decoder_with_an_fp8_cache) {
  for (const DecoderShape& base : decoder_shapes()) {
    DecoderShape shape = base;
    shape.file_dtype = DType::kF16;
    DecoderFixture fixture(shape);
    const Prompts prompts = {random_ids(1, 70, shape.vocab_size), random_ids(2, 5, shape.vocab_size)};
    RunOptions options = cuda_options(DType::kF16);
    options.kv_cache_dtype = DType::kFp8E4m3;
    const double worst = worst_difference(fixture, options, prompts, 5);
    if (!(worst < 1.2 && worst > 0.001))
      fail(__FILE__, __LINE__, "head_dim " + std::to_string(shape.head_dim) + ": difference " + show(worst));
    const LogProbs wanted = fixture.run(options, prompts);
    options.prefill_chunk_size = 23;
    options.max_num_seqs_per_step = 1;
    EXPECT(is_same(wanted, fixture.run(options, prompts)));
  }
}

TEST(cuda_decoder_batch_chunks_and_ranks_change_no_bit) {
  int64_t num_cases = 0;
  for (const DecoderShape& base : decoder_shapes()) {
    DecoderShape shape = base;
    shape.file_dtype = DType::kBf16;
    DecoderFixture fixture(shape);
    const Prompts prompts = {random_ids(1, 1, shape.vocab_size), random_ids(2, 65, shape.vocab_size),
                             random_ids(3, 290, shape.vocab_size)};
    const RunOptions together = cuda_options(DType::kBf16);
    const LogProbs wanted = fixture.run(together, prompts);
    const auto expect_same = [&](const RunOptions& options, const std::string& what) {
      if (takes_case(num_cases++, 2) && !is_same(wanted, fixture.run(options, prompts)))
        fail(__FILE__, __LINE__, "head_dim " + std::to_string(shape.head_dim) + ": differs with " + what);
    };
    RunOptions changed = together;
    changed.max_num_seqs_per_step = 1;
    expect_same(changed, "one sequence at a time");
    changed = together;
    changed.prefill_chunk_size = 23;
    changed.block_size = 128;
    expect_same(changed, "chunks of 23, blocks of 128");
    for (const int world_size : {2, 4}) {
      if (shape.num_heads % world_size != 0 || shape.intermediate_size % (16 * world_size) != 0) continue;
      changed = together;
      changed.world_size = world_size;
      expect_same(changed, std::to_string(world_size) + " ranks");
    }
  }
}

class WithoutCodes {
 public:
  WithoutCodes() { setenv("CAPSTAN_CUDA_WITHOUT", "codes", 1); }
  ~WithoutCodes() { unsetenv("CAPSTAN_CUDA_WITHOUT"); }
};

TEST(cuda_decoder_with_codes_has_the_bits_of_decoded_weights) {
  int64_t num_cases = 0;
  for (const DecoderShape& base : decoder_shapes())
    for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
      DecoderShape shape = base;
      const DType dtype = format == WeightFormat::kInt8 ? DType::kBf16 : DType::kF16;
      shape.file_dtype = dtype;
      DecoderFixture fixture(shape);
      const Prompts prompts = {random_ids(1, 1, shape.vocab_size), random_ids(2, 65, shape.vocab_size)};
      RunOptions options = cuda_options(dtype);
      options.format = format;
      const LogProbs wanted = fixture.run(options, prompts);
      const auto expect_same = [&](const RunOptions& changed, const std::string& what) {
        if (takes_case(num_cases++, 2) && !is_same(wanted, fixture.run(changed, prompts)))
          fail(__FILE__, __LINE__, "head_dim " + std::to_string(shape.head_dim) + ": differs " + what);
      };
      {
        const WithoutCodes decoded;
        expect_same(options, "without codes");
      }
      RunOptions changed = options;
      changed.max_num_seqs_per_step = 1;
      changed.prefill_chunk_size = 23;
      expect_same(changed, "in chunks of one sequence");
      if (shape.num_heads % 2 == 0 && shape.intermediate_size % 32 == 0) {
        changed = options;
        changed.world_size = 2;
        expect_same(changed, "with two ranks");
      }
    }
}

// Both devices choose the same codes. The CPU multiplies their values in f32.
TEST(cuda_decoder_with_codes_is_close_to_the_cpu) {
  for (const DecoderShape& base : decoder_shapes())
    for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4})
      for (const DType dtype : {DType::kF16, DType::kBf16}) {
        DecoderShape shape = base;
        shape.file_dtype = dtype;
        DecoderFixture fixture(shape);
        const Prompts prompts = {random_ids(1, 70, shape.vocab_size), random_ids(2, 5, shape.vocab_size)};
        RunOptions cpu;
        cpu.weight_dtype = DType::kF32;
        cpu.compute_f32 = true;
        cpu.format = format;
        RunOptions cuda = cuda_options(dtype, false);
        cuda.format = format;
        const LogProbs wanted = fixture.run(cpu, prompts), got = fixture.run(cuda, prompts);
        double worst = 0, sum = 0, count = 0;
        for (size_t prompt = 0; prompt < wanted.size(); ++prompt)
          for (size_t position = 0; position < wanted[prompt].size(); ++position)
            for (size_t id = 0; id < wanted[prompt][position].size(); ++id)
              if (const double of_cpu = wanted[prompt][position][id]; of_cpu > -6) {
                const double difference = std::abs(of_cpu - got[prompt][position][id]);
                worst = std::max(worst, difference), sum += difference, ++count;
              }
        // Codes times scales are rounded to 16 bits, and the worst value of a narrow model depends on its codes.
        const bool is_f16 = dtype == DType::kF16;
        if (!(worst < (is_f16 ? 0.04 : 0.5) && sum / count < (is_f16 ? 0.006 : 0.05)))
          fail(__FILE__, __LINE__,
               std::string(dtype_name(dtype)) + " head_dim " + std::to_string(shape.head_dim) + ": worst difference " +
                   show(worst) + ", mean " + show(sum / count));
      }
}

}  // namespace
}  // namespace capstan::testing
