// The CUDA backend on the host emulation: layouts, memory limits, CUDA graphs, ranks, and loading of the library.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <set>
#include <thread>

#include "cuda/layout.h"
#include "cuda/memory.h"
#include "cuda/ranks.h"
#include "native/backend/cuda_library.h"
#include "native/backend/registry.h"
#include "native/engine/memory_plan.h"
#include "test/native/cuda_host/cuda_host.h"
#include "test/native/gpu/device.h"
#include "test/native/testing.h"

extern "C" const capstan::CudaApi* capstan_cuda_api();

namespace capstan::testing {
namespace {

using namespace cuda;

// Whether `index` maps the elements one-to-one onto the array.
template <class Index>
bool is_bijection(int64_t rows, int64_t cols, const Index& index) {
  std::vector<bool> is_taken(static_cast<size_t>(rows * cols));
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t col = 0; col < cols; ++col) {
      const int64_t place = index(row, col);
      if (place < 0 || place >= rows * cols || is_taken[static_cast<size_t>(place)]) return false;
      is_taken[static_cast<size_t>(place)] = true;
    }
  return true;
}

TEST(cuda_layouts_map_elements_one_to_one) {
  for (const int64_t k : {32, 64, 96, 1536}) {
    EXPECT(is_bijection(48, k, [&](int64_t row, int64_t col) { return weight_index(row, col, k); }));
    EXPECT(is_bijection(24, k, [&](int64_t row, int64_t col) { return operand_index(row, col, k); }));
  }
  for (const int64_t cols : {1536, 8960, 896, 64, 72, 45, 48, 2}) {
    const int parts = row_parallel_parts(cols);
    const DepthSplit split = split_depth(cols, cols, parts);
    EXPECT(split.parts == parts && split.padded_part % kTileDepth == 0 && split.parts * split.part_cols == cols);
    std::set<int64_t> places;
    for (int64_t k = 0; k < cols; ++k) {
      places.insert(split.place(k));
      EXPECT(split.place(k) < split.padded());
    }
    EXPECT(static_cast<int64_t>(places.size()) == cols);
  }
  const KvLayout layout = make_kv_layout(64, 3, 40);
  EXPECT(layout.k_dim == 64 && layout.v_dim == 40);
  std::set<int64_t> places;
  for (int64_t slot = 0; slot < 128; ++slot)
    for (int head = 0; head < 3; ++head) {
      for (int dim = 0; dim < layout.k_dim; ++dim)
        places.insert(layout.key(slot, head, dim));
      for (int dim = 0; dim < layout.v_dim; ++dim)
        places.insert(layout.value(slot, head, dim));
    }
  EXPECT(static_cast<int64_t>(places.size()) == 2 * layout.block_elements() &&
         *places.rbegin() == 2 * layout.block_elements() - 1);
}

// Operands are where the lanes of an instruction read them (PTX manual, m16n8k16): lane 4 g + t has rows g and g + 8.
TEST(cuda_layouts_match_the_operands_of_mma) {
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int element = 0; element < 8; ++element) {
      const int row = g + element / 2 % 2 * 8, col = 2 * t + element % 2 + element / 4 * 8;
      EXPECT(weight_index(row, col, 32) == lane * 8 + element);
      EXPECT(operand_index(g, 2 * t + element % 2 + element / 2 % 2 * 8 + element / 4 * 16, 32) == lane * 8 + element);
    }
  }
}

TEST(cuda_results_do_not_depend_on_the_order_of_threads) {
  for (const DecoderShape& base : decoder_shapes()) {
    DecoderShape shape = base;
    shape.file_dtype = DType::kBf16;
    DecoderFixture fixture(shape);
    const Prompts prompts = {random_ids(1, 1, shape.vocab_size), random_ids(3, 130, shape.vocab_size)};
    const LogProbs wanted = fixture.run(cuda_options(DType::kBf16), prompts);
    cuda_host::set_seed(99);
    EXPECT(is_same(wanted, fixture.run(cuda_options(DType::kBf16), prompts)));
    cuda_host::set_seed(1);
  }
}

TEST(cuda_detects_a_missing_barrier) {
  DecoderShape shape;
  shape.file_dtype = DType::kF16;
  DecoderFixture fixture(shape);
  const std::vector<std::vector<int32_t>> prompts = {random_ids(1, 40, shape.vocab_size)};
  cuda_host::skip_barrier(0, 256);  // the block size of norms and products
  const double worst = worst_difference(fixture, cuda_options(DType::kF16), prompts, 5);
  cuda_host::skip_barrier(-1);
  EXPECT(!(worst < 0.02));
}

TEST(cuda_frees_all_device_memory) {
  const size_t before = cuda_host::device_memory_in_use();
  DecoderShape shape;
  shape.file_dtype = DType::kBf16;
  DecoderFixture fixture(shape);
  fixture.run(cuda_options(DType::kBf16), {random_ids(1, 9, shape.vocab_size)});
  EXPECT_EQ(cuda_host::device_memory_in_use(), before);
}

TEST(cuda_reports_out_of_memory) {
  DecoderShape shape;
  shape.file_dtype = DType::kBf16;
  DecoderFixture fixture(shape);
  cuda_host::set_device_memory(200'000);
  EXPECT_ERROR("out_of_memory", fixture.run(cuda_options(DType::kBf16), {random_ids(1, 9, shape.vocab_size)}));
  cuda_host::set_device_memory(size_t{1} << 30);
}

TEST(cuda_uses_memory_up_to_the_requested_share) {
  const TinyModel model(TinyShape{}, DType::kBf16);
  LoadRequest request = cuda_request(model);
  request.kv_cache_bytes = 0;
  const size_t before = cuda_host::device_memory_in_use();
  for (const size_t megabytes : {16, 32}) {
    const size_t total = megabytes << 20;
    cuda_host::set_device_memory(total);
    for (const double share : {0.5, 0.9}) {
      request.gpu_memory_utilization = share;
      Session session(request);
      const auto used = static_cast<double>(cuda_host::device_memory_in_use());
      // 1/64 is left to graphs, and less than a block is unused.
      EXPECT(used <= share * static_cast<double>(total) && used > (share - 0.02) * static_cast<double>(total) - 32768);
      EXPECT_EQ(session.wait(session.submit({1, 2, 3}, 2)).token_ids.size(), size_t{2});
    }
  }
  // The same with two ranks on the device.
  request.device.device = "cuda:0,0";
  request.device.world_size = 2;
  {
    Session session(request);
    EXPECT(static_cast<double>(cuda_host::device_memory_in_use()) <= 0.9 * static_cast<double>(32 << 20));
  }
  request.device.device = "cuda";
  request.device.world_size = 1;
  request.gpu_memory_utilization = 0.02;
  try {
    Session session(request);
    EXPECT(false && "a memory share that is too small is reported");
  } catch (const Error& error) {
    EXPECT(error.code() == ErrorCode::kOutOfMemory &&
           std::string(error.what()).find("gpuMemoryUtilization") != std::string::npos);
  }
  cuda_host::set_device_memory(size_t{1} << 30);
  EXPECT_EQ(cuda_host::device_memory_in_use(), before);
}

// Half the bytes of a 16-bit cache, plus the exponents, which take as much as one dimension. The CPU has no such cache.
TEST(cuda_supports_an_fp8_cache_and_the_cpu_does_not) {
  const TinyModel model(TinyShape{}, DType::kBf16);
  LoadRequest request = cuda_request(model);
  request.kv_cache_bytes = 1 << 20;
  Session wide(request);
  request.is_kv_dtype_given = true;
  request.kv_cache_dtype = DType::kFp8E4m3;
  Session narrow(request);
  EXPECT_EQ(std::string(dtype_name(narrow.info().kv_cache_dtype)), std::string("fp8"));
  EXPECT(narrow.info().num_blocks > wide.info().num_blocks * 19 / 10 &&
         narrow.info().num_blocks < wide.info().num_blocks * 2);
  EXPECT_EQ(narrow.wait(narrow.submit(random_ids(1, 70, 300), 4)).token_ids.size(), size_t{4});
  for (const DType refused : {DType::kF32, DType::kInt8}) {
    request.kv_cache_dtype = refused;
    EXPECT_ERROR("invalid_argument", Session{request});
  }
  LoadRequest on_cpu = model.request();
  on_cpu.is_kv_dtype_given = true;
  on_cpu.kv_cache_dtype = DType::kFp8E4m3;
  EXPECT_ERROR("invalid_argument", Session(std::move(on_cpu)));
}

TEST(cuda_refuses_mtp_heads) {
  TinyShape shape;
  shape.has_mtp = true;
  const TinyModel model(shape, DType::kBf16);
  LoadRequest request = cuda_request(model);
  request.speculation.num_tokens = 2;
  EXPECT_ERROR("invalid_argument", Session{request});
}

TEST(cuda_disables_the_listed_features) {
  const TinyModel model(TinyShape{}, DType::kBf16);
  const Prompts prompts = {random_ids(1, 3, 300), random_ids(2, 80, 300)};
  const auto wanted = solo_answers(cuda_request(model), 6, prompts);
  const size_t before = cuda_host::num_graphs();
  setenv("CAPSTAN_CUDA_WITHOUT", "graphs,early", 1);
  expect_same(solo_answers(cuda_request(model), 6, prompts), wanted, "without graphs");
  EXPECT_EQ(cuda_host::num_graphs(), before);
  setenv("CAPSTAN_CUDA_WITHOUT", "wgmma", 1);
  EXPECT(Session(cuda_request(model)).info().isa == "mma");
  cuda_host::set_compute_capability(9);
  setenv("CAPSTAN_CUDA_WITHOUT", "wgmma_attention", 1);
  EXPECT(Session(cuda_request(model)).info().isa == "wgmma");
  cuda_host::set_compute_capability(8);
  setenv("CAPSTAN_CUDA_WITHOUT", "graph", 1);
  EXPECT_ERROR("invalid_argument", Session(cuda_request(model)));
  unsetenv("CAPSTAN_CUDA_WITHOUT");
}

// On a large device a small model would otherwise get millions of blocks, which the host has to manage.
TEST(cuda_caps_the_blocks_of_a_small_model) {
  MemoryRequest request;
  request.groups = {{64 << 10, 0}};
  request.block_size = 64, request.available_bytes = int64_t{120} << 30, request.is_budget = true;
  request.trained_length = 2048, request.max_num_seqs = 256;
  EXPECT_EQ(plan_memory(request).num_blocks[0], 1 << 19);
  request.groups = {{2 << 20, 0}};
  EXPECT_EQ(plan_memory(request).num_blocks[0], 60 << 10);
  request.groups = {{64 << 10, 0}};
  request.kv_cache_bytes = int64_t{100} << 30;
  EXPECT_EQ(plan_memory(request).num_blocks[0], 100 << 14);
  request.kv_cache_bytes = 0, request.max_model_len = 40 << 20;
  EXPECT_EQ(plan_memory(request).num_blocks[0], 40 << 14);
}

// The embedding and the head are uploaded in two pieces.
TEST(cuda_reports_load_progress_steadily) {
  TinyShape shape;
  shape.vocab_size = 70'000, shape.intermediate_size = 256;
  const TinyModel model(shape, DType::kBf16);
  LoadRequest request = cuda_request(model);
  expect_steady_progress(request);
  request.device.device = "cuda:0,0";
  request.device.world_size = 2;
  expect_steady_progress(request);
}

// The last step has no logits and is the first with this plan, so its ops are still deferred when the engine closes.
TEST(cuda_closes_in_the_middle_of_a_prefill) {
  const size_t before = cuda_host::num_streams();
  const TinyModel model(TinyShape{}, DType::kBf16);
  LoadRequest request = cuda_request(model);
  request.max_num_batched_tokens = request.max_num_seqs = 1;
  {
    Session session(request);
    session.submit(random_ids(1, 318, 300), 2);
    while (session.engine().stats().num_steps < 260)
      std::this_thread::yield();
    session.engine().close();
  }
  EXPECT_EQ(cuda_host::num_streams(), before);
}

TEST(cuda_decodes_of_similar_size_share_a_graph) {
  const TinyModel model(TinyShape{}, DType::kBf16);
  Session session(cuda_request(model));
  const size_t warmed_up = cuda_host::num_graphs();
  session.wait(session.submit(random_ids(1, 5, 300), 8));
  const size_t before = cuda_host::num_graphs();
  EXPECT_EQ(before, warmed_up + 1);
  session.wait(session.submit(random_ids(2, 30, 300), 8));
  EXPECT_EQ(cuda_host::num_graphs(), before);
}

// Decodes batches of several sizes, some with sampling and penalties.
std::vector<Answer> answers_in_batches(Session& session) {
  std::vector<Answer> answers;
  uint64_t seed = 0;
  for (const int size : {1, 2, 4, 8}) {
    std::vector<RequestId> ids;
    for (int i = 0; i < size; ++i) {
      Request request;
      request.prompt_token_ids = random_ids(++seed, 3 + i, 300);
      request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
      request.sampling.seed = seed;
      request.sampling.max_tokens = 6;
      request.sampling.repetition_penalty = i % 3 == 0 ? 1.3f : 1.0f;
      request.sampling.is_eos_ignored = true;
      ids.push_back(session.submit(std::move(request)));
    }
    for (const RequestId id : ids)
      answers.push_back(session.wait(id));
  }
  return answers;
}

// Graphs may take 1 MiB of 64 MiB. When it is used up, steps of other sizes run without graphs.
TEST(cuda_graphs_stay_within_their_memory_budget) {
  TinyShape shape;
  shape.intermediate_size = 256;
  const TinyModel model(shape, DType::kBf16);
  LoadRequest request = cuda_request(model);
  request.device.is_deterministic = true;
  std::vector<Answer> wanted;
  {
    Session session(request);
    wanted = answers_in_batches(session);
  }
  const size_t before = cuda_host::device_memory_in_use();
  constexpr size_t kTotal = size_t{64} << 20;
  cuda_host::set_device_memory(kTotal);
  request.kv_cache_bytes = 0;
  for (const char* device : {"cuda", "cuda:0,0"}) {
    request.device.device = device;
    request.device.world_size = device == std::string("cuda") ? 1 : 2;
    for (const size_t kilobytes : {700, 400, 1100}) {
      cuda_host::set_graph_memory(kilobytes << 10);
      Session session(request);
      expect_same(answers_in_batches(session), wanted, "with few graphs");
      EXPECT_EQ(cuda_host::num_graphs_left(), 1024 / kilobytes);
      EXPECT(cuda_host::device_memory_in_use() <= kTotal * 9 / 10);
    }
  }
  cuda_host::set_graph_memory(0);
  cuda_host::set_device_memory(size_t{1} << 30);
  EXPECT_EQ(cuda_host::device_memory_in_use(), before);
}

// While other processes fill the device, graphs cannot be created.
TEST(cuda_steps_run_without_graphs_when_memory_is_full) {
  const TinyModel model(TinyShape{}, DType::kBf16);
  Session usual(cuda_request(model));
  const std::vector<Answer> wanted = answers_in_batches(usual);
  for (const char* device : {"cuda", "cuda:0,1"}) {
    LoadRequest request = cuda_request(model);
    request.device.device = device;
    request.device.world_size = device == std::string("cuda") ? 1 : 2;
    Session session(request);
    EXPECT(session.info().notes.back().find("MiB") != std::string::npos);
    const size_t left = cuda_host::num_graphs_left();
    cuda_host::set_graph_memory(size_t{2} << 30);
    expect_same(answers_in_batches(session), wanted, "with full memory");
    EXPECT_EQ(cuda_host::num_graphs_left(), left);
    cuda_host::set_graph_memory(0);
    session.wait(session.submit(random_ids(1, 300, 300), 3));  // more chunks than any step before
    EXPECT_EQ(cuda_host::num_graphs_left(), left + 1);
    expect_same(answers_in_batches(session), wanted, "with free memory again");
  }
}

// The steps of all ranks are one graph, including sampling. It is captured once, and the first rank launches it.
TEST(cuda_ranks_share_a_graph) {
  TinyShape shape;
  shape.intermediate_size = 256;
  const TinyModel model(shape, DType::kBf16);
  const auto answers = [&](Session& session) {
    std::vector<int32_t> ids;
    for (const float temperature : {0.0f, 0.9f}) {
      Request request;
      request.prompt_token_ids = random_ids(1, 5, 300);
      request.sampling.temperature = temperature;
      request.sampling.seed = 7;
      request.sampling.max_tokens = 8;
      request.sampling.repetition_penalty = 1.3f;  // requires a list that grows with each step
      request.sampling.is_eos_ignored = true;
      const Answer answer = session.wait(session.submit(std::move(request)));
      EXPECT_EQ(answer.token_ids.size(), size_t{8});
      ids.insert(ids.end(), answer.token_ids.begin(), answer.token_ids.end());
    }
    return ids;
  };
  Session alone(cuda_request(model));
  const std::vector<int32_t> wanted = answers(alone);
  for (const char* device : {"cuda:0,0", "cuda:0,1"}) {
    LoadRequest request = cuda_request(model);
    request.device.device = device;
    request.device.world_size = 2;
    Session session(request);
    const size_t warmed_up = cuda_host::num_graphs();
    EXPECT(answers(session) == wanted);
    EXPECT_EQ(cuda_host::num_graphs(), warmed_up + 1);
  }
  cuda_host::set_peers(false);
  LoadRequest request = cuda_request(model);
  request.device.device = "cuda:0,1";
  request.device.world_size = 2;
  EXPECT_ERROR("invalid_argument", Session{request});
  cuda_host::set_peers(true);
}

// Each rank adds its share of the tokens (some ranks have none) and copies the other ranks' activations. For the last
// norm every rank reads the rows from their owners.
TEST(cuda_two_shot_all_reduce_changes_no_bit) {
  DecoderShape shape = decoder_shapes()[0];
  shape.file_dtype = DType::kBf16, shape.intermediate_size = 256;
  DecoderFixture fixture(shape);
  const Prompts prefills = {random_ids(1, 3, shape.vocab_size), random_ids(2, 70, shape.vocab_size)};
  Prompts decodes;
  for (uint64_t i = 0; i < 10; ++i)
    decodes.push_back(random_ids(i, 3, shape.vocab_size));
  RunOptions one_by_one = cuda_options(DType::kBf16), together = one_by_one;
  one_by_one.max_num_seqs_per_step = 1;
  together.prefill_chunk_size = 1;  // decode steps, which are captured
  const LogProbs of_prefills = fixture.run(one_by_one, prefills), of_decodes = fixture.run(together, decodes);
  one_by_one.world_size = together.world_size = 4;
  const int64_t before = std::exchange(two_shot_bytes(), 1);
  EXPECT(choose_all_reduce_method(4, 70, 2, false) == AllReduceMethod::kTwoShot &&
         choose_all_reduce_method(4, 16, 2, false) == AllReduceMethod::kTwoShot);
  EXPECT(choose_all_reduce_method(4, 8, 1 << 30, false) == AllReduceMethod::kOneShot &&
         choose_all_reduce_method(2, 70, 1 << 30, false) == AllReduceMethod::kOneShot);
  EXPECT(is_same(of_prefills, fixture.run(one_by_one, prefills)));
  EXPECT(is_same(of_decodes, fixture.run(together, decodes)));
  two_shot_bytes() = before;
}

TEST(cuda_explains_a_missing_or_old_driver) {
  const auto reason_with = [](int version) {
    cuda_host::set_driver_version(version);
    char reason[200] = "";
    EXPECT_EQ(capstan_cuda_api()->num_devices(reason, sizeof reason), 0);
    cuda_host::set_driver_version(13000);
    return std::string(reason);
  };
  EXPECT_EQ(reason_with(0), "no NVIDIA driver is installed");
  EXPECT_EQ(reason_with(12020), "the NVIDIA driver is for CUDA 12.2, expected 13.0 or newer");
}

TEST(cuda_rejects_a_library_of_another_build) {
  const std::string file = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "fake_cuda.so";
  void* const opened = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) throw std::runtime_error(dlerror());
  CudaApi& fake = *static_cast<CudaApi*>(dlsym(opened, "fake_cuda_api"));
  const auto expect_reason = [&](const std::string& reason) {
    const CudaLibrary library = open_cuda_library(file);
    EXPECT_EQ(library.num_devices, 0);
    EXPECT_EQ(library.reason, reason);
  };
  const std::string build_id = cuda_build_id();
  fake = {kCudaApiVersion + 1, build_id.c_str(), nullptr, nullptr, nullptr};
  expect_reason(file + ": expected interface version " + std::to_string(kCudaApiVersion) + ", got " +
                std::to_string(kCudaApiVersion + 1) + "; rebuild it");
  fake = {kCudaApiVersion, "another", nullptr, nullptr, nullptr};
  expect_reason(file + " was built with another compiler or from other sources; rebuild it");
  const auto none = [](char* reason, size_t size) { return std::snprintf(reason, size, "no card") - 7; };
  fake = {kCudaApiVersion, build_id.c_str(), none, nullptr, nullptr};
  expect_reason("no card");
  dlclose(opened);
}

TEST(cuda_explains_why_the_library_is_not_used) {
  EXPECT(open_cuda_library("/nowhere/capstan_cuda.so").reason.find("cannot be opened") != std::string::npos);
  EXPECT(open_cuda_library("libm.so.6").reason.find("is not a CUDA backend") != std::string::npos);
  DeviceOptions options;
  options.device = "cuda:0,x";
  EXPECT_ERROR("invalid_argument", make_device_group(options));
  options.device = "tpu";
  EXPECT_ERROR("invalid_argument", make_device_group(options));
  options.device = "auto";
  const DeviceGroup group = make_device_group(options);
  EXPECT(group.backends[0]->info().name == "cpu" && group.notes.size() == 1 &&
         group.notes[0].find("running on the CPU") == 0);
}

TEST(cuda_notes_the_deterministic_mode) {
  DeviceOptions options;
  options.device = "cuda";
  EXPECT(make_device_group(options).notes.empty());
  options.is_deterministic = true;
  EXPECT(make_device_group(options).notes.at(0).find("deterministic") == 0);
}

}  // namespace
}  // namespace capstan::testing
