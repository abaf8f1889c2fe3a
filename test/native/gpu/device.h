#pragma once
// Shared by the tests of the CUDA backend. They open it as the engine does: from capstan_cuda.so
// (CAPSTAN_CUDA_LIBRARY), or as linked into the test program, where kernels run on the CPU (test/native/cuda_host).
#include <string>
#include <vector>

#include "test/native/decoder_fixture.h"
#include "test/native/tiny_model.h"

namespace capstan::testing {

// Whether CAPSTAN_TEST_FULL is set: run everything, as on a device. Otherwise tests run what an emulated device can do
// in seconds.
bool is_full_run();
// Whether case `i` of a test runs. An emulated device runs one case in `step`, or all with CAPSTAN_TEST_ALL.
bool takes_case(int64_t i, int64_t step);
// 'cuda' for one rank, otherwise 'cuda:0,0,…' (virtual ranks on one device).
std::string cuda_device(int world_size);

// Requests a small engine with one rank per listed device. splittable_shape() has an MLP that can be split over the
// ranks.
LoadRequest cuda_request(const TinyModel& model, const std::string& device = "cuda");
TinyShape splittable_shape();
// Requests an engine with virtual ranks on one device, and small limits unless the run is full.
LoadRequest ranks_request(const TinyModel& model, int world_size = 1, bool is_deterministic = true);
RunOptions cuda_options(DType dtype, bool is_deterministic = true);
// Returns why the backend refuses the model, or an empty string.
std::string cuda_refusal(const DeviceModel& model);
// Compares decoders of all shapes in 16-bit types with the double-precision reference.
void expect_like_reference(bool is_deterministic);
// For an engine that is not deterministic: compares several ranks with the CPU, and runs requests with random aborts.
void expect_ranks_like_the_cpu();
void run_nondeterministic_soak();
std::vector<int32_t> random_ids(uint64_t seed, int count, int64_t vocab_size);
// Decoders of different variants, some with sizes that are not multiples of a tile.
const std::vector<DecoderShape>& decoder_shapes();
// The largest difference of log-probabilities to the double-precision reference, over the `num_top` most likely ids of
// each position.
double worst_difference(DecoderFixture& fixture, const RunOptions& options, const Prompts& prompts, size_t num_top);
bool is_same(const LogProbs& a, const LogProbs& b);

}  // namespace capstan::testing
