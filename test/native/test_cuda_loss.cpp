// What ends the use of a device and what does not: memory that is full, kernels that hang, devices that are not for us.
// Nothing waits for a lost device, and nothing calls it.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <future>
#include <stdexcept>
#include <thread>

#include "cuda/memory.h"
#include "test/native/cuda_host/cuda_host.h"
#include "test/native/gpu/device.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

using namespace cuda;

// One whose rows need more memory than the sampler has taken at the beginning; the prompt takes two steps, of which the
// first wants no logits.
Request with_many_biases() {
  Request request;
  request.prompt_token_ids = random_ids(1, 100, 300);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 3;
  for (int32_t id = 0; id < 300; ++id)
    request.sampling.logit_bias.emplace_back(id, 0.5f);
  return request;
}

// Until the test ends: a device that has hung is lost after so long, and one that was lost is not.
class ShortDeadline {
 public:
  ShortDeadline() { step_deadline() = std::chrono::milliseconds(50); }
  ~ShortDeadline() {
    cuda_host::repair_device();
    is_device_lost() = false;
    step_deadline() = std::chrono::milliseconds(60'000);
  }
};

std::string what_fails(const LoadRequest& request, const char* code) {
  try {
    load_engine(request, [](int64_t, int64_t) { throw std::logic_error("weights are read"); }, [](auto&&) {});
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error_code_name(error.code())), std::string(code));
    return error.what();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

void expect_lost(Session& session, const Answer& answer) {
  EXPECT(answer.finish->reason == FinishReason::kError && answer.finish->error_code == ErrorCode::kDeviceLost);
  EXPECT(!session.engine().stats().failure.empty());
  EXPECT_ERROR("device_lost", session.submit({1, 2, 3}, 2));
}

// A kernel that never ends: the step's deadline passes, open requests end, and nothing waits for the device any more.
TEST(cuda_hung_step_loses_the_device) {
  const TinyModel model(TinyShape{}, DType::kBf16);
  const ShortDeadline deadline;
  {
    Session session(on_cuda(model));
    session.wait(session.submit({1, 2, 3}, 2));
    cuda_host::hang_device();
    expect_lost(session, session.wait(session.submit({1, 2, 3}, 2)));
  }
  cuda_host::repair_device();
  EXPECT_ERROR("device_lost", Session(on_cuda(model)));
}

// Memory that has become too small is not freed behind the step that hangs.
TEST(cuda_hung_step_is_not_waited_for_by_the_next) {
  const TinyModel model(shape_of_ranks(), DType::kBf16);
  for (const char* device : {"cuda", "cuda:0,1"}) {
    const ShortDeadline deadline;
    Session session(on_cuda(model, device));
    cuda_host::hang_device();
    expect_lost(session, session.wait(session.submit(with_many_biases())));
  }
}

// Steps of many layers are more than the driver takes at a time: nobody enqueues so much ahead of the device, where the
// driver would wait with no deadline.
TEST(cuda_hung_step_of_many_layers_is_not_enqueued_behind) {
  TinyShape shape = shape_of_ranks();
  shape.num_layers = 80;
  const TinyModel model(shape, DType::kBf16);
  for (const char* device : {"cuda", "cuda:0,1"}) {
    const ShortDeadline deadline;
    LoadRequest request = on_cuda(model, device);
    request.kv_cache_bytes = 64 << 20;
    Session session(request);
    cuda_host::hang_device();
    expect_lost(session, session.wait(session.submit(with_many_biases())));
  }
}

TEST(cuda_wait_ends_when_another_rank_has_lost_the_device) {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a test");
  cuda_host::hang_device();
  check(cuda_host::enqueue(stream, [] {}), "a test");
  const auto code = std::async(std::launch::async, [&] { return thrown_code([&] { wait_for(stream); }); });
  const size_t before = cuda_host::num_calls();
  while (cuda_host::num_calls() == before)
    std::this_thread::yield();
  EXPECT_ERROR("device_lost", lose_device("a test"));
  EXPECT(code.wait_for(std::chrono::seconds(30)) == std::future_status::ready);
  is_device_lost() = false;
  cuda_host::repair_device();
  wait_for(stream);
  check(cudaStreamDestroy(stream), "a test");
}

// Close comes before anybody has waited for the step that hangs: the backend does, up to the deadline, and then leaves
// everything behind.
TEST(cuda_closes_while_the_device_hangs) {
  const TinyModel model(shape_of_ranks(), DType::kBf16);
  for (const char* device : {"cuda", "cuda:0,1"}) {
    const ShortDeadline deadline;
    LoadedEngine loaded;
    std::thread closer;
    std::promise<void> is_closed;
    const auto close = [&] {
      loaded.engine->close();
      is_closed.set_value();
    };
    loaded = load_engine(
        on_cuda(model, device), [](int64_t, int64_t) {},
        [&](auto&&) {
          if (closer.joinable()) return;
          cuda_host::hang_device();  // with the next step in flight
          closer = std::thread(close);
          while (thrown_code([&] { loaded.engine->submit(with_many_biases()); }) != "engine_closed")
            std::this_thread::yield();
        });
    loaded.engine->submit(with_many_biases());
    is_closed.get_future().wait();
    closer.join();
    EXPECT(!is_device_lost());
    loaded.engine.reset();
    EXPECT(is_device_lost());
  }
}

// A process of its own is told by a byte that its request has ended, and closes and exits.
TEST(cuda_close_and_exit_take_no_second_after_a_loss) {
  const TinyModel model(TinyShape{}, DType::kBf16);
  int ends[2];
  EXPECT(pipe(ends) == 0);
  const pid_t process = fork();
  if (process == 0) {
    step_deadline() = std::chrono::milliseconds(50);
    {
      Session session(on_cuda(model));
      cuda_host::hang_device();
      expect_lost(session, session.wait(session.submit({1, 2, 3}, 2)));
      if (write(ends[1], "x", 1) != 1) _exit(2);
      session.engine().close();
    }
    std::exit(num_failures() > 0 ? 1 : 0);
  }
  close(ends[1]);
  char byte;
  EXPECT_EQ(read(ends[0], &byte, 1), ssize_t{1});
  const auto begun = std::chrono::steady_clock::now();
  int status = -1;
  waitpid(process, &status, 0);
  EXPECT(std::chrono::steady_clock::now() - begun < std::chrono::seconds(1));
  EXPECT_EQ(status, 0);
  close(ends[0]);
}

// Of all the ways to wait only those with a deadline are left: whatever steps ask for.
TEST(cuda_steps_wait_for_nothing_without_a_deadline) {
  const TinyModel model(shape_of_ranks(), DType::kBf16);
  for (const char* device : {"cuda", "cuda:0,0"}) {
    Session session(on_cuda(model, device));
    const size_t before = cuda_host::num_waits();
    Request request = with_many_biases();
    request.sampling.num_logprobs = 100;
    const RequestId first = session.submit(request), second = session.submit(random_ids(2, 150, 300), 6);
    EXPECT_EQ(session.wait(first).token_ids.size(), size_t{3});
    EXPECT_EQ(session.wait(second).token_ids.size(), size_t{6});
    EXPECT_EQ(cuda_host::num_waits(), before);
  }
}

// In the midst of serving a full device is a lost one: nobody knows what the driver has left undone.
TEST(cuda_memory_that_ends_in_flight_loses_the_device) {
  const TinyModel model(shape_of_ranks(), DType::kBf16);
  for (const char* device : {"cuda", "cuda:0,0"}) {
    const ShortDeadline deadline;
    size_t calls = 0;
    {
      Session session(on_cuda(model, device));
      cuda_host::set_device_memory(cuda_host::device_memory_in_use());
      expect_lost(session, session.wait(session.submit(with_many_biases())));
      EXPECT(session.engine().stats().failure.find("out of memory") != std::string::npos);
      calls = cuda_host::num_calls();
    }
    cuda_host::set_device_memory(size_t{1} << 30);
    EXPECT(what_fails(on_cuda(model, device), "device_lost").find("out of memory") != std::string::npos);
    EXPECT_EQ(cuda_host::num_calls(), calls);
  }
}

TEST(cuda_memory_that_ends_at_start_is_told) {
  const TinyModel model(shape_of_ranks(), DType::kBf16);
  const size_t before = cuda_host::device_memory_in_use();
  for (const char* device : {"cuda", "cuda:0,0"}) {
    // Room for one of the two pinned buffers.
    cuda_host::set_pinned_memory(12 << 20);
    EXPECT_ERROR("out_of_memory", Session(on_cuda(model, device)));
    cuda_host::set_pinned_memory(size_t{1} << 30);
    EXPECT(cuda_host::device_memory_in_use() == before && cuda_host::pinned_memory_in_use() == 0);
    Session session(on_cuda(model, device));
    EXPECT(cuda_host::pinned_memory_in_use() < 8 << 20);  // the weights have gone through
    EXPECT_EQ(session.wait(session.submit({1, 2, 3}, 2)).token_ids.size(), size_t{2});
  }
}

// This thread's next load has nothing to do with it.
TEST(cuda_recording_that_fails_ends_on_its_thread) {
  const TinyModel model(shape_of_ranks(), DType::kBf16);
  const ShortDeadline deadline;
  cuda_host::break_graphs(cudaErrorLaunchFailure);
  EXPECT_ERROR("device_lost", Session(on_cuda(model, "cuda:0,0")));
  EXPECT(!shares_recording);
  cuda_host::break_graphs(cudaSuccess);
}

TEST(cuda_device_that_is_not_for_us_is_told_and_not_lost) {
  const TinyModel model(TinyShape{}, DType::kBf16);
  cuda_host::set_compute_capability(7);
  EXPECT_EQ(what_fails(on_cuda(model, "cuda:1"), "invalid_argument"),
            "device: expected compute capability 8.0 or newer, device 1 has 7.0");
  cuda_host::set_compute_capability(8);
  for (const int error : {cudaErrorDevicesUnavailable, cudaErrorNoKernelImageForDevice}) {
    cuda_host::break_device(error);
    EXPECT(what_fails(on_cuda(model), "invalid_argument").find(cudaGetErrorString(static_cast<cudaError_t>(error))) !=
           std::string::npos);
    cuda_host::repair_device();
  }
  Session session(on_cuda(model));
  EXPECT_EQ(session.wait(session.submit({1, 2, 3}, 2)).token_ids.size(), size_t{2});
}

// Before any weights are read.
TEST(cuda_refuses_what_it_cannot_run_before_it_loads) {
  const TinyModel model(TinyShape{}, DType::kBf16);
  LoadRequest request = on_cuda(model);
  request.compute = ComputeChoice::kF32;
  EXPECT_EQ(what_fails(request, "invalid_argument"),
            "computeDtype: expected auto on cuda, which computes in bf16 here, got f32");
  TinyShape shape;
  shape.head_dim = 160;
  const TinyModel wide(shape, DType::kBf16);
  EXPECT_EQ(what_fails(on_cuda(wide), "unsupported_model"), "CUDA: head size: expected at most 128, got 160");
  shape = shape_of_ranks();
  shape.hidden_size = 16, shape.vocab_size = (1 << 18) + 1;
  const TinyModel wordy(shape, DType::kBf16);
  EXPECT_EQ(what_fails(on_cuda(wordy), "unsupported_model"),
            "CUDA: vocabulary: expected at most 262144 tokens, got 262145");
  // 12 MiB of embedding and head, half of which each of two ranks has.
  shape.vocab_size = 200'000;
  const TinyModel heavy(shape, DType::kBf16);
  cuda_host::set_device_memory(8 << 20);
  for (const char* device : {"cuda", "cuda:0,0"})
    EXPECT_EQ(what_fails(on_cuda(heavy, device), "out_of_memory"),
              "the weights need 12 MiB as bf16 on device 0, and 8 MiB of its memory are left");
  EXPECT_EQ(what_fails(on_cuda(heavy, "cuda:0,1"), ""), "weights are read");
  cuda_host::set_device_memory(size_t{1} << 30);
}

TEST(cuda_lost_device_is_not_called_again) {
  DecoderShape shape;
  shape.file_dtype = DType::kBf16;
  DecoderFixture fixture(shape);
  cuda_host::break_device(cudaErrorIllegalAddress);
  EXPECT_ERROR("device_lost", fixture.run(cuda_options(DType::kBf16), {random_ids(1, 9, shape.vocab_size)}));
  cuda_host::repair_device();
  EXPECT_ERROR("device_lost", fixture.run(cuda_options(DType::kBf16), {random_ids(1, 9, shape.vocab_size)}));
  // A rank that begins its step after another has lost the device may be the first to say so: it names the cause.
  std::string said;
  try {
    refuse_lost_device();
  } catch (const Error& error) {
    said = error.what();
  }
  EXPECT(said.find("an illegal memory access was encountered") != std::string::npos);
  is_device_lost() = false;
}

}  // namespace
}  // namespace capstan::testing
