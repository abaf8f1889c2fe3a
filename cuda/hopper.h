#pragma once
// The asynchronous instructions of compute capability 9.0 (sm_90a): mbarriers in shared memory, bulk copies that
// complete on them, and warpgroup products. As in device.h, each has a host twin beside it. On the host a copy lands
// when a thread waits for it, and its destination is poisoned until then. A product is computed when a thread waits for
// it, from the contents of its registers and shared memory at that time.
#include "cuda/spin_limit.h"
#include "cuda/tensor_map.h"
#include "cuda/wgmma_layout.h"

// On other targets, kernels that use these instructions compile to a trap.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define CAPSTAN_HAS_WGMMA 1
#else
#define CAPSTAN_HAS_WGMMA 0
#endif

namespace capstan::cuda {

constexpr int kGroupWarps = 4;  // warps of a warpgroup

#if CAPSTAN_HAS_WGMMA
// ---- mbarriers
// A phase ends when `count` threads have arrived and all expected bytes have landed. Waiting for parity p returns when
// a phase of that parity has ended. Parity 1 returns at once while no phase has ended.

__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, int count) {
#if defined(__CUDACC__)
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
#else
  cuda_host::mbarrier_init(barrier, count);
#endif
}
// Makes the initialized barriers visible to other threads and to asynchronous copies.
__device__ __forceinline__ void fence_mbarrier_init() {
#if defined(__CUDACC__)
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
#endif
}
__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
#if defined(__CUDACC__)
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
#else
  cuda_host::mbarrier_arrive(barrier, 0);
#endif
}
// Arrives and adds `bytes` to the bytes that the phase expects.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint64_t* barrier, int bytes) {
#if defined(__CUDACC__)
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
#else
  cuda_host::mbarrier_arrive(barrier, bytes);
#endif
}
__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, int parity,
                                              [[maybe_unused]] CallSite at = CAPSTAN_CALL_SITE) {
#if defined(__CUDACC__)
  uint32_t is_over;
  const SpinLimit limit;
  do {
    asm volatile(
        "{\n.reg .pred over;\nmbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\nselp.u32 %0, 1, 0, over;\n}"
        : "=r"(is_over)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
    if (is_over == 0) limit.check(at, shared_address(barrier), parity);
  } while (is_over == 0);
#else
  cuda_host::mbarrier_wait(at.file, at.line, barrier, parity);
#endif
}

// ---- copies into shared memory

// Copies contiguous bytes. Both addresses and `bytes` are multiples of 16.
__device__ __forceinline__ void cp_async_bulk(void* to, const void* from, int bytes, uint64_t* barrier) {
#if defined(__CUDACC__)
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
#else
  cuda_host::cp_async_bulk(to, from, bytes, barrier);
#endif
}
// Copies the map's box at (column, row). Elements outside the array are zeros and count as bytes.
__device__ __forceinline__ void tma_load_2d(void* to, const TensorMap& map, int column, int row, uint64_t* barrier) {
#if defined(__CUDACC__)
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(shared_address(to)),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier))
      : "memory");
#else
  cuda_host::tma_load_2d(to, map, column, row, barrier);
#endif
}
__device__ __forceinline__ void prefetch_tensormap([[maybe_unused]] const TensorMap& map) {
#if defined(__CUDACC__)
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#endif
}

// Makes the calling thread's writes to shared memory, including completed cp_async copies, visible to wgmma.
__device__ __forceinline__ void fence_proxy_async() {
#if defined(__CUDACC__)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
  cuda_host::fence_proxy_async();
#endif
}

// ---- registers
// A warpgroup that needs few registers leaves them to the other warpgroups.
template <int kCount>
__device__ __forceinline__ void setmaxnreg_dec() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
#if defined(__CUDACC__)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}
template <int kCount>
__device__ __forceinline__ void setmaxnreg_inc() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
#if defined(__CUDACC__)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}

// ---- warpgroup products
// acc (64, N) += a (64, 16) · b (16, N) with f32 sums, asynchronously. Warp w of the warpgroup has rows 16 w to 16 w +
// 15 in the layout of mma_m16n8k16: a[] is its A operand, acc[4 j + r] is its c[r] for columns 8 j to 8 j + 7. b is a
// descriptor of shared memory (wgmma_layout.h). Until the wait, a and b must not change and acc must not be read.

// Required before the first product, and before a product whose registers were written since the last one.
__device__ __forceinline__ void wgmma_fence() {
#if defined(__CUDACC__)
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
  cuda_host::wgmma_fence();
#endif
}
__device__ __forceinline__ void wgmma_commit_group() {
#if defined(__CUDACC__)
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  cuda_host::wgmma_commit_group();
#endif
}
// Waits until at most kPending groups are pending.
template <int kPending>
__device__ __forceinline__ void wgmma_wait_group() {
#if defined(__CUDACC__)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#else
  cuda_host::wgmma_wait_group(kPending);
#endif
}
// Makes the compiler assume that acc is written here. Used after a wait, and before a fence that must follow the writes
// to acc.
template <int kCount>
__device__ __forceinline__ void warpgroup_fence_operand([[maybe_unused]] float (&acc)[kCount]) {
#if defined(__CUDACC__)
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    asm volatile("" : "+f"(acc[i])::"memory");
#endif
}

// Keeps the compiler from computing anything that depends on `value` before this point.
__device__ __forceinline__ void hide_from_optimizer([[maybe_unused]] int& value) {
#if defined(__CUDACC__)
  asm volatile("" : "+r"(value));
#endif
}

#if defined(__CUDACC__)
#define CAPSTAN_OUT_8(i)                                                                                  \
  "+f"(acc[i]), "+f"(acc[i + 1]), "+f"(acc[i + 2]), "+f"(acc[i + 3]), "+f"(acc[i + 4]), "+f"(acc[i + 5]), \
      "+f"(acc[i + 6]), "+f"(acc[i + 7])
#define CAPSTAN_OUT_32(i) CAPSTAN_OUT_8(i), CAPSTAN_OUT_8(i + 8), CAPSTAN_OUT_8(i + 16), CAPSTAN_OUT_8(i + 24)
#define CAPSTAN_D_HALF "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define CAPSTAN_D_0 CAPSTAN_D_HALF ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define CAPSTAN_D_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define CAPSTAN_D_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define CAPSTAN_D_64                                                                                                                                                 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122"   \
  ", %123, %124, %125, %126, %127"
#define CAPSTAN_WGMMA_OF(type, n, d, inputs, ...)                                                                  \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" d "}, " inputs ", 1, 1, 1, 0;" \
               : __VA_ARGS__                                                                                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define CAPSTAN_WGMMA(n, d, inputs, ...)                 \
  if constexpr (T::kIsBf16)                              \
    CAPSTAN_WGMMA_OF("bf16", n, d, inputs, __VA_ARGS__); \
  else                                                   \
    CAPSTAN_WGMMA_OF("f16", n, d, inputs, __VA_ARGS__)
#endif

template <class T, int N>
__device__ __forceinline__ void wgmma_m64nNk16(float (&acc)[N / 2], const uint32_t (&a)[4], uint64_t b) {
  static_assert(N == 32 || N == 64 || N == 96 || N == 128 || N == 256);
#if defined(__CUDACC__)
  if constexpr (N == 32) {
    CAPSTAN_WGMMA(32, CAPSTAN_D_HALF, "{%16, %17, %18, %19}, %20", CAPSTAN_OUT_8(0), CAPSTAN_OUT_8(8));
  } else if constexpr (N == 64) {
    CAPSTAN_WGMMA(64, CAPSTAN_D_0, "{%32, %33, %34, %35}, %36", CAPSTAN_OUT_32(0));
  } else if constexpr (N == 96) {
    CAPSTAN_WGMMA(96, CAPSTAN_D_0 CAPSTAN_D_32, "{%48, %49, %50, %51}, %52", CAPSTAN_OUT_32(0), CAPSTAN_OUT_8(32),
                  CAPSTAN_OUT_8(40));
  } else if constexpr (N == 128) {
    CAPSTAN_WGMMA(128, CAPSTAN_D_0 CAPSTAN_D_32 CAPSTAN_D_48, "{%64, %65, %66, %67}, %68", CAPSTAN_OUT_32(0),
                  CAPSTAN_OUT_32(32));
  } else {
    CAPSTAN_WGMMA(256, CAPSTAN_D_0 CAPSTAN_D_32 CAPSTAN_D_48 CAPSTAN_D_64, "{%128, %129, %130, %131}, %132",
                  CAPSTAN_OUT_32(0), CAPSTAN_OUT_32(32), CAPSTAN_OUT_32(64), CAPSTAN_OUT_32(96));
  }
#else
  std::vector<float*> sums;
  for (float& sum : acc)
    sums.push_back(&sum);
  cuda_host::wgmma(std::move(sums), {&a[0], &a[1], &a[2], &a[3]}, b, [](uint16_t bits) { return to_float<T>(bits); });
#endif
}
#endif  // CAPSTAN_HAS_WGMMA

}  // namespace capstan::cuda
