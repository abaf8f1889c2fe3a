#pragma once
// CUDA for g++: the parts of the language and the runtime that `cuda/` uses, so that every kernel runs on the CPU.
// The threads of a block are fibers, and blocks run one after the other in an order that
// the seed determines. __syncthreads and warp operations are
// rendezvous points. A seed determines the order in which warps proceed, and each round skips some warps, so that a
// missing barrier produces a wrong result. Device and shared memory start as NaN patterns and have exact sizes for
// AddressSanitizer. Streams are lazy: work runs when a thread waits for it.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <set>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

namespace capstan::cuda_host {

// Sets the seed of the order in which warps and blocks proceed.
void set_seed(uint64_t seed);
// Disables the n-th __syncthreads of each thread (0-based; -1: none) in blocks of `num_threads` threads. For mutation
// tests.
void skip_barrier(int n, size_t num_threads = 0);
// Sets the total device memory.
void set_device_memory(size_t bytes);
size_t device_memory_in_use();
// Sets the total pinned memory.
void set_pinned_memory(size_t bytes);
size_t pinned_memory_in_use();
// Makes cudaGraphInstantiate fail with this error (0: succeed).
void fail_graph_instantiation(int error);
// Whether devices support peer access. Also revokes all access that was enabled.
void set_peers(bool can_reach_each_other);
// Returns the devices with a context, and resets the list.
std::set<int> take_devices_used();
// The next call that waits, and every later call, fails with this error (a sticky error).
void break_device(int error);
void repair_device();
// From now on enqueued work never finishes, as behind a hung kernel. Calls that would wait for it abort the process.
void hang_device();
// Runtime calls so far, and calls that have waited for a device.
size_t num_calls();
size_t num_waits();
// 13000 is 13.0, the version of the emulated runtime. 0: no driver.
void set_driver_version(int version);
size_t num_graphs();  // created so far
size_t num_graphs_left();
// Device memory that each later graph takes until it is destroyed.
void set_graph_memory(size_t bytes);
size_t num_streams();

struct ThreadPlace {
  dim3 thread, block, block_dim, grid_dim;
  unsigned char* shared = nullptr;
  size_t shared_bytes = 0;
};
extern constinit thread_local ThreadPlace place;

void sync_threads(const char* where);
// When all threads of a PDL kernel's first block are here, the preceding kernel runs.
void griddepcontrol_wait();
// Throws when the flag is not set: blocks run in order, so no other block can set it later.
void wait_and_clear_flag(int32_t flag, const char* file, int line);
// Waits until all lanes of the warp have arrived with their payloads. Then one lane computes for all.
void warp_collective(const char* where, void* payload, const std::function<void(void* const* lanes)>& compute);

template <class T, class Pick>
T exchange(const char* where, T value, Pick pick) {
  struct Payload {
    T in, out;
  } mine{value, value};
  const unsigned lane = place.thread.x % 32;
  warp_collective(where, &mine, [&](void* const* lanes) {
    for (unsigned l = 0; l < 32; ++l) {
      // NOTE: one lane's `pick` serves all lanes. Its argument is the lane.
      static_cast<Payload*>(lanes[l])->out = static_cast<Payload*>(lanes[pick(l)])->in;
    }
  });
  (void)lane;
  return mine.out;
}

struct Stream;
struct Event;
struct Graph;
struct GraphExec;
void run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& kernel);

// ---- asynchronous instructions of compute capability 9.0 (cuda/hopper.h, async.cpp)

void set_compute_capability(int major);
// The architecture that kernels were compiled for: 80, 90, ….
void set_ptx_version(int version);
void set_multiprocessors(int count);
// Makes the driver reject all tensor maps.
void disable_tensor_maps(bool refuses);
bool supports_tensor_maps();
struct alignas(64) TensorMap {
  const unsigned char* data = nullptr;
  int64_t rows = 0, columns = 0;  // of 16-bit elements
  int box_rows = 0, box_columns = 0;
};
bool encode_tensor_map(TensorMap& map, const void* data, int64_t rows, int64_t columns, int box_rows, int box_columns);

// Shared memory starts at address 0.
uint32_t shared_address(const void* place);
void mbarrier_init(const void* barrier, int count);
void mbarrier_arrive(const void* barrier, int bytes);
void mbarrier_wait(const char* file, int line, const void* barrier, int parity);
// The destination is poisoned until a thread waits for the barrier.
void cp_async_bulk(void* to, const void* from, int bytes, const void* barrier);
void tma_load_2d(void* to, const TensorMap& map, int column, int row, const void* barrier);
// The destination is poisoned until the calling thread waits. wgmma sees poison until that thread has also called
// fence_proxy_async.
void cp_async(void* to, const void* from);
void cp_async_commit_group();
void cp_async_wait_group(int pending);
void fence_proxy_async();
// acc is poisoned, and a and b are read, only when a wait requires the product.
void wgmma_fence();
void wgmma(std::vector<float*> acc, const std::array<const uint32_t*, 4>& a, uint64_t b, float (*to_float)(uint16_t));
void wgmma_commit_group();
void wgmma_wait_group(int pending);

}  // namespace capstan::cuda_host

#define threadIdx (::capstan::cuda_host::place.thread)
#define blockIdx (::capstan::cuda_host::place.block)
#define blockDim (::capstan::cuda_host::place.block_dim)
#define gridDim (::capstan::cuda_host::place.grid_dim)

#define CAPSTAN_LINE_2(x) #x
#define CAPSTAN_LINE(x) CAPSTAN_LINE_2(x)
#define CAPSTAN_HERE __FILE__ ":" CAPSTAN_LINE(__LINE__)

#define __syncthreads() ::capstan::cuda_host::sync_threads(CAPSTAN_HERE)
#define __syncwarp() ::capstan::cuda_host::warp_collective(CAPSTAN_HERE, nullptr, [](void* const*) {})
#define __shfl_xor_sync(mask, value, bits) \
  ::capstan::cuda_host::exchange(CAPSTAN_HERE, value, [=](unsigned l) { return l ^ static_cast<unsigned>(bits); })
#define __shfl_sync(mask, value, from) ::capstan::cuda_host::shuffle(CAPSTAN_HERE, value, static_cast<unsigned>(from))

namespace capstan::cuda_host {

// The source lane may differ between lanes.
template <class T>
T shuffle(const char* where, T value, unsigned from) {
  struct Payload {
    T in, out;
    unsigned from;
  } mine{value, value, from % 32};
  warp_collective(where, &mine, [](void* const* lanes) {
    for (unsigned l = 0; l < 32; ++l) {
      auto* to = static_cast<Payload*>(lanes[l]);
      to->out = static_cast<Payload*>(lanes[to->from])->in;
    }
  });
  return mine.out;
}

}  // namespace capstan::cuda_host

// Plain operations are atomic here, because blocks run one after the other and fibers switch only at rendezvous points.
template <class T, class U>
T atomicAdd(T* address, U value) {
  const T old = *address;
  *address = static_cast<T>(old + static_cast<T>(value));
  return old;
}
template <class T>
T atomicMax(T* address, T value) {
  const T old = *address;
  *address = std::max(old, value);
  return old;
}
inline void __threadfence() {}
inline int __popc(unsigned bits) {
  return __builtin_popcount(bits);
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline int __ffs(int bits) {
  return __builtin_ffs(bits);
}

// ---- the runtime

using cudaStream_t = capstan::cuda_host::Stream*;
using cudaEvent_t = capstan::cuda_host::Event*;
using cudaGraph_t = capstan::cuda_host::Graph*;
using cudaGraphExec_t = capstan::cuda_host::GraphExec*;
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInitializationError = 3,
  cudaErrorInsufficientDriver = 35,
  cudaErrorDevicesUnavailable = 46,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorUnsupportedPtxVersion = 222,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorPeerAccessAlreadyEnabled = 704,
  cudaErrorLaunchFailure = 719,
  cudaErrorSystemNotReady = 802,
  cudaErrorSystemDriverMismatch = 803,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
  cudaErrorStreamCaptureUnjoined = 904,
  cudaErrorStreamCaptureIsolation = 905,
  cudaErrorCapturedEvent = 907,
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
struct cudaFuncAttributes {
  int ptxVersion;
};
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal,
  cudaStreamCaptureModeThreadLocal,
  cudaStreamCaptureModeRelaxed
};

const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device);
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel);
cudaError_t cudaDeviceCanAccessPeer(int* can_access, int device, int peer);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags);
cudaError_t cudaGetLastError();
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaMalloc(void** out, size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaMallocHost(void** out, size_t bytes);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);
// A capturing stream runs nothing, and neither do streams that wait for its events. Launching the graph runs the
// captured work in any order that streams and events allow.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);

namespace capstan::cuda_host {

struct KernelArgument {
  const void* value;
  size_t bytes;
};
// Returns the kernel's thread function from its PTX when CAPSTAN_TEST_PTX names a folder of PTX files, otherwise null
// (ptx.cpp).
std::function<void()> compiled_kernel(const void* kernel, std::vector<KernelArgument> arguments);
// Returns the kernel's thread function.
template <class... Parameters>
std::function<void()> kernel_of(void (*kernel)(Parameters...), Parameters... arguments) {
  if (auto compiled =
          compiled_kernel(reinterpret_cast<const void*>(kernel), {KernelArgument{&arguments, sizeof arguments}...}))
    return compiled;
  return [=] { kernel(arguments...); };
}

// Launches a kernel. The stream's device must be the calling thread's.
cudaError_t enqueue(Stream* stream, std::function<void()> work);
// Launches a PDL kernel: its first block starts before the preceding work runs.
cudaError_t enqueue_pdl(Stream* stream, std::function<void()> work);

}  // namespace capstan::cuda_host
