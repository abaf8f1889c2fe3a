#pragma once
// What tests of a CUDA device share. They open the backend as the engine does: capstan_cuda.so (CAPSTAN_CUDA_LIBRARY),
// or the one linked in, whose kernels run on the CPU (test/native/cuda_host).
#include <string>
#include <vector>

#include "test/native/decoder_fixture.h"
#include "test/native/tiny_model.h"

namespace capstan::testing {

// CAPSTAN_TEST_FULL: everything, as a device can; otherwise what an emulated one does within seconds.
bool is_full_run();
// 'cuda', or 'cuda:0,0' and the like for virtual ranks on one device.
std::string cuda_device(int world_size);

// A small engine with a rank on each device listed; a shape whose MLP can be split over them.
LoadRequest on_cuda(const TinyModel& model, const std::string& device = "cuda");
TinyShape shape_of_ranks();
RunOptions cuda_options(DType dtype, bool is_deterministic = true);
// Decoders of every shape against the double-precision reference, in 16-bit types.
void expect_like_reference(bool is_deterministic);
// The engine, not deterministic: on several ranks as on the CPU; and with requests that come and go at random.
void expect_ranks_like_the_cpu();
void expect_sound_soak();
std::vector<int32_t> random_ids(uint64_t seed, int count, int64_t vocab_size);
// Decoders of different variants, some with sizes that fit no tile.
const std::vector<DecoderShape>& decoder_shapes();
// Of the log-probabilities of the `num_top` likeliest ids to the double-precision reference's, at every position.
double worst_difference(DecoderFixture& fixture, const RunOptions& options, const Prompts& prompts, size_t num_top);
bool is_same(const LogProbs& a, const LogProbs& b);

}  // namespace capstan::testing
