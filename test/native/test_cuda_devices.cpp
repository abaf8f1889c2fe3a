// Several devices and stream capture: every rank uses only its device, and the emulated runtime fails where CUDA's
// does.
#include <algorithm>
#include <thread>

#include "cuda/flags.h"
#include "cuda/graph.h"
#include "cuda/hopper.h"
#include "cuda/memory.h"
#include "test/native/cuda_host/cuda_host.h"
#include "test/native/gpu/device.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

using namespace cuda;

class Stream {
 public:
  explicit Stream(int device = 0) {
    cudaSetDevice(device);
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a test");
  }
  ~Stream() {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
    cudaSetDevice(0);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

cudaError_t launch_write(int* to, cudaStream_t stream) {
  return cuda_host::enqueue(stream, [=] { *to = 7; });
}

std::vector<std::vector<int32_t>> answers_on(const TinyModel& model, const std::string& device, int world_size) {
  LoadRequest request = cuda_request(model, device);
  request.device.world_size = world_size;
  request.device.is_deterministic = true;
  Session session(request);
  std::vector<std::vector<int32_t>> answers;
  for (const int length : {3, 80})
    answers.push_back(
        session.wait(session.submit(random_ids(static_cast<uint64_t>(length), length, 300), 6)).token_ids);
  return answers;
}

TEST(cuda_ranks_use_only_their_device) {
  TinyShape shape;
  shape.intermediate_size = 256;
  const TinyModel model(shape, DType::kBf16);
  const auto wanted = answers_on(model, "cuda:0", 1);
  const size_t before = cuda_host::device_memory_in_use();
  for (const auto& [device, ranks, used] : std::vector<std::tuple<std::string, int, std::set<int>>>{
           {"cuda:1", 1, {1}}, {"cuda:1,1", 2, {1}}, {"cuda:1,0", 2, {0, 1}}}) {
    cuda_host::set_peers(true);  // revokes all peer access
    cudaSetDevice(0);
    cuda_host::take_devices_used();
    EXPECT(answers_on(model, device, ranks) == wanted);
    EXPECT(cuda_host::take_devices_used() == used);
    EXPECT_EQ(cuda_host::device_memory_in_use(), before);
  }
  cudaSetDevice(0);
}

TEST(cuda_host_rejects_objects_of_another_device) {
  cuda_host::set_peers(true);
  const Stream first(0), second(1);
  cudaSetDevice(0);
  cuda::Event event;
  const DeviceBuffer memory(sizeof(int), "a test");
  EXPECT_EQ(cudaEventRecord(event.get(), second), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(event.get(), first), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(second, event.get(), 0), cudaSuccess);
  EXPECT_EQ(launch_write(memory.as<int>(), second), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaMemsetAsync(memory.as<void>(), 0, sizeof(int), second), cudaSuccess);
  cudaSetDevice(1);
  EXPECT_EQ(launch_write(memory.as<int>(), second), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(second), cudaErrorIllegalAddress);
  cuda_host::repair_device();
  EXPECT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaSuccess);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaErrorPeerAccessAlreadyEnabled);
  EXPECT_EQ(launch_write(memory.as<int>(), second), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(second), cudaSuccess);
  EXPECT_EQ(*memory.as<int>(), 7);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  float milliseconds;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, event.get(), event.get()), cudaErrorInvalidResourceHandle);
}

TEST(cuda_host_counts_memory_per_device) {
  const auto free_of = [](int device) {
    size_t free = 0, total = 0;
    cudaSetDevice(device);
    cudaMemGetInfo(&free, &total);
    return free;
  };
  const size_t of_first = free_of(0), of_second = free_of(1);
  {
    const DeviceBuffer memory(1000, "a test");
    EXPECT_EQ(free_of(1), of_second - 1000);
    EXPECT_EQ(free_of(0), of_first);
  }
  EXPECT_EQ(free_of(1), of_second);
  cudaSetDevice(0);
}

// Waiting for captured work fails and invalidates the capture.
TEST(cuda_host_rejects_waiting_for_captured_work) {
  const Stream stream, other;
  cuda::Event event;
  cudaGraph_t graph = nullptr;
  const auto waits = {+[](cudaStream_t recording, cudaEvent_t) { return cudaStreamSynchronize(recording); },
                      +[](cudaStream_t recording, cudaEvent_t) { return cudaStreamQuery(recording); },
                      +[](cudaStream_t, cudaEvent_t recorded) { return cudaEventQuery(recorded); },
                      +[](cudaStream_t, cudaEvent_t recorded) { return cudaEventSynchronize(recorded); }};
  for (const auto wait : waits) {
    begin_capture(stream);
    event.record(stream);
    EXPECT(wait(stream, event.get()) != cudaSuccess);
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  }
  begin_capture(stream);
  event.record(stream);
  std::string failure;
  const Graph recorded = end_capture(stream, failure);
  EXPECT(recorded && failure.empty());
  EXPECT_EQ(cudaStreamWaitEvent(other, event.get(), 0), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event.get()), cudaErrorCapturedEvent);
  event.record(stream);
  EXPECT_EQ(cudaStreamWaitEvent(other, event.get(), 0), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);
}

// What one block with one warp waits for without end. Returns the error.
std::string hang_of(void (*kernel)(int32_t*)) {
  int32_t flag = 0;
  try {
    cuda_host::run_grid(dim3(1), dim3(32), 1024, [&] { kernel(&flag); });
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

// As on a device with limited spins, the message has the file and the line of the wait.
TEST(cuda_host_names_the_wait_that_never_ends) {
  const std::string flag = hang_of([](int32_t* never_set) { wait_and_clear_flag(never_set); });
  EXPECT(flag.find("test_cuda_devices.cpp:" + std::to_string(__LINE__ - 1)) != std::string::npos);
  const std::string barrier = hang_of([](int32_t*) {
    auto* const mbarrier = reinterpret_cast<uint64_t*>(shared_memory());
    if (threadIdx.x == 0) mbarrier_init(mbarrier, 1);
    __syncwarp();
    mbarrier_wait(mbarrier, 0);
  });
  EXPECT(barrier.find("32 threads at") != std::string::npos);
  EXPECT(barrier.find("test_cuda_devices.cpp:" + std::to_string(__LINE__ - 3)) != std::string::npos);
}

// Blocks start in any order, and each gets its own number.
TEST(cuda_host_blocks_take_numbers_in_the_order_in_which_they_start) {
  int32_t next = 0;
  std::vector<int32_t> numbers, indices;
  cuda_host::run_grid(dim3(20), dim3(32), 16, [&] {
    if (threadIdx.x != 0) return;
    numbers.push_back(take_number(&next, 20));
    indices.push_back(static_cast<int32_t>(blockIdx.x));
  });
  EXPECT(next == 0 && std::ranges::is_sorted(numbers) && numbers.back() == 19);
  EXPECT(!std::ranges::is_sorted(indices));
}

// Describes the report that a kernel leaves behind.
TEST(cuda_spin_report_names_the_wait) {
  EXPECT(describe_spin().empty());
  SpinReport report{1, 1, {2, 0, 1}, 5, 4096, 1, 77, "cuda/kernels/gemm_wgmma.cu"};
  host_spin_report() = &report;
  EXPECT_EQ(describe_spin(),
            "cuda/kernels/gemm_wgmma.cu:77: block (2, 0, 1), warp 5 waited too long for mbarrier 4096, parity 1");
  report.parity = -1;
  EXPECT_EQ(describe_spin(), "cuda/kernels/gemm_wgmma.cu:77: block (2, 0, 1), warp 5 waited too long for flag 4096");
  host_spin_report() = nullptr;
}

// Two threads add to a capture until they collide. With the lock they never do.
TEST(cuda_host_captures_take_one_thread_at_a_time) {
  const Stream first, second;
  cuda::Event shown, done;
  const auto record_together = [&](bool takes_turns, int count) {
    const auto record = [&](cudaStream_t stream) {
      is_shared_capture = takes_turns;
      for (int i = 0; i < count; ++i) {
        const auto capture_lock = lock_capture();
        check(cudaMemsetAsync(nullptr, 0, 0, stream), "a test");
      }
      is_shared_capture = false;
    };
    begin_capture(first);
    shown.record(first);
    check(cudaStreamWaitEvent(second, shown.get(), 0), "a test");
    std::thread beside([&] { record(second); });
    record(first);
    beside.join();
    done.record(second);
    check(cudaStreamWaitEvent(first, done.get(), 0), "a test");
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(first, &graph);
    if (error == cudaSuccess) cudaGraphDestroy(graph);
    return error;
  };
  EXPECT_EQ(record_together(true, 100), cudaSuccess);
  cudaError_t error = cudaSuccess;
  for (int tries = 0; tries < 100 && error == cudaSuccess; ++tries)
    error = record_together(false, 100);
  EXPECT_EQ(error, cudaErrorStreamCaptureInvalidated);
}

}  // namespace
}  // namespace capstan::testing
