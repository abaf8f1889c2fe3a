// The instructions that kernels are made of, one by one, before any kernel: on a device a failure here explains all
// later ones. The products are tested by kernel_mma_follows_the_manual and kernel_wgmma_follows_the_manual.
#include "cuda/flags.h"
#include "cuda/hopper.h"
#include "test/native/gpu/kernel_testing.h"

namespace capstan::testing {
namespace {

__global__ void fill_kernel(int32_t* to, int32_t value) {
  to[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

TEST(primitive_launch) {
  const OnDevice<int32_t> out(64);
  launch(fill_kernel, dim3(2), dim3(32), 0, stream(), out.get(), 7);
  EXPECT(out.read() == std::vector<int32_t>(64, 7));
}

// Copies three groups of 16-byte words through shared memory, and reads each group when only later ones are pending.
__global__ void cp_async_kernel(const uint4* from, uint4* to) {
  auto* const shared = reinterpret_cast<uint4*>(shared_memory());
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (int group = 0; group < 3; ++group) {
    cp_async(shared + group * threads + thread, from + group * threads + thread);
    cp_async_commit_group();
  }
  cp_async_wait_group<2>();
  to[thread] = shared[thread];
  cp_async_wait_group<0>();
  for (int group = 1; group < 3; ++group)
    to[group * threads + thread] = shared[group * threads + thread];
}

std::vector<uint32_t> counting(size_t count) {
  std::vector<uint32_t> values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = static_cast<uint32_t>(i * 2654435761u);
  return values;
}

TEST(primitive_cp_async) {
  const std::vector<uint32_t> values = counting(3 * 64 * 4);
  const OnDevice<uint32_t> from(values), to(values.size());
  launch(cp_async_kernel, dim3(1), dim3(64), values.size() * 4, stream(), reinterpret_cast<const uint4*>(from.get()),
         reinterpret_cast<uint4*>(to.get()));
  EXPECT(to.read() == values);
}

// Each block adds its number to the sum of the block before it. There are more blocks than a device runs at a time.
__global__ void chain_kernel(int32_t* state, int32_t* sums) {
  auto* const number = reinterpret_cast<int32_t*>(shared_memory());
  if (threadIdx.x == 0) *number = take_number(state, static_cast<int32_t>(gridDim.x));
  __syncthreads();
  const int32_t block = *number;
  int32_t* const flags = state + 1;
  if (block > 0) wait_and_clear_flag(flags + block - 1);
  if (threadIdx.x == 0) {
    const auto* const before = reinterpret_cast<const float*>(sums + block - 1);
    sums[block] = block == 0 ? 0 : static_cast<int32_t>(as_bits(ld_relaxed_gpu(before))) + block;
  }
  if (block + 1 < static_cast<int32_t>(gridDim.x)) signal_flag(flags + block);
}

TEST(primitive_flags_and_numbers) {
  constexpr int kBlocks = 5000;
  std::vector<int32_t> wanted(kBlocks);
  for (int32_t block = 1; block < kBlocks; ++block)
    wanted[static_cast<size_t>(block)] = wanted[static_cast<size_t>(block) - 1] + block;
  check(connect_spin_report(), "a test");
  const OnDevice<int32_t> state(std::vector<int32_t>(kBlocks + 1, 0));
  for (int round = 0; round < 2; ++round) {  // the second round needs what the first has reset
    const OnDevice<int32_t> sums(kBlocks);
    launch(chain_kernel, dim3(kBlocks), dim3(kWarpSize), 16, stream(), state.get(), sums.get());
    EXPECT(sums.read() == wanted);
    EXPECT(state.read() == std::vector<int32_t>(kBlocks + 1, 0));
  }
}

// Doubles all values, as the next kernel of a chain.
__global__ void double_kernel(const int32_t* from, int32_t* to) {
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  to[i] = from[i] * 2;
}

// Each kernel reads what the one before it wrote, and overwrites what an earlier one read.
TEST(primitive_early_launch_of_three_kernels) {
  constexpr unsigned kThreads = 256, kBlocks = 1000;
  std::vector<int32_t> values(kThreads * kBlocks), wanted;
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<int32_t>(i), wanted.push_back(static_cast<int32_t>(i) * 8);
  for (int round = 0; round < (is_full() ? 50 : 2); ++round) {
    const OnDevice<int32_t> first(values), second(values.size());
    for (const bool is_back : {false, true, false})
      launch_pdl(supports_pdl(), double_kernel, dim3(kBlocks), dim3(kThreads), 0, stream(),
                 static_cast<const int32_t*>(is_back ? second.get() : first.get()),
                 is_back ? first.get() : second.get());
    EXPECT(second.read() == wanted);
  }
}

// ---- compute capability 9.0

__global__ void bulk_kernel(const uint32_t* from, uint32_t* to, int count) {
#if CAPSTAN_HAS_WGMMA
  auto* const shared = reinterpret_cast<uint32_t*>(shared_memory());
  auto* const barrier = reinterpret_cast<uint64_t*>(shared + count);
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(barrier, count * 4);
    cp_async_bulk(shared, from, count * 4, barrier);
  }
  __syncthreads();
  mbarrier_wait(barrier, 0);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x))
    to[i] = shared[i];
#endif
}

TEST(primitive_bulk_copy) {
  if (!has_wgmma()) return;
  const std::vector<uint32_t> values = counting(4096);
  check(connect_spin_report(), "a test");
  const OnDevice<uint32_t> from(values), to(values.size());
  launch(bulk_kernel, dim3(1), dim3(128), values.size() * 4 + 16, stream(), static_cast<const uint32_t*>(from.get()),
         to.get(), static_cast<int>(values.size()));
  EXPECT(to.read() == values);
}

constexpr int kBoxRows = 64;
__global__ void box_kernel(const __grid_constant__ TensorMap map, int column, int row, uint16_t* to) {
#if CAPSTAN_HAS_WGMMA
  unsigned char* const shared =
      shared_memory() + (kSwizzleAtom - shared_address(shared_memory()) % kSwizzleAtom) % kSwizzleAtom;
  auto* const barrier = reinterpret_cast<uint64_t*>(shared + kBoxRows * kSwizzledRow);
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(barrier, kBoxRows * kSwizzledRow);
    tma_load_2d(shared, map, column, row, barrier);
  }
  __syncthreads();
  mbarrier_wait(barrier, 0);
  for (int i = static_cast<int>(threadIdx.x); i < kBoxRows * kStageDepth; i += static_cast<int>(blockDim.x))
    to[i] = *reinterpret_cast<const uint16_t*>(shared + swizzle_128(static_cast<uint32_t>(i * 2)));
#endif
}

void check_box(int64_t rows, int64_t columns, int column, int row) {
  std::vector<uint16_t> values(static_cast<size_t>(rows * columns));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<uint16_t>(i % 60000 + 1);
  const OnDevice<uint16_t> array(values), out(kBoxRows * kStageDepth);
  TensorMap map;
  const std::string what = std::to_string(rows) + " x " + std::to_string(columns) + " from row " + std::to_string(row) +
                           ", column " + std::to_string(column);
  if (!make_tensor_map(map, array.get(), rows, columns, kBoxRows))
    return fail(__FILE__, __LINE__, "the driver rejects a tensor map of " + what);
  check(connect_spin_report(), "a test");
  launch(box_kernel, dim3(1), dim3(128), kSwizzleAtom + kBoxRows * kSwizzledRow + 16, stream(), map, column, row,
         out.get());
  const std::vector<uint16_t> got = out.read();
  for (int r = 0; r < kBoxRows; ++r)
    for (int c = 0; c < kStageDepth; ++c) {
      const bool is_inside = row + r < rows && column + c < columns;
      const int wanted = is_inside ? values[static_cast<size_t>((row + r) * columns + column + c)] : 0;
      expect_close(got[static_cast<size_t>(r * kStageDepth + c)], wanted, 0, "the box of " + what, r, c);
    }
}

TEST(primitive_box_copy) {
  if (!has_wgmma()) return;
  check_box(200, 192, 64, 100);
}

// The last boxes of an array end outside it; those of a small array are larger than it.
TEST(primitive_box_that_is_larger_than_its_array) {
  if (!has_wgmma()) return;
  check_box(200, 104, 64, 190);
  check_box(3, 352, 320, 0);
  check_box(3, 24, 0, 0);
}

// Three warpgroups. One gives up registers, and the others take them and keep 200 values each.
constexpr int kKept = 200;
__global__ void __launch_bounds__(384, 1) registers_kernel(const float* from, float* to) {
#if CAPSTAN_HAS_WGMMA
  const int thread = static_cast<int>(threadIdx.x) - 128;
  if (uniform_warp_id() < kGroupWarps) {
    setmaxnreg_dec<40>();
    return;
  }
  setmaxnreg_inc<232>();
  float kept[kKept];
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    kept[i] = from[i * 256 + thread];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    sum += kept[i];
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    to[i * 256 + thread] = kept[i] + sum;
#endif
}

TEST(primitive_setmaxnreg) {
  if (!has_wgmma()) return;
  std::vector<float> values(256 * kKept);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(i % 1000);
  const OnDevice<float> from(values), to(values.size());
  launch(registers_kernel, dim3(1), dim3(384), 0, stream(), static_cast<const float*>(from.get()), to.get());
  const std::vector<float> got = to.read();
  for (size_t thread = 0; thread < 256; ++thread) {
    float sum = 0;
    for (size_t i = 0; i < kKept; ++i)
      sum += values[i * 256 + thread];
    for (size_t i = 0; i < kKept; ++i)
      expect_close(got[i * 256 + thread], values[i * 256 + thread] + sum, 0, "value", static_cast<int64_t>(i),
                   static_cast<int64_t>(thread));
  }
}

}  // namespace
}  // namespace capstan::testing
