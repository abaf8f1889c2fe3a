// Which faults lose a device: out of memory, hung kernels, unsupported devices. After a loss the backend neither waits
// for the device nor calls CUDA.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <future>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "cuda/memory.h"
#include "test/native/cuda_host/cuda_host.h"
#include "test/native/gpu/device.h"
#include "test/native/testing.h"
#include "test/native/tiny_adapter.h"

namespace capstan::testing {
namespace {

using namespace cuda;

// A request whose sampling lists exceed the preallocated staging memory. Its prompt takes two steps, and the first has
// no logits.
Request request_with_many_biases() {
  Request request;
  request.prompt_token_ids = random_ids(1, 100, 300);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 3;
  for (int32_t id = 0; id < 300; ++id)
    request.sampling.logit_bias.emplace_back(id, 0.5f);
  return request;
}

// Hangs the device. NOTE: only from here on is the deadline short: on a busy machine, a step that does not hang may
// take longer than that.
void hang_device() {
  step_deadline() = std::chrono::milliseconds(50);
  cuda_host::hang_device();
}

// Repairs the device at the end of its lifetime.
class RepairsDevice {
 public:
  RepairsDevice() = default;
  RepairsDevice(const RepairsDevice&) = delete;
  RepairsDevice& operator=(const RepairsDevice&) = delete;
  ~RepairsDevice() {
    cuda_host::repair_device();
    is_device_lost() = false;
    step_deadline() = std::chrono::milliseconds(60'000);
  }
};

std::string load_failure(const LoadRequest& request, const char* code) {
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

// A kernel never ends: after the deadline open requests end, and no thread waits for the device.
TEST(cuda_hung_step_loses_the_device) {
  const TinyModel model(TinyShape{}, DType::kBf16);
  const RepairsDevice repairs;
  {
    Session session(cuda_request(model));
    session.wait(session.submit({1, 2, 3}, 2));
    hang_device();
    expect_lost(session, session.wait(session.submit({1, 2, 3}, 2)));
  }
  cuda_host::repair_device();
  EXPECT_ERROR("device_lost", Session(cuda_request(model)));
}

// Outgrown memory is not freed behind a hung step.
TEST(cuda_next_step_does_not_wait_for_a_hung_step) {
  const TinyModel model(splittable_shape(), DType::kBf16);
  for (const char* device : {"cuda", "cuda:0,1"}) {
    const RepairsDevice repairs;
    Session session(cuda_request(model, device));
    hang_device();
    expect_lost(session, session.wait(session.submit(request_with_many_biases())));
  }
}

// A step of many layers exceeds the driver's launch queue. The backend must not enqueue that far ahead, because the
// driver would block without a deadline.
TEST(cuda_enqueues_only_a_few_layers_behind_a_hung_step) {
  TinyShape shape = splittable_shape();
  shape.num_layers = 80;
  const TinyModel model(shape, DType::kBf16);
  for (const char* device : {"cuda", "cuda:0,1"}) {
    const RepairsDevice repairs;
    LoadRequest request = cuda_request(model, device);
    request.kv_cache_bytes = 64 << 20;
    Session session(request);
    hang_device();
    expect_lost(session, session.wait(session.submit(request_with_many_biases())));
  }
}

// The rows that adapters update are multiplied in groups, with several launches each.
TEST(cuda_enqueues_only_a_few_updates_behind_a_hung_step) {
  constexpr int kTokens = 2048, kBlockSize = 64;
  constexpr int64_t kSize = 32;
  const RepairsDevice repairs;
  MemoryCheckpoint checkpoint;
  const auto tensor = [&](const char* name, int64_t rows, int64_t cols) {
    std::vector<float> values = random_values(1, rows * cols, 0.1f);
    return whole(checkpoint.add(name, DType::kBf16, rows, cols, values));
  };
  const RunOptions options = cuda_options(DType::kBf16);
  const std::unique_ptr<Backend> backend = options.make_backend(options, nullptr);
  LayerWeights weights;
  MatrixSource gate_up, down;
  gate_up.slices = {tensor("gate", kSize, kSize), tensor("up", kSize, kSize)};
  gate_up.interleave_pairs = true;
  weights.gate_up_proj = backend->load_matrix(gate_up, {});
  down.kind = MatrixKind::kRow;
  down.total_cols = kSize;
  down.slices = {tensor("down", kSize, kSize)};
  weights.down_proj = backend->load_matrix(down, {});
  weights.mlp_norm = backend->load_vector(tensor("norm", 1, kSize), 0.0f, {});

  DeviceModel model;
  model.hidden_size = model.intermediate_size = kSize;
  model.num_heads = model.num_kv_heads = model.total_kv_heads = 1;
  model.head_dim = 16;
  model.vocab_size = model.vocab_end = model.num_token_ids = 64;
  model.max_model_len = kTokens;
  model.layers = {{}};
  model.kv_groups = {{0, 1}};
  model.rope_tables.emplace_back().rotary_dim = 16;
  DeviceLimits limits;
  limits.max_num_tokens = kTokens;
  limits.max_num_seqs = 1;
  limits.block_size = kBlockSize;
  limits.num_blocks = {kTokens / kBlockSize};
  limits.max_lora_rank = 8;
  backend->prepare(model, limits);
  AdapterWeights adapter;
  adapter.layers.resize(1);
  LoraSource update;
  update.memory = &adapter.memory;
  update.factors = {{tensor("a", 4, kSize), {{0, tensor("b", kSize, 4)}}, 1}};
  adapter.layers[0].gate_up_proj = backend->load_lora(update, *weights.gate_up_proj);

  std::vector<int32_t> places(kTokens), blocks(kTokens / kBlockSize);
  std::iota(places.begin(), places.end(), 0);
  std::iota(blocks.begin(), blocks.end(), 0);
  const std::vector<int32_t> ids(kTokens, 1), cu_seqlens = {0, kTokens}, context_lens = {kTokens}, indices = {0};
  const std::vector<KvGroupInput> groups = {{places, blocks}};
  const std::vector<const AdapterWeights*> adapters = {&adapter};
  StepInput step{ids, places, cu_seqlens, context_lens, groups, kTokens / kBlockSize};
  step.adapters = adapters;
  step.adapter_indices = indices;
  hang_device();
  backend->begin_step(step);
  EXPECT_EQ(thrown_code([&] {
              for (int i = 0; i < 200; ++i)
                backend->norm_gate_up(weights);
            }),
            "device_lost");
}

TEST(cuda_wait_ends_when_another_rank_loses_the_device) {
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

// `close` is called before any thread has waited for the hung step. The backend waits until the deadline and then leaks
// everything.
TEST(cuda_closes_while_the_device_hangs) {
  const TinyModel model(splittable_shape(), DType::kBf16);
  for (const char* device : {"cuda", "cuda:0,1"}) {
    const RepairsDevice repairs;
    LoadedEngine loaded;
    std::thread closer;
    std::promise<void> is_closed;
    const auto close = [&] {
      loaded.engine->close();
      is_closed.set_value();
    };
    loaded = load_engine(
        cuda_request(model, device), [](int64_t, int64_t) {},
        [&](auto&&) {
          if (closer.joinable()) return;
          hang_device();  // while the next step is in flight
          closer = std::thread(close);
          while (thrown_code([&] { loaded.engine->submit(request_with_many_biases()); }) != "engine_closed")
            std::this_thread::yield();
        });
    loaded.engine->submit(request_with_many_biases());
    is_closed.get_future().wait();
    closer.join();
    EXPECT(!is_device_lost());
    loaded.engine.reset();
    EXPECT(is_device_lost());
  }
}

// A child process reports through a pipe that its request has ended. Then it closes the engine and exits.
TEST(cuda_closes_and_exits_without_waiting_after_a_loss) {
  const TinyModel model(TinyShape{}, DType::kBf16);
  int ends[2];
  EXPECT(pipe(ends) == 0);
  const pid_t process = fork();
  if (process == 0) {
    {
      Session session(cuda_request(model));
      hang_device();
      expect_lost(session, session.wait(session.submit({1, 2, 3}, 2)));
      step_deadline() = std::chrono::milliseconds(60'000);  // another wait for the device takes this long
      if (write(ends[1], "x", 1) != 1) _exit(2);
      session.engine().close();
    }
    std::exit(num_failures() > 0 ? 1 : 0);
  }
  close(ends[1]);
  char byte;
  EXPECT_EQ(read(ends[0], &byte, 1), ssize_t{1});
  const auto start = std::chrono::steady_clock::now();
  int status = -1;
  waitpid(process, &status, 0);
  EXPECT(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));
  EXPECT_EQ(status, 0);
  close(ends[0]);
}

// Whatever steps request, all waits have a deadline.
TEST(cuda_steps_wait_only_with_a_deadline) {
  const TinyModel model(splittable_shape(), DType::kBf16);
  for (const char* device : {"cuda", "cuda:0,0"}) {
    Session session(cuda_request(model, device));
    const size_t before = cuda_host::num_waits();
    Request request = request_with_many_biases();
    request.sampling.num_logprobs = 100;
    const RequestId first = session.submit(request), second = session.submit(random_ids(2, 150, 300), 6);
    EXPECT_EQ(session.wait(first).token_ids.size(), size_t{3});
    EXPECT_EQ(session.wait(second).token_ids.size(), size_t{6});
    EXPECT_EQ(cuda_host::num_waits(), before);
  }
}

// While serving, running out of memory loses the device, because the driver's state is unknown.
TEST(cuda_out_of_memory_while_serving_loses_the_device) {
  const TinyModel model(splittable_shape(), DType::kBf16);
  for (const char* device : {"cuda", "cuda:0,0"}) {
    const RepairsDevice repairs;
    size_t calls = 0;
    {
      Session session(cuda_request(model, device));
      cuda_host::set_device_memory(cuda_host::device_memory_in_use());
      expect_lost(session, session.wait(session.submit(request_with_many_biases())));
      EXPECT(session.engine().stats().failure.find("out of memory") != std::string::npos);
      calls = cuda_host::num_calls();
    }
    cuda_host::set_device_memory(size_t{1} << 30);
    EXPECT(load_failure(cuda_request(model, device), "device_lost").find("out of memory") != std::string::npos);
    EXPECT_EQ(cuda_host::num_calls(), calls);
  }
}

// An adapter that fits only in part is refused, and none of it stays in memory.
TEST(cuda_adapters_leave_memory_for_steps) {
  const TinyModel model(splittable_shape(), DType::kBf16);
  for (const char* device : {"cuda", "cuda:0,0"}) {
    const RepairsDevice repairs;
    LoadRequest load = cuda_request(model, device);
    load.has_adapters = true;
    Session session(load);
    TinyAdapter small, large(50);
    small.add(0, "q_proj", 3, 64, 128);
    large.add(0, "q_proj", 64, 64, 128).add(1, "q_proj", 64, 64, 128);
    Request request = request_with_many_biases();
    request.adapter_id = session.engine().load_adapter(small.source);
    const size_t before = cuda_host::device_memory_in_use();
    // Twice the memory that graphs may take is left, and most of `large` fits beside it.
    cuda_host::set_device_memory(before + (32 << 20) + (60 << 10));
    EXPECT_ERROR("out_of_memory", session.engine().load_adapter(large.source));
    EXPECT_EQ(cuda_host::device_memory_in_use(), before);
    EXPECT_EQ(session.wait(session.submit(request)).token_ids.size(), size_t{3});
    cuda_host::set_device_memory(size_t{1} << 30);
    request.adapter_id = session.engine().load_adapter(large.source);
    EXPECT_EQ(session.wait(session.submit(request)).token_ids.size(), size_t{3});
  }
}

// Each device holds one rank of the adapter.
TEST(cuda_adapters_need_the_memory_of_one_rank_per_device) {
  TinyShape shape = splittable_shape();
  shape.num_layers = 12;
  const TinyModel model(shape, DType::kBf16);
  const RepairsDevice repairs;
  constexpr size_t kSmall = 64 << 20;
  cuda_host::set_device_memory(kSmall);
  {
    LoadRequest load = cuda_request(model, "cuda:0,1");
    load.has_adapters = true;
    Session session(load);
    TinyAdapter adapter;
    for (int layer = 0; layer < shape.num_layers; ++layer)
      adapter.add(layer, "gate_proj", 64, 64, 256)
          .add(layer, "up_proj", 64, 64, 256)
          .add(layer, "down_proj", 64, 256, 64);
    size_t most_used = 0;
    for (const int one : {0, 1}) {
      size_t free = 0, total = 0;
      check(cudaSetDevice(one), "a test");
      check(cudaMemGetInfo(&free, &total), "a test");
      most_used = std::max(most_used, total - free);
    }
    // The estimate for one rank is 2.9 MiB, and 2 MiB are reserved.
    cuda_host::set_device_memory(most_used + (9 << 19));
    EXPECT(session.engine().load_adapter(adapter.source) > 0);
  }
  cuda_host::set_device_memory(size_t{1} << 30);
}

TEST(cuda_reports_out_of_memory_at_startup) {
  const TinyModel model(splittable_shape(), DType::kBf16);
  const size_t before = cuda_host::device_memory_in_use();
  for (const char* device : {"cuda", "cuda:0,0"}) {
    // Enough for one of the two pinned buffers.
    cuda_host::set_pinned_memory(12 << 20);
    EXPECT_ERROR("out_of_memory", Session(cuda_request(model, device)));
    cuda_host::set_pinned_memory(size_t{1} << 30);
    EXPECT(cuda_host::device_memory_in_use() == before && cuda_host::pinned_memory_in_use() == 0);
    Session session(cuda_request(model, device));
    EXPECT(cuda_host::pinned_memory_in_use() < 8 << 20);  // the upload buffers are freed
    EXPECT_EQ(session.wait(session.submit({1, 2, 3}, 2)).token_ids.size(), size_t{2});
  }
}

// Whatever the reason, steps then run one operation at a time, and nothing else changes.
TEST(cuda_steps_run_without_graphs_that_cannot_be_made) {
  const TinyModel model(splittable_shape(), DType::kBf16);
  for (const char* device : {"cuda", "cuda:0,0"}) {
    const auto answer = [&](std::vector<std::string>* notes = nullptr) {
      Session session(cuda_request(model, device));
      if (notes != nullptr) *notes = session.info().notes;
      return session.wait(session.submit({1, 2, 3}, 4)).token_ids;
    };
    const std::vector<int32_t> wanted = answer();
    for (const cudaError_t error : {cudaErrorLaunchFailure, cudaErrorInvalidValue, cudaErrorMemoryAllocation}) {
      cuda_host::fail_graph_instantiation(error);
      std::vector<std::string> notes;
      EXPECT(answer(&notes) == wanted);
      EXPECT_EQ(notes.back(), std::string("no step has a CUDA graph: ") + cudaGetErrorString(error));
      EXPECT(!is_shared_capture);
      cuda_host::fail_graph_instantiation(cudaSuccess);
    }
  }
}

TEST(cuda_unsupported_device_is_reported_and_not_lost) {
  const TinyModel model(TinyShape{}, DType::kBf16);
  cuda_host::set_compute_capability(7);
  EXPECT_EQ(load_failure(cuda_request(model, "cuda:1"), "invalid_argument"),
            "device: expected compute capability 8.0 or newer, device 1 has 7.0");
  cuda_host::set_compute_capability(8);
  for (const int error : {cudaErrorDevicesUnavailable, cudaErrorNoKernelImageForDevice}) {
    cuda_host::break_device(error);
    EXPECT(load_failure(cuda_request(model), "invalid_argument")
               .find(cudaGetErrorString(static_cast<cudaError_t>(error))) != std::string::npos);
    cuda_host::repair_device();
  }
  Session session(cuda_request(model));
  EXPECT_EQ(session.wait(session.submit({1, 2, 3}, 2)).token_ids.size(), size_t{2});
}

// Before any weights are read.
TEST(cuda_rejects_unsupported_models_before_loading) {
  const TinyModel model(TinyShape{}, DType::kBf16);
  LoadRequest request = cuda_request(model);
  request.compute = ComputeChoice::kF32;
  EXPECT_EQ(load_failure(request, "invalid_argument"),
            "computeDtype: expected auto on cuda, which computes in bf16, got f32");
  TinyShape shape;
  shape.head_dim = 544;
  const TinyModel wide(shape, DType::kBf16);
  EXPECT_EQ(load_failure(cuda_request(wide), "unsupported_model"),
            "CUDA: head size: expected at most 512, got 544: run this model with device cpu");
  shape = splittable_shape();
  shape.hidden_size = 16, shape.vocab_size = (1 << 18) + 1;
  const TinyModel wordy(shape, DType::kBf16);
  EXPECT_EQ(load_failure(cuda_request(wordy), "unsupported_model"),
            "CUDA: vocabulary: expected at most 262144 tokens, got 262145: run this model with device cpu");
  // 12 MiB of embedding and head. With two ranks each has half.
  shape.vocab_size = 200'000;
  const TinyModel heavy(shape, DType::kBf16);
  cuda_host::set_device_memory(8 << 20);
  for (const char* device : {"cuda", "cuda:0,0"})
    EXPECT_EQ(load_failure(cuda_request(heavy, device), "out_of_memory"),
              "the weights need 12 MiB as bf16 on device 0, which has 8 MiB of free memory");
  EXPECT_EQ(load_failure(cuda_request(heavy, "cuda:0,1"), ""), "weights are read");
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
  // A rank that starts its step after another rank has lost the device may report the loss first. Its message includes
  // the cause.
  std::string message;
  try {
    throw_if_device_lost();
  } catch (const Error& error) {
    message = error.what();
  }
  EXPECT(message.find("an illegal memory access was encountered") != std::string::npos);
  is_device_lost() = false;
}

}  // namespace
}  // namespace capstan::testing
