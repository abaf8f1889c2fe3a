// Products by wgmma: their index arithmetic (exhaustively), faults that the host emulation must detect, and a backend
// that uses them.
#include <algorithm>
#include <set>

#include "cuda/hopper.h"
#include "cuda/launch.h"
#include "cuda/ranks.h"
#include "cuda/wgmma_layout.h"
#include "test/native/cuda_host/cuda_host.h"
#include "test/native/gpu/device.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

using namespace cuda;

TEST(cuda_wgmma_operands_match_the_manual) {
  // Within an atom the mapping is one-to-one, and a column of eight rows lies in eight groups of banks.
  std::set<uint32_t> places;
  for (uint32_t row = 0; row < 8; ++row)
    for (uint32_t word = 0; word < 8; ++word) {
      const uint32_t place = swizzle_128(row * 128 + word * 16);
      EXPECT(place / 128 == row && place % 16 == 0);
      places.insert(place);
    }
  EXPECT_EQ(places.size(), size_t{64});
  for (uint32_t word = 0; word < 8; ++word) {
    std::set<uint32_t> banks;
    for (uint32_t row = 0; row < 8; ++row)
      banks.insert(swizzle_128(row * 128 + word * 16) / 16 % 8);
    EXPECT_EQ(banks.size(), size_t{8});
  }
  for (uint32_t address = 0; address < 227 << 10; address += 16) {
    const uint64_t descriptor = swizzled_operand(address);
    EXPECT((descriptor & 0x3fff) == address / 16 && (descriptor >> 16 & 0x3fff) == 1 &&
           (descriptor >> 32 & 0x3fff) == 64 && descriptor >> 62 == 1);
    EXPECT((descriptor & ~(uint64_t{0x3fff} | uint64_t{0x3fff} << 16 | uint64_t{0x3fff} << 32 | uint64_t{3} << 62)) ==
           0);
    for (int step = 0; step < kStageSteps; ++step)
      if (address + 96 < 227 << 10)
        EXPECT(next_depth(descriptor, step) == swizzled_operand(address + static_cast<uint32_t>(step) * 32));
  }
}

TEST(cuda_wgmma_rings_fit_in_shared_memory) {
  for (const int width : kTokenWidths) {
    EXPECT(num_stages(width) >= 4 && num_stages(width) <= 6);
    // Stages and their operands start at swizzle atoms.
    EXPECT(stage_bytes(width) % kSwizzleAtom == 0 && weight_stage_bytes() % kSwizzleAtom == 0);
    // The parity counts the rounds of the ring.
    RingPlace place;
    for (int i = 0; i < 40; ++i) {
      EXPECT(place.slot == i % num_stages(width) && place.parity == i / num_stages(width) % 2);
      place.advance(num_stages(width));
    }
  }
}

TEST(cuda_wgmma_tiles_are_transposed_without_bank_conflicts) {
  std::set<std::pair<int, int>> read;
  for (int iteration = 0; iteration < kTransposeTokens / 8; ++iteration)
    for (int first = 0; first < kWarpSize; first += 8) {
      std::set<int> banks;  // in units of 16 bytes, for the eight lanes that are served together
      for (int lane = first; lane < first + 8; ++lane) {
        banks.insert((transposed_token(lane, iteration) * kTransposeStride / 4 + lane % 4) % 8);
        read.insert({transposed_token(lane, iteration), lane % 4});
      }
      EXPECT_EQ(banks.size(), size_t{8});
    }
  EXPECT(read.size() == size_t{kTransposeTokens} * 4 && read.rbegin()->first == kTransposeTokens - 1 &&
         kTransposeStride % 4 == 0);
  std::set<int> banks;
  for (int lane = 0; lane < kWarpSize; ++lane)
    banks.insert((lane % 4 * 2 * kTransposeStride + lane / 4) % 32);
  EXPECT_EQ(banks.size(), size_t{kWarpSize});
  for (const int width : kTokenWidths)
    EXPECT(width % kTransposeTokens == 0 && gemm_shared_bytes(width) <= 232448);
}

TEST(cuda_wgmma_tiles_cover_every_output_once) {
  for (int feature_blocks = 1; feature_blocks < 12; ++feature_blocks)
    for (int token_blocks = 1; token_blocks < 70; ++token_blocks) {
      const TileOrder order{feature_blocks, token_blocks};
      std::set<std::pair<int, int>> tiles;
      for (int i = 0; i < order.size(); ++i) {
        int feature_block = -1, token_block = -1;
        order.at(i, feature_block, token_block);
        EXPECT(feature_block >= 0 && feature_block < feature_blocks && token_block >= 0 && token_block < token_blocks);
        tiles.insert({feature_block, token_block});
      }
      EXPECT_EQ(static_cast<int>(tiles.size()), order.size());
    }
  EXPECT(tile_order(129, 257, 256).size() == 4 && tile_order(128, 256, 256).size() == 1);
}

TEST(cuda_wgmma_k_splits_are_multiples_of_a_stage) {
  EXPECT(k_splits_of(1536) == 1 && k_splits_of(8960) == kMaxKSplits);
  for (int steps = 1; steps < 600; ++steps)
    for (int k_splits = 1; k_splits <= kMaxKSplits; ++k_splits) {
      EXPECT(k_split_begin(0, k_splits, steps) == 0 && k_split_begin(k_splits, k_splits, steps) == steps);
      for (int k_split = 1; k_split < k_splits; ++k_split)
        EXPECT(k_split_begin(k_split, k_splits, steps) % kStageSteps == 0 &&
               k_split_begin(k_split, k_splits, steps) < steps);
    }
}

TEST(cuda_wgmma_widths_fill_the_multiprocessors) {
  // Qwen2.5-1.5B with 1,024 tokens on 132 multiprocessors: output and down fit in one round of width 96, qkv in one of
  // 128.
  EXPECT_EQ(choose_width(1536, 1024, 132), 96);
  EXPECT_EQ(choose_width(2048, 1024, 132), 128);
  // Many rows: five rounds of 256 move fewer bytes than nine of 128.
  EXPECT_EQ(choose_width(17920, 1024, 132), 256);
  // Split in two, 48 tiles of width 128 take one round; 192 of width 64 would take two.
  EXPECT_EQ(choose_width(1536, 512, 132, 2), 128);
  // Few tokens get the narrowest width, very many the widest.
  EXPECT_EQ(choose_width(2048, 65, 132), 64);
  EXPECT_EQ(choose_width(17920, 65536, 132), 256);
  // Kernels for codes have the two widest tiles.
  EXPECT_EQ(choose_width(1536, 1024, 132, 1, true), 128);
  EXPECT_EQ(choose_width(17920, 1024, 132, 1, true), 256);
  EXPECT_EQ(choose_width(2048, 65, 132, 1, true), 128);
  for (int64_t rows = 16; rows <= 20000; rows += 1232)
    for (int tokens = 65; tokens <= 8192; tokens += 391) {
      const auto rounds = [&](int width) { return (tile_order(rows, tokens, width).size() + 131) / 132; };
      const int width = choose_width(rows, tokens, 132);
      for (const int other : kTokenWidths)
        EXPECT(rounds(width) * (width + 64) <= rounds(other) * (other + 64));
    }
}

// ---- faults that the emulation detects

// Multiplies the first 16 columns of a box of 64 rows by ones. Each fault omits something that the instructions
// require.
enum class Fault : uint8_t { kNone, kNoWait, kNoFence, kNoProductWait, kTooManyBytes, kTooManyArrivals, kNoInit };
struct FaultArgs {
  float* sums;  // (threads, 32)
  Fault fault;
};
__global__ void fault_kernel(const __grid_constant__ TensorMap map, FaultArgs args) {
  unsigned char* const shared = shared_memory();
  auto* const barrier = reinterpret_cast<uint64_t*>(shared + 8192);
  if (threadIdx.x == 0) {
    if (args.fault != Fault::kNoInit) mbarrier_init(barrier, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(barrier, args.fault == Fault::kTooManyBytes ? 8208 : 8192);
    if (args.fault == Fault::kTooManyArrivals) mbarrier_arrive(barrier);
    tma_load_2d(shared, map, 0, 0, barrier);
  }
  __syncthreads();
  if (args.fault != Fault::kNoWait) mbarrier_wait(barrier, 0);
  const uint32_t ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
  float acc[32] = {};
  if (args.fault != Fault::kNoFence) wgmma_fence();
  wgmma_m64nNk16<Bf16, 64>(acc, ones, swizzled_operand(shared_address(shared)));
  wgmma_commit_group();
  if (args.fault == Fault::kNoWait) wgmma_wait_group<0>();
  if (args.fault != Fault::kNoProductWait) wgmma_wait_group<0>();
  for (int i = 0; i < 32; ++i)
    args.sums[threadIdx.x * 32 + i] = acc[i];
  if (args.fault == Fault::kNoWait) mbarrier_wait(barrier, 0);
}

bool is_detected(Fault fault) {
  std::vector<uint16_t> ones(64 * 64, 0x3f80);
  std::vector<float> sums(128 * 32, 0.0f);
  TensorMap map;
  EXPECT(make_tensor_map(map, ones.data(), 64, 64, 64));
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  launch(fault_kernel, dim3(1), dim3(128), 8192 + 16, stream, map, FaultArgs{sums.data(), fault});
  bool has_thrown = false;
  try {
    cudaStreamSynchronize(stream);
  } catch (const std::runtime_error&) {
    has_thrown = true;
  }
  cudaStreamDestroy(stream);
  return has_thrown || !std::ranges::all_of(sums, [](float sum) { return sum == 16; });
}

TEST(cuda_wgmma_faults_are_detected) {
  EXPECT(!is_detected(Fault::kNone));
  for (const Fault fault : {Fault::kNoWait, Fault::kNoFence, Fault::kNoProductWait, Fault::kTooManyBytes,
                            Fault::kTooManyArrivals, Fault::kNoInit})
    EXPECT(is_detected(fault));
}

TEST(cuda_tensor_maps_of_invalid_arrays_are_rejected) {
  alignas(16) static uint16_t data[4096];
  TensorMap map;
  EXPECT(make_tensor_map(map, data, 8, 64, 8));
  EXPECT(!make_tensor_map(map, data + 1, 8, 64, 8));
  EXPECT(!make_tensor_map(map, data, 8, 60, 8));
  EXPECT(!make_tensor_map(map, data, 8, 64, 257));
  EXPECT(!make_tensor_map(map, data, 0, 64, 8));
}

// ---- a backend that uses it

// Makes the device one of compute capability 9.0 during its lifetime.
struct Hopper {
  Hopper() { cuda_host::set_compute_capability(9); }
  ~Hopper() {
    cuda_host::set_compute_capability(8);
    cuda_host::set_ptx_version(90);
    cuda_host::disable_tensor_maps(false);
  }
};

TEST(cuda_wgmma_decoder_equals_reference) {
  const Hopper hopper;
  expect_like_reference(false);
}

TEST(cuda_wgmma_is_not_used_when_deterministic) {
  DecoderShape shape;
  shape.file_dtype = DType::kBf16;
  DecoderFixture fixture(shape);
  // Alone, each prompt uses launch_gemm for few tokens; together they use wgmma.
  const Prompts prompts = {random_ids(1, 90, shape.vocab_size), random_ids(2, 40, shape.vocab_size)};
  const LogProbs wanted = fixture.run(cuda_options(DType::kBf16, false), prompts);
  const Hopper hopper;
  EXPECT(is_same(wanted, fixture.run(cuda_options(DType::kBf16, true), prompts)));
  EXPECT(!is_same(wanted, fixture.run(cuda_options(DType::kBf16, false), prompts)));
  cuda_host::disable_tensor_maps(true);
  EXPECT(is_same(wanted, fixture.run(cuda_options(DType::kBf16, false), prompts)));
}

TEST(cuda_wgmma_decoder_with_codes_has_the_bits_of_decoded_weights) {
  const Hopper hopper;
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    DecoderShape shape;
    shape.file_dtype = format == WeightFormat::kInt8 ? DType::kBf16 : DType::kF16;
    DecoderFixture fixture(shape);
    RunOptions options = cuda_options(shape.file_dtype, false);
    options.format = format;
    const Prompts prompts = {random_ids(1, 90, shape.vocab_size), random_ids(2, 40, shape.vocab_size)};
    const LogProbs wanted = fixture.run(options, prompts);
    setenv("CAPSTAN_CUDA_WITHOUT", "codes", 1);
    const LogProbs decoded = fixture.run(options, prompts);
    setenv("CAPSTAN_CUDA_WITHOUT", "wgmma", 1);
    const LogProbs without_wgmma = fixture.run(options, prompts);
    unsetenv("CAPSTAN_CUDA_WITHOUT");
    EXPECT(is_same(wanted, decoded));
    EXPECT(!is_same(wanted, without_wgmma));
  }
}

// Row-major activations are copied from the ranks that computed them.
TEST(cuda_wgmma_two_shot_all_reduce_changes_no_bit) {
  DecoderShape shape;
  shape.file_dtype = DType::kBf16, shape.intermediate_size = 256;
  DecoderFixture fixture(shape);
  const Prompts prompts = {random_ids(1, 90, shape.vocab_size), random_ids(2, 41, shape.vocab_size)};
  const Hopper hopper;
  RunOptions options = cuda_options(DType::kBf16, false);
  options.world_size = 4;
  const LogProbs wanted = fixture.run(options, prompts);
  const int64_t before = std::exchange(two_shot_bytes(), 1);
  EXPECT(is_same(wanted, fixture.run(options, prompts)));
  two_shot_bytes() = before;
}

TEST(cuda_wgmma_engine_answers_like_mma) {
  const TinyModel model(TinyShape{}, DType::kF16);
  LoadRequest request = model.request();
  request.compute = ComputeChoice::kAuto;
  request.device.device = "cuda";
  request.max_num_batched_tokens = 96, request.max_num_seqs = 8;
  const auto prompt = random_ids(4, 129, 300);
  Session plain(request);
  EXPECT_EQ(plain.info().isa, std::string("mma"));
  const Hopper hopper;
  Session fast(request);
  EXPECT_EQ(fast.info().isa, std::string("wgmma"));
  EXPECT(fast.wait(fast.submit(prompt, 4)).token_ids == plain.wait(plain.submit(prompt, 4)).token_ids);
  // The code for the device is PTX of an older architecture.
  cuda_host::set_ptx_version(80);
  EXPECT_EQ(Session(request).info().isa, std::string("mma"));
  cuda_host::set_ptx_version(90);
  request.device.is_deterministic = true;
  EXPECT_EQ(Session(request).info().isa, std::string("mma"));
}

TEST(cuda_wgmma_engine_on_ranks_answers_like_the_cpu) {
  const Hopper hopper;
  expect_ranks_like_the_cpu();
}

TEST(cuda_wgmma_engine_soak) {
  const Hopper hopper;
  run_nondeterministic_soak();
}

}  // namespace
}  // namespace capstan::testing
