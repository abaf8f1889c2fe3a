// A small decoder through all ops of the device contract, compared with the double-precision reference.
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
  for (const DecoderShape& base : decoder_shapes()) {
    DecoderShape shape = base;
    shape.file_dtype = DType::kBf16;
    DecoderFixture fixture(shape);
    const Prompts prompts = {random_ids(1, 1, shape.vocab_size), random_ids(2, 65, shape.vocab_size),
                             random_ids(3, 290, shape.vocab_size)};
    const RunOptions together = cuda_options(DType::kBf16);
    const LogProbs wanted = fixture.run(together, prompts);
    const auto expect_same = [&](const RunOptions& options, const std::string& what) {
      if (!is_same(wanted, fixture.run(options, prompts)))
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

}  // namespace
}  // namespace capstan::testing
