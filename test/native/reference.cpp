#include "test/native/reference.h"

#include <algorithm>
#include <cmath>

namespace capstan::reference {

Row linear(const Row& x, const Rows& weight, const Row& bias) {
  Row out(weight.size());
  for (size_t n = 0; n < weight.size(); ++n) {
    double sum = 0;
    for (size_t k = 0; k < x.size(); ++k)
      sum += x[k] * weight[n][k];
    out[n] = sum + (bias.empty() ? 0 : bias[n]);
  }
  return out;
}

Row rms_norm(const Row& x, const Row& weight, double eps) {
  double sum = 0;
  for (const double value : x)
    sum += value * value;
  const double scale = 1 / std::sqrt(sum / static_cast<double>(x.size()) + eps);
  Row out(x.size());
  for (size_t i = 0; i < x.size(); ++i)
    out[i] = x[i] * scale * weight[i];
  return out;
}

double activation(Activation kind, double x) {
  switch (kind) {
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kGelu:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kClampedSwish: {
      const double gate = std::min(x, 7.0);
      return gate / (1 + std::exp(-1.702 * gate));
    }
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kXielu:  // has values: see xielu
    case Activation::kIdentity:
      return x;
  }
  return x;
}

double xielu(double square, double linear, double exponential, double x) {
  return linear * x + (x > 0 ? square * x * x : exponential * (std::expm1(x) - x));
}

Row rotate(Row head, const float* rope, int rotary_dim) {
  const int half = rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    const double a = head[i], b = head[half + i];
    head[i] = a * rope[i] - b * rope[half + i];
    head[half + i] = b * rope[i] + a * rope[half + i];
  }
  return head;
}

Row attention(const Row& query, const Rows& keys, const Rows& values, int position, int window, double scale,
              const Softmax& softmax) {
  const int first = window > 0 ? std::max(0, position - window + 1) : 0;
  Row scores;
  for (int key = first; key <= position; ++key) {
    double sum = 0;
    for (size_t d = 0; d < query.size(); ++d)
      sum += query[d] * keys[key][d];
    sum *= scale;
    scores.push_back(softmax.soft_cap > 0 ? softmax.soft_cap * std::tanh(sum / softmax.soft_cap) : sum);
  }
  const double top = *std::max_element(scores.begin(), scores.end());
  double total = softmax.sink == nullptr ? 0 : std::exp(*softmax.sink - top);
  for (double& score : scores)
    total += score = std::exp(score - top);
  Row out(query.size());
  for (int key = first; key <= position; ++key)
    for (size_t d = 0; d < query.size(); ++d)
      out[d] += scores[key - first] / total * values[key][d];
  return out;
}

Row log_softmax(Row x) {
  const double top = *std::max_element(x.begin(), x.end());
  double total = 0;
  for (const double value : x)
    total += std::exp(value - top);
  for (double& value : x)
    value -= top + std::log(total);
  return x;
}

Decoder::Cache Decoder::make_cache() const {
  Cache cache;
  cache.keys.assign(layers.size(), std::vector<Rows>(model.num_kv_heads));
  cache.values = cache.keys;
  return cache;
}

namespace {

Row head_of(const Row& x, int head, int head_dim) {
  return Row(x.begin() + head * head_dim, x.begin() + (head + 1) * head_dim);
}

void add(Row& to, const Row& x) {
  for (size_t i = 0; i < x.size(); ++i)
    to[i] += x[i];
}

}  // namespace

Row Decoder::step(Cache& cache, int32_t token_id) const {
  Row hidden = embedding[token_id];
  for (size_t l = 0; l < layers.size(); ++l) {
    const Layer& layer = layers[l];
    const int position = static_cast<int>(cache.keys[l][0].size());
    const RopeTable& table = model.rope_tables[0];
    const float* rope = table.values.data() + int64_t{position} * table.rotary_dim;
    const Row x = rms_norm(hidden, layer.input_norm, model.rms_norm_eps);
    const Row q = linear(x, layer.q, layer.q_bias), k = linear(x, layer.k, layer.k_bias),
              v = linear(x, layer.v, layer.v_bias);
    for (int h = 0; h < model.num_kv_heads; ++h) {
      Row key = head_of(k, h, model.head_dim);
      if (!layer.k_norm.empty()) key = rms_norm(key, layer.k_norm, model.rms_norm_eps);
      cache.keys[l][h].push_back(rotate(key, rope, table.rotary_dim));
      cache.values[l][h].push_back(head_of(v, h, model.head_dim));
    }
    Row mixed;
    for (int h = 0; h < model.num_heads; ++h) {
      const int kv_head = h / (model.num_heads / model.num_kv_heads);
      Row query = head_of(q, h, model.head_dim);
      if (!layer.q_norm.empty()) query = rms_norm(query, layer.q_norm, model.rms_norm_eps);
      const int window = model.window(static_cast<int>(l));
      const Row out = attention(rotate(query, rope, table.rotary_dim), cache.keys[l][kv_head], cache.values[l][kv_head],
                                position, window, model.attention_scale);
      mixed.insert(mixed.end(), out.begin(), out.end());
    }
    add(hidden, linear(mixed, layer.o, layer.o_bias));
    const Row y = rms_norm(hidden, layer.mlp_norm, model.rms_norm_eps);
    Row gate = linear(y, layer.gate, {});
    const Row up = linear(y, layer.up, {});
    for (size_t i = 0; i < gate.size(); ++i)
      gate[i] = activation(model.activation, gate[i]) * up[i];
    add(hidden, linear(gate, layer.down, layer.down_bias));
  }
  return log_softmax(linear(rms_norm(hidden, norm, model.rms_norm_eps), lm_head, {}));
}

}  // namespace capstan::reference
