// The argument checks of all kernel launchers, one fault at a time in otherwise valid arguments. The device is broken,
// so that valid arguments fail at the launch and no kernel runs.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/attention_layout.h"
#include "cuda/kernels.h"
#include "cuda/pooling.h"
#include "cuda/recurrent.h"
#include "test/native/cuda_host/cuda_host.h"
#include "test/native/gpu/device.h"
#include "test/native/gpu/kernel_testing.h"
#include "test/native/recurrent_case.h"
#include "test/native/testing.h"

namespace capstan::testing {
namespace {

// Breaks the device during its lifetime.
struct BrokenDevice {
  BrokenDevice() {
    stream();
    cuda_host::break_device(cudaErrorIllegalAddress);
  }
  ~BrokenDevice() {
    cuda_host::repair_device();
    is_device_lost() = false;
  }
};

// Pairs of a fragment of the failing check and the change that triggers it.
template <class Args>
using Faults = std::vector<std::pair<std::string, std::function<void(Args&)>>>;

template <class Args>
void expect_refused(const Args& good, const std::function<void(const Args&)>& launch, const Faults<Args>& faults) {
  const BrokenDevice device;
  EXPECT_ERROR("device_lost", launch(good));
  for (const auto& [check, make] : faults) {
    Args bad = good;
    make(bad);
    std::string message = "nothing";
    try {
      launch(bad);
    } catch (const Error& error) {
      message = error.what();
    }
    if (message.find("invariant failed") != 0 || message.find(check) == std::string::npos)
      fail(__FILE__, __LINE__, check + ": " + message);
  }
}

// A non-null pointer that is never dereferenced.
template <class T>
T* dummy_pointer() {
  return reinterpret_cast<T*>(uintptr_t{4096});
}

constexpr int kHidden = 64, kHeads = 4, kKvHeads = 2, kHeadDim = 16, kTokens = 3;
const DeviceResources kResources{2, kMinSharedBytes};

DeviceMatrix matrix(int64_t rows) {
  return {dummy_pointer<uint16_t>(), nullptr, rows, split_depth(kHidden, kHidden, 1)};
}

NormArgs good_norm() {
  NormArgs args;
  args.hidden = dummy_pointer<float>();
  args.num_rows = kTokens;
  args.hidden_size = kHidden;
  args.weight = dummy_pointer<float>();
  args.split = split_depth(kHidden, kHidden, 1);
  args.acts = dummy_pointer<uint16_t>();
  return args;
}

GemmArgs good_gemm() {
  GemmArgs args;
  args.weights = matrix((kHeads + 2 * kKvHeads) * kHeadDim);
  args.acts = dummy_pointer<uint16_t>();
  args.num_tokens = kTokens;
  args.out = dummy_pointer<float>();
  args.out_stride = args.weights.rows;
  return args;
}

QkvArgs good_qkv() {
  QkvArgs args;
  args.qkv = dummy_pointer<float>();
  args.qkv_stride = (kHeads + 2 * kKvHeads) * kHeadDim;
  args.num_tokens = kTokens;
  args.num_heads = kHeads;
  args.rotary_dim = kHeadDim;
  args.layout = make_kv_layout(64, kKvHeads, kHeadDim);
  return args;
}

AttentionArgs good_attention() {
  AttentionArgs args;
  args.num_heads = kHeads;
  args.layout = make_kv_layout(64, kKvHeads, kHeadDim);
  args.num_tiles = 1;
  args.scale = 1;
  return args;
}

AddPartialsArgs good_sum() {
  AddPartialsArgs args;
  args.hidden = dummy_pointer<float>();
  args.world_size = 2;
  args.num_tokens = kTokens;
  args.hidden_size = kHidden;
  return args;
}

TEST(cuda_row_launchers_reject_invalid_arguments) {
  EmbedArgs embed;
  embed.table = matrix(kHidden);
  embed.drawn_ids = dummy_pointer<int32_t>();
  embed.num_tokens = kTokens;
  embed.hidden_size = kHidden;
  expect_refused<EmbedArgs>(embed, [](const EmbedArgs& args) { launch_embed(args, stream()); },
                            {
                                {"num_tokens > 0", [](EmbedArgs& args) { args.num_tokens = 0; }},
                                {"hidden_size > 0", [](EmbedArgs& args) { args.hidden_size = 0; }},
                                {"drawn_ids != nullptr", [](EmbedArgs& args) { args.drawn_ids = nullptr; }},
                                {"has_weights", [](EmbedArgs& args) { args.table.data = nullptr; }},
                            });
  expect_refused<NormArgs>(
      good_norm(), [](const NormArgs& args) { launch_norm(args, stream()); },
      {
          {"num_rows > 0", [](NormArgs& args) { args.num_rows = 0; }},
          {"part_cols == args.hidden_size", [](NormArgs& args) { args.hidden_size = kHidden - 1; }},
      });
  expect_refused<QkvArgs>(
      good_qkv(), [](const QkvArgs& args) { launch_qkv(args, stream()); },
      {
          {"num_tokens > 0", [](QkvArgs& args) { args.num_tokens = 0; }},
          {"parts >= 1", [](QkvArgs& args) { args.parts = 0; }},
          {"parts <= kMaxParts", [](QkvArgs& args) { args.parts = 2 * kMaxParts; }},
          {"(args.parts - 1)) == 0", [](QkvArgs& args) { args.parts = 3; }},
          {"block_size % 32 == 0", [](QkvArgs& args) { args.layout.block_size = 16; }},
          {"rotary_dim % 2 == 0", [](QkvArgs& args) { args.rotary_dim = 3; }},
          {"rotary_dim <= args.layout.head_dim", [](QkvArgs& args) { args.rotary_dim = kHeadDim + 2; }},
          {"total_kv_heads > 0", [](QkvArgs& args) { args.squares[0] = dummy_pointer<float>(); }},
      });
  expect_refused<QkvArgs>(good_qkv(),
                          [](const QkvArgs& args) { launch_head_squares(args, dummy_pointer<float>(), stream()); },
                          {
                              {"num_tokens > 0", [](QkvArgs& args) { args.num_tokens = 0; }},
                              {"parts == 1", [](QkvArgs& args) { args.parts = 2; }},
                              {"bias == nullptr", [](QkvArgs& args) { args.bias = dummy_pointer<float>(); }},
                          });
  LogitsArgs logits;
  logits.logits = dummy_pointer<float>();
  logits.num_rows = kTokens;
  logits.num_ids = logits.stride = kHidden;
  expect_refused<LogitsArgs>(logits, [](const LogitsArgs& args) { launch_logits(args, stream()); },
                             {
                                 {"num_rows > 0", [](LogitsArgs& args) { args.num_rows = 0; }},
                                 {"num_rows < 65536", [](LogitsArgs& args) { args.num_rows = 65536; }},
                                 {"num_ids > 0", [](LogitsArgs& args) { args.num_ids = 0; }},
                                 {"num_ids <= args.stride", [](LogitsArgs& args) { args.stride = kHidden - 1; }},
                                 {"logits != nullptr", [](LogitsArgs& args) { args.logits = nullptr; }},
                             });
}

TEST(cuda_sum_launchers_reject_invalid_arguments) {
  expect_refused<AddPartialsArgs>(
      good_sum(), [](const AddPartialsArgs& args) { launch_add_partials(args, stream()); },
      {
          {"num_tokens > 0", [](AddPartialsArgs& args) { args.num_tokens = 0; }},
          {"hidden_size > 0", [](AddPartialsArgs& args) { args.hidden_size = 0; }},
          {"world_size == 8", [](AddPartialsArgs& args) { args.world_size = 3; }},
          {"norm == nullptr", [](AddPartialsArgs& args) { args.norm = dummy_pointer<float>(); }},
      });
  AddNormArgs both;
  both.sum = good_sum();
  both.norm = good_norm();
  expect_refused<AddNormArgs>(
      both, [](const AddNormArgs& args) { launch_add_norm(args, stream()); },
      {
          {"world_size == 8", [](AddNormArgs& args) { args.sum.world_size = 0; }},
          {"!args.sum.replaces",
           [](AddNormArgs& args) { args.sum.norm = dummy_pointer<float>(), args.sum.replaces = true; }},
          {"norm.num_rows > 0", [](AddNormArgs& args) { args.norm.num_rows = 0; }},
          {"norm.hidden_size == args.sum.hidden_size", [](AddNormArgs& args) { args.sum.hidden_size = 2 * kHidden; }},
          {"part_cols == norm.hidden_size", [](AddNormArgs& args) { args.norm.split.parts = 2; }},
          {"norm.num_rows == args.sum.num_tokens", [](AddNormArgs& args) { args.norm.num_rows = kTokens - 1; }},
          {"norm.hidden == args.sum.hidden", [](AddNormArgs& args) { args.norm.hidden = nullptr; }},
          {"tokens_per_owner > 0", [](AddNormArgs& args) { args.norm.rows = dummy_pointer<int32_t>(); }},
      });
}

TEST(cuda_gemm_launchers_reject_invalid_arguments) {
  const Faults<GemmArgs> of_all = {
      {"num_tokens > 0", [](GemmArgs& args) { args.num_tokens = 0; }},
      {"weights.rows > 0", [](GemmArgs& args) { args.weights.rows = 0; }},
      {"padded_part % kTileDepth == 0", [](GemmArgs& args) { args.weights.split.padded_part -= 1; }},
      {"args.out != nullptr", [](GemmArgs& args) { args.out = nullptr; }},
      {"args.gated != nullptr", [](GemmArgs& args) { args.output = GemmOutput::kGated; }},
      {"args.gated != nullptr", [](GemmArgs& args) { args.output = GemmOutput::kActivated; }},
  };
  const Faults<GemmArgs> of_parts = {
      {"parts >= 1", [](GemmArgs& args) { args.weights.split.parts = 0; }},
      {"parts <= kMaxParts", [](GemmArgs& args) { args.weights.split.parts = 2 * kMaxParts; }},
      {"(parts - 1)) == 0", [](GemmArgs& args) { args.weights.split.parts = 6; }},
  };
  const auto gemm_in = [](const DeviceResources& resources) {
    return [=](const GemmArgs& args) { launch_gemm(args, resources, stream()); };
  };
  expect_refused<GemmArgs>(good_gemm(), gemm_in(kResources), of_all);
  expect_refused<GemmArgs>(good_gemm(), gemm_in(kResources), of_parts);
  EXPECT_ERROR("internal_error", gemm_in({0, kMinSharedBytes})(good_gemm()));
  EXPECT_ERROR("internal_error", gemm_in({2, 1 << 10})(good_gemm()));

  static const ActMaps maps{};
  GemmArgs wide = good_gemm();
  wide.act_maps = &maps;
  const auto wgmma_on = [](int multiprocessors) {
    return [=](const GemmArgs& args) { launch_gemm_wgmma(args, multiprocessors, stream()); };
  };
  expect_refused<GemmArgs>(wide, wgmma_on(2), of_all);
  expect_refused<GemmArgs>(
      wide, wgmma_on(2),
      {
          {"act_maps != nullptr", [](GemmArgs& args) { args.act_maps = nullptr; }},
          {"output != GemmOutput::kParts", [](GemmArgs& args) { args.output = GemmOutput::kParts; }},
          {"rows % kTileRows == 0",
           [](GemmArgs& args) {
             args.output = GemmOutput::kGated, args.gated = dummy_pointer<uint16_t>(), args.weights.rows -= 1;
           }},
          {"k_splits == 1",
           [](GemmArgs& args) {
             args.output = GemmOutput::kGated, args.gated = dummy_pointer<uint16_t>(),
             args.tile_flags = dummy_pointer<int32_t>(),
             args.weights.split = split_depth(2 * kLongDepth, 2 * kLongDepth, 1);
           }},
      });
  EXPECT_ERROR("internal_error", wgmma_on(0)(wide));
}

TEST(cuda_gemv_launcher_rejects_invalid_arguments) {
  GemvArgs plain;
  plain.product = good_gemm();
  plain.max_blocks = 1;
  const auto launch = [](const GemvArgs& args) { launch_gemv(args, stream()); };
  expect_refused<GemvArgs>(
      plain, launch,
      {
          {"num_tokens > 0", [](GemvArgs& args) { args.product.num_tokens = 0; }},
          {"num_tokens <= kGemvTokens", [](GemvArgs& args) { args.product.num_tokens = kGemvTokens + 1; }},
          {"weights.rows > 0", [](GemvArgs& args) { args.product.weights.rows = 0; }},
          {"(parts - 1)) == 0", [](GemvArgs& args) { args.product.weights.split.parts = 3; }},
          {"padded_part % kTileDepth == 0", [](GemvArgs& args) { args.product.weights.split.padded_part += 8; }},
          {"max_blocks > 0", [](GemvArgs& args) { args.max_blocks = 0; }},
          {"product.out != nullptr", [](GemvArgs& args) { args.product.out = nullptr; }},
          {"product.gated != nullptr", [](GemvArgs& args) { args.product.output = GemmOutput::kGated; }},
          {"product.output != GemmOutput::kParts", [](GemvArgs& args) { args.product.output = GemmOutput::kParts; }},
          {"product.acts != nullptr", [](GemvArgs& args) { args.product.acts = nullptr; }},
          {"!args.has_heads", [](GemvArgs& args) { args.has_heads = true; }},
      });
  GemvArgs fused = plain;
  fused.is_normed = fused.has_heads = true;
  fused.norm = good_norm();
  fused.heads = good_qkv();
  fused.rows_done = dummy_pointer<int32_t>();
  expect_refused<GemvArgs>(
      fused, launch,
      {
          {"norm.num_rows == product.num_tokens", [](GemvArgs& args) { args.norm.num_rows = 1; }},
          {"norm.hidden_size == of_norm.parts", [](GemvArgs& args) { args.norm.hidden_size = 1; }},
          {"of_norm.parts == of_weights.parts",
           [](GemvArgs& args) { args.norm.split.parts = 2, args.norm.hidden_size *= 2; }},
          {"of_norm.part_cols == of_weights.part_cols",
           [](GemvArgs& args) { args.product.weights.split.part_cols -= 1; }},
          {"product.output == GemmOutput::kStore", [](GemvArgs& args) { args.product.output = GemmOutput::kResidual; }},
          {"heads.qkv == product.out", [](GemvArgs& args) { args.heads.qkv = nullptr; }},
          {"heads.parts == 1", [](GemvArgs& args) { args.heads.parts = 2; }},
          {"heads.bias == nullptr", [](GemvArgs& args) { args.heads.bias = dummy_pointer<float>(); }},
          {"heads.qkv_stride == product.out_stride", [](GemvArgs& args) { args.heads.qkv_stride += 1; }},
          {"heads.num_tokens == product.num_tokens", [](GemvArgs& args) { args.heads.num_tokens = 1; }},
          {"product.weights.rows == ", [](GemvArgs& args) { args.heads.num_heads += 1; }},
          {"rows_done != nullptr", [](GemvArgs& args) { args.rows_done = nullptr; }},
          {"block_size % 32 == 0", [](GemvArgs& args) { args.heads.layout.block_size = 48; }},
          {"rotary_dim % 2 == 0", [](GemvArgs& args) { args.heads.rotary_dim = 1; }},
          {"rotary_dim <= heads.layout.head_dim", [](GemvArgs& args) { args.heads.rotary_dim = kHeadDim + 2; }},
      });
}

TEST(cuda_attention_launchers_reject_invalid_arguments) {
  const Faults<AttentionArgs> of_both = {
      {"num_tiles > 0", [](AttentionArgs& args) { args.num_tiles = 0; }},
      {"num_heads % args.layout.num_kv_heads == 0", [](AttentionArgs& args) { args.num_heads = kHeads + 1; }},
      {"block_size % kTileKeys == 0", [](AttentionArgs& args) { args.layout.block_size = kTileKeys / 2; }},
  };
  const auto of_heads = [](int head_dim) {
    return [=](AttentionArgs& args) { args.layout = make_kv_layout(64, kKvHeads, head_dim); };
  };
  const auto launch = [](const AttentionArgs& args) { launch_attention(args, stream()); };
  expect_refused<AttentionArgs>(good_attention(), launch, of_both);
  expect_refused<AttentionArgs>(good_attention(), launch,
                                {
                                    {"head_dim <= kMaxHeadDim", of_heads(kMaxHeadDim + 1)},
                                    {"reach >= 0", [](AttentionArgs& args) { args.reach = -1; }},
                                    {"head_dim <= kMaxBiasedHeadDim",
                                     [](AttentionArgs& args) {
                                       args.layout = make_kv_layout(64, kKvHeads, kMaxBiasedHeadDim + 1);
                                       args.biases = dummy_pointer<float>();
                                     }},
                                    {"num_chunks >= 1", [](AttentionArgs& args) { args.num_chunks = 0; }},
                                    {"scratch != nullptr", [](AttentionArgs& args) { args.num_chunks = 2; }},
                                    {"!args.is_warp_per_tile",
                                     [](AttentionArgs& args) {
                                       args.num_chunks = 2, args.scratch = dummy_pointer<float>(),
                                       args.is_warp_per_tile = true;
                                     }},
                                });
  AttentionArgs wide = good_attention();
  wide.is_row_major = true;
  const auto by_wgmma = [](const AttentionArgs& args) { launch_attention_wgmma(args, stream()); };
  expect_refused<AttentionArgs>(wide, by_wgmma, of_both);
  expect_refused<AttentionArgs>(
      wide, by_wgmma,
      {
          {"head_dim <= kMaxWideHeadDim", of_heads(kMaxWideHeadDim + 1)},
          {"num_tiles < 65536", [](AttentionArgs& args) { args.num_tiles = 65536; }},
          {"!args.layout.is_fp8", [](AttentionArgs& args) { args.layout.is_fp8 = true; }},
          {"scale > 0", [](AttentionArgs& args) { args.scale = 0; }},
          {"is_row_major", [](AttentionArgs& args) { args.is_row_major = false; }},
          {"biases == nullptr", [](AttentionArgs& args) { args.biases = dummy_pointer<float>(); }},
      });
}

TEST(cuda_pooling_launchers_reject_invalid_arguments) {
  AddEmbeddingsArgs embeddings;
  embeddings.hidden = dummy_pointer<float>();
  embeddings.num_tokens = kTokens;
  embeddings.hidden_size = kHidden;
  expect_refused<AddEmbeddingsArgs>(
      embeddings, [](const AddEmbeddingsArgs& args) { launch_add_embeddings(args, stream()); },
      {
          {"num_tokens > 0", [](AddEmbeddingsArgs& args) { args.num_tokens = 0; }},
          {"token_types != nullptr", [](AddEmbeddingsArgs& args) { args.token_type_table = dummy_pointer<float>(); }},
          {"positions != nullptr", [](AddEmbeddingsArgs& args) { args.position_table = dummy_pointer<float>(); }},
      });
  const BiasesArgs biases{dummy_pointer<float>(), dummy_pointer<int32_t>(), 9, kHeads, kHeads, 2 * kHeads,
                          dummy_pointer<float>()};
  expect_refused<BiasesArgs>(biases, [](const BiasesArgs& args) { launch_biases(args, stream()); },
                             {
                                 {"num_distances > 0", [](BiasesArgs& args) { args.num_distances = 0; }},
                                 {"<= args.total_heads", [](BiasesArgs& args) { args.head_begin += 1; }},
                                 {"rows != nullptr", [](BiasesArgs& args) { args.rows = nullptr; }},
                             });
  RowNormArgs norm;
  norm.rows = dummy_pointer<float>();
  norm.num_rows = kTokens;
  norm.size = kHidden;
  expect_refused<RowNormArgs>(norm, [](const RowNormArgs& args) { launch_row_norm(args, stream()); },
                              {
                                  {"num_rows > 0", [](RowNormArgs& args) { args.num_rows = 0; }},
                                  {"bias == nullptr", [](RowNormArgs& args) { args.bias = dummy_pointer<float>(); }},
                              });
  PoolArgs pool;
  pool.hidden = pool.before = dummy_pointer<float>();
  pool.hidden_size = kHidden;
  pool.items = dummy_pointer<PoolItem>();
  pool.num_items = 1;
  pool.sums = pool.results = dummy_pointer<float>();
  expect_refused<PoolArgs>(pool, [](const PoolArgs& args) { launch_pool(args, stream()); },
                           {
                               {"num_items < 65536", [](PoolArgs& args) { args.num_items = 65536; }},
                               {"Pooling::kNone", [](PoolArgs& args) { args.pooling = Pooling::kNone; }},
                               {"results != nullptr", [](PoolArgs& args) { args.results = nullptr; }},
                           });
}

TEST(cuda_recurrent_launchers_reject_invalid_arguments) {
  RecurrentArgs good;
  good.shape = RecurrentCase::small_shape(Mixer::kDeltaNet);
  good.num_tokens = kTokens, good.num_seqs = 1;
  good.conv_stride = good.shape.conv_channels;
  good.projection_stride = num_projections(Mixer::kDeltaNet, good.shape);
  good.slot_stride = layer_state_floats(good.shape);
  good.split = split_depth(good.shape.output_size(), good.shape.output_size(), 1);
  expect_refused<RecurrentArgs>(
      good, [](const RecurrentArgs& args) { launch_recurrent(args, stream()); },
      {
          {"num_tokens > 0", [](RecurrentArgs& args) { args.num_tokens = 0; }},
          {"num_seqs <= args.num_tokens", [](RecurrentArgs& args) { args.num_seqs = kTokens + 1; }},
          {"conv_taps <= kMaxConvTaps", [](RecurrentArgs& args) { args.shape.conv_taps = kMaxConvTaps + 1; }},
          {"conv_stride >= shape.conv_channels", [](RecurrentArgs& args) { args.conv_stride -= 1; }},
          {"num_projections", [](RecurrentArgs& args) { args.projection_stride -= 1; }},
          {"layer_state_floats", [](RecurrentArgs& args) { args.slot_stride -= 1; }},
          {"== shape.output_size()", [](RecurrentArgs& args) { args.split.part_cols -= 1; }},
          {"state_size <= kMaxStateSize",
           [](RecurrentArgs& args) {
             args.shape.state_size = kMaxStateSize + 1;
             args.slot_stride = layer_state_floats(args.shape);
           }},
          {"num_heads % shape.num_groups == 0", [](RecurrentArgs& args) { args.shape.num_groups = 4; }},
          {"skip != nullptr", [](RecurrentArgs& args) { args.mixer = Mixer::kMamba2; }},
      });
  OutputGateArgs gate;
  gate.num_tokens = kTokens;
  gate.gates = dummy_pointer<float>();
  gate.gate_stride = kHidden;
  gate.split = split_depth(kHidden, kHidden, 1);
  gate.acts = dummy_pointer<uint16_t>();
  expect_refused<OutputGateArgs>(gate, [](const OutputGateArgs& args) { launch_output_gate(args, stream()); },
                                 {
                                     {"num_tokens > 0", [](OutputGateArgs& args) { args.num_tokens = 0; }},
                                     {"gates != nullptr", [](OutputGateArgs& args) { args.gates = nullptr; }},
                                     {"gate_stride >= size", [](OutputGateArgs& args) { args.gate_stride -= 1; }},
                                 });
}

TEST(cuda_refuses_what_it_lacks_of_norms) {
  const auto refusal = [](const std::function<void(DeviceModel&)>& change) {
    DeviceModel model;
    model.hidden_size = kHidden, model.head_dim = 32, model.vocab_size = 100;
    change(model);
    return cuda_refusal(model);
  };
  const auto refused = [](const std::string& what) {
    return "CUDA: " + what + " are not supported yet: run this model with device cpu";
  };
  EXPECT_EQ(refusal([](DeviceModel& model) {
              model.norm_kind = NormKind::kLayer;
              model.norms = {false, true, false, true, true};
            }),
            "");
  EXPECT_EQ(refusal([](DeviceModel& model) { model.norm_kind = NormKind::kLayer; }), "");
  EXPECT_EQ(refusal([](DeviceModel& model) {
              model.head_dim = kMaxBiasedHeadDim + 1;
              model.embedding.num_distances = 32;
            }),
            refused("biases of distances with heads of more than 64 dimensions"));
  EXPECT_EQ(refusal([](DeviceModel& model) { model.has_layer_scales = true; }),
            refused("scales of layers without norms of their results"));
  EXPECT_EQ(refusal([](DeviceModel& model) { model.has_layer_scales = model.norms.mlp_out = true; }), "");
  EXPECT_EQ(refusal([](DeviceModel& model) {
              model.norm_kind = NormKind::kLayer;
              model.norms.mlp_out = true;
            }),
            refused("layer norms of results or before experts"));
}

TEST(cuda_refuses_recurrent_layers_that_it_cannot_run) {
  DeviceModel model;
  model.hidden_size = kHidden, model.head_dim = 32, model.vocab_size = 100;
  model.layers = {{Mixer::kDeltaNet, -1, -1, -1, 0}};
  model.recurrent = RecurrentCase::small_shape(Mixer::kDeltaNet);
  EXPECT_EQ(cuda_refusal(model),
            "CUDA: models without attention are not supported yet: run this model with device cpu");
  model.layers.push_back({Mixer::kAttention, 0, 0, 0, 0});
  model.kv_groups = {{0, 1}};
  EXPECT_EQ(cuda_refusal(model), "");
  model.recurrent.state_size = kMaxStateSize + 1;
  EXPECT_EQ(
      cuda_refusal(model),
      "CUDA: recurrent layers: expected at most 16 inputs of the convolution and a state size of at most 256, got "
      "4 and 257: run this model with device cpu");
}

TEST(cuda_sample_launcher_rejects_invalid_arguments) {
  SampleArgs good;
  good.vocab_size = good.logits_stride = good.num_token_ids = 100;
  good.num_items = 1;
  good.drawn_ids = dummy_pointer<int32_t>();
  expect_refused<SampleArgs>(
      good, [](const SampleArgs& args) { launch_sample(args, stream()); },
      {
          {"num_items > 0", [](SampleArgs& args) { args.num_items = 0; }},
          {"drawn_ids != nullptr", [](SampleArgs& args) { args.drawn_ids = nullptr; }},
          {"num_token_ids > 0", [](SampleArgs& args) { args.num_token_ids = 0; }},
          {"num_token_ids <= args.vocab_size", [](SampleArgs& args) { args.num_token_ids = 101; }},
          {"vocab_size <= args.logits_stride", [](SampleArgs& args) { args.logits_stride = 99; }},
          {"vocab_size <= kMaxVocab",
           [](SampleArgs& args) { args.vocab_size = args.logits_stride = int64_t{1} << 30; }},
      });
}

}  // namespace
}  // namespace capstan::testing
