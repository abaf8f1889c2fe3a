#include "native/binding/spec_record.h"

#include "native/binding/record_fields.h"

namespace capstan {
namespace {

Activation to_activation(const Napi::Object& object, const char* name) {
  return one_of<Activation>(object, name,
                            {{"silu", Activation::kSilu},
                             {"gelu", Activation::kGelu},
                             {"gelu_tanh", Activation::kGeluTanh},
                             {"clamped_swish", Activation::kClampedSwish},
                             {"relu", Activation::kRelu},
                             {"tanh", Activation::kTanh},
                             {"identity", Activation::kIdentity},
                             {"xielu", Activation::kXielu}});
}

RopeType to_rope_type(const Napi::Object& object, const char* name) {
  return one_of<RopeType>(object, name,
                          {{"default", RopeType::kDefault},
                           {"linear", RopeType::kLinear},
                           {"dynamic", RopeType::kDynamic},
                           {"llama3", RopeType::kLlama3},
                           {"yarn", RopeType::kYarn},
                           {"longrope", RopeType::kLongRope}});
}

RopeSpec to_rope(const Napi::Object& object) {
  RopeSpec rope;
  rope.type = to_rope_type(object, "type");
  rope.theta = number(object, "theta");
  rope.rotary_dim = int32(object, "rotaryDim");
  rope.factor = number(object, "factor");
  rope.original_max_positions = int32(object, "originalMaxPositions");
  rope.low_freq_factor = number(object, "lowFreqFactor");
  rope.high_freq_factor = number(object, "highFreqFactor");
  rope.beta_fast = number(object, "betaFast");
  rope.beta_slow = number(object, "betaSlow");
  rope.truncate = boolean(object, "truncate");
  rope.attention_factor = number(object, "attentionFactor");
  if (!object.Get("frequencyDivisors").IsUndefined())
    rope.frequency_divisors = elements<float>(object, "frequencyDivisors", napi_float32_array, "a Float32Array");
  if (!object.Get("longFrequencyDivisors").IsUndefined())
    rope.long_frequency_divisors =
        elements<float>(object, "longFrequencyDivisors", napi_float32_array, "a Float32Array");
  rope.query_scale_growth = number(object, "queryScaleGrowth");
  return rope;
}

LayerNorms to_norms(const Napi::Object& object) {
  return {boolean(object, "input"), boolean(object, "attentionOut"), boolean(object, "mlp"), boolean(object, "mlpOut"),
          boolean(object, "isOfSum")};
}

EmbeddingShape to_embedding(const Napi::Object& object) {
  return {int32(object, "numPositions"), int32(object, "positionOffset"), int32(object, "numTokenTypes"),
          boolean(object, "hasNorm"), int32(object, "numDistances")};
}

HeadLayerSpec to_head_layer(const Napi::Object& object) {
  HeadLayerSpec layer;
  layer.output_size = integer(object, "outputSize");
  layer.activation = to_activation(object, "activation");
  layer.has_norm = boolean(object, "hasNorm");
  if (!object.Get("tokenIds").IsUndefined()) layer.token_ids = ids(object, "tokenIds");
  return layer;
}

void read_pooling(const Napi::Object& object, ModelSpec& spec) {
  spec.pooling = one_of<Pooling>(object, "kind",
                                 {{"last", Pooling::kLast},
                                  {"mean", Pooling::kMean},
                                  {"first", Pooling::kFirst},
                                  {"max", Pooling::kMax},
                                  {"weighted_mean", Pooling::kWeightedMean},
                                  {"root_mean", Pooling::kRootMean}});
  for (const Napi::Object& layer : objects(object, "head"))
    spec.head.push_back(to_head_layer(layer));
}

Moe to_moe(const Napi::Object& object) {
  Moe moe;
  moe.num_experts = int32(object, "numExperts");
  moe.top_k = int32(object, "topK");
  if (!object.Get("numGroups").IsUndefined()) moe.num_groups = int32(object, "numGroups");
  if (!object.Get("topGroups").IsUndefined()) moe.top_groups = int32(object, "topGroups");
  moe.intermediate_size = integer(object, "intermediateSize");
  moe.shared_intermediate_size = integer(object, "sharedIntermediateSize");
  moe.score =
      one_of<RouterScore>(object, "score", {{"softmax", RouterScore::kSoftmax}, {"sigmoid", RouterScore::kSigmoid}});
  moe.normalizes_weights = boolean(object, "normalizesWeights");
  moe.weight_scale = number(object, "weightScale");
  moe.logit_scale = number(object, "logitScale");
  moe.has_separate_norms = boolean(object, "hasSeparateNorms");
  return moe;
}

RecurrentShape to_recurrent(const Napi::Object& object) {
  RecurrentShape shape;
  shape.num_heads = int32(object, "numHeads");
  shape.num_groups = int32(object, "numGroups");
  if (!object.Get("headsAlternate").IsUndefined()) shape.heads_alternate = boolean(object, "headsAlternate");
  shape.head_dim = int32(object, "headDim");
  shape.state_size = int32(object, "stateSize");
  shape.conv_taps = int32(object, "convTaps");
  shape.conv_channels = integer(object, "convChannels");
  return shape;
}

LayerSpec to_layer(const Napi::Object& object) {
  LayerSpec layer;
  layer.mixer = one_of<Mixer>(object, "mixer",
                              {{"attention", Mixer::kAttention},
                               {"delta_net", Mixer::kDeltaNet},
                               {"short_conv", Mixer::kShortConv},
                               {"mamba2", Mixer::kMamba2}});
  layer.window = int32(object, "window");
  layer.rope = int32(object, "rope");
  layer.is_moe = boolean(object, "isMoe");
  if (!object.Get("lacksInputNorm").IsUndefined()) layer.lacks_input_norm = boolean(object, "lacksInputNorm");
  if (!object.Get("headDim").IsUndefined()) layer.head_dim = int32(object, "headDim");
  if (!object.Get("numKvHeads").IsUndefined()) layer.num_kv_heads = int32(object, "numKvHeads");
  if (!object.Get("intermediateSize").IsUndefined()) layer.intermediate_size = integer(object, "intermediateSize");
  if (!object.Get("kvSource").IsUndefined()) layer.kv_source = int32(object, "kvSource");
  return layer;
}

}  // namespace

ModelSpec to_spec(const Napi::Object& object) {
  ModelSpec spec;
  spec.vocab_size = integer(object, "vocabSize");
  spec.hidden_size = integer(object, "hiddenSize");
  spec.intermediate_size = integer(object, "intermediateSize");
  spec.num_heads = int32(object, "numHeads");
  spec.num_kv_heads = int32(object, "numKvHeads");
  spec.head_dim = int32(object, "headDim");
  spec.rms_norm_eps = number(object, "rmsNormEps");
  spec.activation = to_activation(object, "hiddenAct");
  spec.tie_word_embeddings = boolean(object, "tieWordEmbeddings");
  spec.attention_scale = number(object, "attentionScale");
  spec.attention_soft_cap = number(object, "attentionSoftCap");
  spec.qk_norm = one_of<QkNorm>(object, "qkNorm",
                                {{"none", QkNorm::kNone}, {"head", QkNorm::kHead}, {"all_heads", QkNorm::kAllHeads}});
  spec.rotates_before_qk_norm = boolean(object, "rotatesBeforeQkNorm");
  spec.has_v_norm = boolean(object, "hasVNorm");
  spec.embedding_scale = number(object, "embeddingScale");
  spec.residual_scale = number(object, "residualScale");
  spec.logit_scale = number(object, "logitScale");
  spec.logit_soft_cap = number(object, "logitSoftCap");
  spec.norm_offset = number(object, "normOffset");
  spec.norms = to_norms(record(object, "norms"));
  spec.has_sinks = boolean(object, "hasSinks");
  spec.has_mtp = boolean(object, "hasMtp");
  if (!object.Get("moe").IsUndefined()) spec.moe = to_moe(record(object, "moe"));
  for (const Napi::Object& layer : objects(object, "layers"))
    spec.layers.push_back(to_layer(layer));
  for (const Napi::Object& rope : objects(object, "ropes"))
    spec.ropes.push_back(to_rope(rope));
  if (!object.Get("recurrent").IsUndefined()) spec.recurrent = to_recurrent(record(object, "recurrent"));
  spec.has_output_gate = boolean(object, "hasOutputGate");
  spec.per_layer_input_size = integer(object, "perLayerInputSize");
  spec.has_layer_scales = boolean(object, "hasLayerScales");
  spec.max_position_embeddings = int32(object, "maxPositionEmbeddings");
  spec.default_length = int32(object, "defaultLength");
  spec.norm_kind = one_of<NormKind>(object, "normKind", {{"rms", NormKind::kRms}, {"layer", NormKind::kLayer}});
  spec.has_gated_mlp = boolean(object, "hasGatedMlp");
  spec.is_parallel = boolean(object, "isParallel");
  spec.has_final_norm = boolean(object, "hasFinalNorm");
  spec.is_causal = boolean(object, "isCausal");
  if (!object.Get("embedding").IsUndefined()) spec.embedding = to_embedding(record(object, "embedding"));
  if (!object.Get("pooling").IsUndefined()) read_pooling(record(object, "pooling"), spec);
  return spec;
}

}  // namespace capstan
