#pragma once
// Device code for all kernels: CUDA's language and runtime, or their host emulation (test/native/cuda_host). Every
// instruction without a C++ equivalent is a function here, with its host twin beside it. Kernels contain no inline
// assembly.
#include <chrono>
#include <cstdint>

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#else
#include "cuda_host.h"
#endif

namespace capstan::cuda {

constexpr int kWarpSize = 32;

// Where a function was called, as a default argument: `CallSite at = CAPSTAN_CALL_SITE`.
struct CallSite {
  const char* file;
  int line;
};
#define CAPSTAN_CALL_SITE {__builtin_FILE(), __builtin_LINE()}

// The block's shared memory. All of it is dynamic.
__device__ __forceinline__ unsigned char* shared_memory() {
#if defined(__CUDACC__)
  extern __shared__ __align__(128) unsigned char shared[];
  return shared;
#else
  return cuda_host::place.shared;
#endif
}

__device__ __forceinline__ int lane_id() {
  return static_cast<int>(threadIdx.x) % kWarpSize;
}
__device__ __forceinline__ int warp_id() {
  return static_cast<int>(threadIdx.x) / kWarpSize;
}

// A warp id that the compiler knows to be the same in all lanes.
__device__ __forceinline__ int uniform_warp_id() {
  return __shfl_sync(0xffffffffu, warp_id(), 0);
}

// The device's clock in nanoseconds.
__device__ __forceinline__ unsigned long long globaltimer() {
#if defined(__CUDACC__)
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
  return now;
#else
  return static_cast<unsigned long long>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
#endif
}

// ---- number types

// 16-bit floats are stored as bits. A template parameter T is one of these types.
struct Bf16 {
  static constexpr bool kIsBf16 = true;
};
struct F16 {
  static constexpr bool kIsBf16 = false;
};

#if defined(__CUDACC__)
template <class T>
__device__ __forceinline__ float to_float(uint16_t bits) {
  if constexpr (T::kIsBf16) return __uint_as_float(static_cast<uint32_t>(bits) << 16);
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
// Two values in one register, the first in the low half. Rounds to nearest even.
template <class T>
__device__ __forceinline__ uint32_t to_bits_pair(float low, float high) {
  uint32_t bits;
  if constexpr (T::kIsBf16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
#else
}  // namespace capstan::cuda
#include "native/base/number.h"
namespace capstan::cuda {
template <class T>
inline float to_float(uint16_t bits) {
  return T::kIsBf16 ? bf16_to_float(bits) : f16_to_float(bits);
}
template <class T>
inline uint32_t to_bits_pair(float low, float high) {
  const auto bits = [](float value) -> uint32_t { return T::kIsBf16 ? float_to_bf16(value) : float_to_f16(value); };
  return bits(low) | bits(high) << 16;
}
#endif

// Moves bytes 2 i and 2 i + 1 of `word` to the high bytes of the two halves of the result.
__device__ __forceinline__ uint32_t spread_bytes(uint32_t word, int i) {
#if defined(__CUDACC__)
  return __byte_perm(word, 0, i == 0 ? 0x1404 : 0x3424);
#else
  return (word >> i * 16 & 0xffu) << 8 | (word >> i * 16 & 0xff00u) << 16;
#endif
}
// Returns four of the eight bytes of `low` and `high`: nibble i of `choice` is the number of byte i.
__device__ __forceinline__ uint32_t choose_bytes(uint32_t low, uint32_t high, uint32_t choice) {
#if defined(__CUDACC__)
  return __byte_perm(low, high, choice);
#else
  const uint64_t bytes = low | uint64_t{high} << 32;
  uint32_t chosen = 0;
  for (int i = 0; i < 4; ++i)
    chosen |= static_cast<uint32_t>(bytes >> (choice >> i * 4 & 7) * 8 & 0xff) << i * 8;
  return chosen;
#endif
}

// a * b + c for two pairs of 16-bit floats, rounded once. The host rounds twice when the exact result takes more bits
// than an f32 has.
template <class T>
__device__ __forceinline__ uint32_t fma_pairs(uint32_t a, uint32_t b, uint32_t c) {
#if defined(__CUDACC__)
  uint32_t result;
  if constexpr (T::kIsBf16)
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  else
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
#else
  const auto half = [&](int shift) {
    const auto value = [&](uint32_t pair) { return to_float<T>(static_cast<uint16_t>(pair >> shift)); };
    return static_cast<float>(static_cast<double>(value(a)) * value(b) + value(c));
  };
  return to_bits_pair<T>(half(0), half(16));
#endif
}
// Multiplies two pairs of 16-bit floats. The addend is -0.
template <class T>
__device__ __forceinline__ uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  return fma_pairs<T>(a, b, 0x80008000u);
}

template <class T>
__device__ __forceinline__ uint16_t to_bits(float value) {
  return static_cast<uint16_t>(to_bits_pair<T>(value, 0.0f));
}

constexpr float kLog2E = 1.4426950408889634f;

__device__ __forceinline__ uint32_t as_bits(float value) {
#if defined(__CUDACC__)
  return __float_as_uint(value);
#else
  return float_bits(value);
#endif
}
__device__ __forceinline__ float as_float(uint32_t bits) {
#if defined(__CUDACC__)
  return __uint_as_float(bits);
#else
  return bits_float(bits);
#endif
}

// 2^power, with a relative error below 2^-22. Denormal results are 0.
__device__ __forceinline__ float ex2_approx(float power) {
#if defined(__CUDACC__)
  float value;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(power));
  return value;
#else
  return exp2f(power);
#endif
}

__device__ __forceinline__ float rcp_approx(float value) {
#if defined(__CUDACC__)
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
#else
  return 1.0f / value;
#endif
}

// ---- memory

// Loads 16 bytes that are read once, without allocating a line in L1.
__device__ __forceinline__ uint4 ld_global_nc_no_allocate(const uint4* from) {
#if defined(__CUDACC__)
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
#else
  return *from;
#endif
}

// The same for 8 bytes.
__device__ __forceinline__ uint2 ld_global_nc_no_allocate(const uint2* from) {
#if defined(__CUDACC__)
  uint2 value;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "l"(from));
  return value;
#else
  return *from;
#endif
}
// Loads 8 bytes that lanes of other warps load too.
__device__ __forceinline__ uint2 ld_global_nc(const uint2* from) {
#if defined(__CUDACC__)
  uint2 value;
  asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "l"(from));
  return value;
#else
  return *from;
#endif
}
__device__ __forceinline__ uint32_t ld_global_nc(const uint32_t* from) {
#if defined(__CUDACC__)
  uint32_t value;
  asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(value) : "l"(from));
  return value;
#else
  return *from;
#endif
}

// `to` is a multiple of 16 bytes.
__device__ __forceinline__ void st_global_v4_if(bool is_wanted, float* to, const float4& values) {
#if defined(__CUDACC__)
  asm volatile(
      "{\n.reg .pred wanted;\nsetp.ne.u32 wanted, %5, 0;\n@wanted st.global.v4.f32 [%0], {%1, %2, %3, %4};\n}" ::"l"(
          to),
      "f"(values.x), "f"(values.y), "f"(values.z), "f"(values.w), "r"(static_cast<uint32_t>(is_wanted))
      : "memory");
#else
  if (is_wanted) *reinterpret_cast<float4*>(to) = values;
#endif
}

// Reads what another block has written and fenced, bypassing L1.
__device__ __forceinline__ float ld_relaxed_gpu(const float* from) {
#if defined(__CUDACC__)
  float value;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(value) : "l"(from) : "memory");
  return value;
#else
  return *from;
#endif
}

// The shared-memory address for descriptors and asynchronous copies.
__device__ __forceinline__ uint32_t shared_address(const void* place) {
#if defined(__CUDACC__)
  return static_cast<uint32_t>(__cvta_generic_to_shared(place));
#else
  return cuda_host::shared_address(place);
#endif
}

// Starts an asynchronous 16-byte copy (cp.async) for the calling thread.
__device__ __forceinline__ void cp_async(void* to, const void* from) {
#if defined(__CUDACC__)
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
#else
  cuda_host::cp_async(to, from);
#endif
}
__device__ __forceinline__ void cp_async_commit_group() {
#if defined(__CUDACC__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  cuda_host::cp_async_commit_group();
#endif
}
// Waits until at most kPending of the calling thread's groups are pending.
template <int kPending>
__device__ __forceinline__ void cp_async_wait_group() {
#if defined(__CUDACC__)
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#else
  cuda_host::cp_async_wait_group(kPending);
#endif
}

// ---- programmatic dependent launch (compute capability 9.0; launch_pdl)

// Allows the next kernel to start as soon as resources are free.
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Blocks until the preceding kernel has ended and its writes are visible. Memory that kernels write may not be accessed
// before. NOTE: every thread calls this, so that a kernel ends only after all kernels before it.
__device__ __forceinline__ void griddepcontrol_wait() {
#if !defined(__CUDACC__)
  cuda_host::griddepcontrol_wait();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- warps

// All lanes get the same bits: the order of additions is fixed.
__device__ __forceinline__ float warp_sum(float value) {
  for (int bits = 16; bits > 0; bits /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, bits);
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
  for (int bits = 16; bits > 0; bits /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, bits));
  return value;
}

// Bit l is lane l's value.
__device__ __forceinline__ uint32_t warp_mask(bool value) {
  uint32_t mask = value ? 1u << lane_id() : 0;
  for (int bits = 1; bits < kWarpSize; bits *= 2)
    mask |= __shfl_xor_sync(0xffffffffu, mask, bits);
  return mask;
}

// ---- matrix instructions
// c (16, 8) += a (16, 16) · b (16, 8) with f32 sums. g = lane / 4, t = lane % 4 (PTX manual, mma.m16n8k16):
//   a[0] = (g, 2t..)  a[1] = (g + 8, 2t..)  a[2] = (g, 2t + 8..)  a[3] = (g + 8, 2t + 8..)
//   b[0] = (2t.., g)  b[1] = (2t + 8.., g)
//   c[0..1] = (g, 2t..)  c[2..3] = (g + 8, 2t..)
// A register of a holds two neighbors of a row, a register of b two neighbors of a column.
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if defined(__CUDACC__)
  if constexpr (T::kIsBf16)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  struct Payload {
    float (&c)[4];
    const uint32_t (&a)[4];
    const uint32_t (&b)[2];
  } mine{c, a, b};
  cuda_host::warp_collective("mma_m16n8k16", &mine, [](void* const* lanes) {
    float a_matrix[16][16], b_matrix[16][8];
    for (int lane = 0; lane < 32; ++lane) {
      const auto& from = *static_cast<const Payload*>(lanes[lane]);
      const int g = lane / 4, t = lane % 4;
      for (int half = 0; half < 2; ++half) {
        for (int r = 0; r < 4; ++r)
          a_matrix[g + r % 2 * 8][2 * t + r / 2 * 8 + half] =
              to_float<T>(static_cast<uint16_t>(from.a[r] >> 16 * half));
        for (int r = 0; r < 2; ++r)
          b_matrix[2 * t + r * 8 + half][g] = to_float<T>(static_cast<uint16_t>(from.b[r] >> 16 * half));
      }
    }
    for (int lane = 0; lane < 32; ++lane) {
      auto& to = *static_cast<Payload*>(lanes[lane]);
      const int g = lane / 4, t = lane % 4;
      for (int r = 0; r < 4; ++r) {
        // NOTE: the hardware's order of additions within one instruction is not documented. Doubles make it irrelevant.
        double sum = 0;
        for (int k = 0; k < 16; ++k)
          sum += static_cast<double>(a_matrix[g + r / 2 * 8][k]) * b_matrix[k][2 * t + r % 2];
        to.c[r] = static_cast<float>(to.c[r] + sum);
      }
    }
  });
#endif
}

}  // namespace capstan::cuda
