// Loses the device under a running engine. CAPSTAN_GPU_FAULTS names the library that does this (faults.cu); without it
// these tests print a note and pass. Each case runs in a separate process, so that the time of its exit is measured as
// well.
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "test/native/gpu/device.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void run_fault(const char* name) {
  void* library = dlopen(std::getenv("CAPSTAN_GPU_FAULTS"), RTLD_NOW | RTLD_LOCAL);
  const auto fault = library == nullptr ? nullptr : reinterpret_cast<void (*)()>(dlsym(library, name));
  if (fault == nullptr) throw Error(ErrorCode::kIo, std::string("CAPSTAN_GPU_FAULTS: ") + dlerror());
  fault();
}

// Open requests end, new ones are refused, and no thread waits for the device.
void lose_device_of(const LoadRequest& request, const char* fault) {
  Session session(request);
  EXPECT_EQ(session.wait(session.submit({1, 2, 3}, 2)).token_ids.size(), size_t{2});
  run_fault(fault);
  auto begin = Clock::now();
  const Answer answer = session.wait(session.submit({1, 2, 3}, 2));
  std::printf("  the request ended after %.2f s: %s\n", seconds_since(begin), session.engine().stats().failure.c_str());
  EXPECT(answer.finish->reason == FinishReason::kError && answer.finish->error_code == ErrorCode::kDeviceLost);
  EXPECT(seconds_since(begin) < 5);
  EXPECT_ERROR("device_lost", session.submit({1, 2, 3}, 2));
  EXPECT_ERROR("device_lost", Session{request});
  begin = Clock::now();
  session.engine().close();
  std::printf("  closed after %.2f s\n", seconds_since(begin));
  EXPECT(seconds_since(begin) < 1);
}

void expect_end_in_time(const char* fault, int world_size) {
  const char* library = std::getenv("CAPSTAN_GPU_FAULTS");
  if (library == nullptr || *library == '\0') {
    std::printf("  skipped: CAPSTAN_GPU_FAULTS is not set (benchmarks/gpu.sh sets it)\n");
    return;
  }
  TinyShape shape;
  shape.intermediate_size = 256;
  const TinyModel model(shape, DType::kBf16);
  LoadRequest request = model.request();
  request.compute = ComputeChoice::kAuto;
  request.device.device = cuda_device(world_size);
  request.device.world_size = world_size;
  request.max_num_batched_tokens = 96, request.max_num_seqs = 8;
  request.kv_cache_bytes = 16 << 20;
  // The time when the process starts to exit.
  auto* const end_begun =
      new (mmap(nullptr, sizeof(Clock::time_point), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
          Clock::time_point{};
  std::fflush(stdout);
  const pid_t process = fork();
  if (process == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // a hung child dies with the test
    setenv("CAPSTAN_CUDA_DEADLINE_MS", "200", 1);
    try {
      lose_device_of(request, fault);
    } catch (const std::exception& error) {
      fail(fault, 0, std::string("threw: ") + error.what());
    }
    std::fflush(stdout);
    *end_begun = Clock::now();
    std::exit(num_failures() == 0 ? 0 : 1);
  }
  int status = 0;
  const auto begin = Clock::now();
  while (waitpid(process, &status, WNOHANG) == 0) {
    if (seconds_since(begin) > 20) {
      kill(process, SIGKILL);
      return fail(fault, world_size, *end_begun == Clock::time_point{} ? "hangs" : "closes, but does not exit");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(status, 0);
  std::printf("  the process ended after %.2f s\n", seconds_since(*end_begun));
  EXPECT(seconds_since(*end_begun) < 1);
}

TEST(cuda_loss_by_a_hung_kernel) {
  for (const int world_size : {1, 2})
    expect_end_in_time("gpu_fault_hang", world_size);
}

TEST(cuda_loss_by_an_invalid_address) {
  for (const int world_size : {1, 2})
    expect_end_in_time("gpu_fault_break", world_size);
}

}  // namespace
}  // namespace capstan::testing
