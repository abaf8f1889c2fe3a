#pragma once
// Plain, readable versions of every op in double precision. The fast kernels are tested against them.
#include <cstdint>
#include <vector>

#include "native/backend/backend.h"

namespace capstan::reference {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

// x · weightᵀ + bias. weight: (out, in). An empty bias = no bias.
Row linear(const Row& x, const Rows& weight, const Row& bias);
Row rms_norm(const Row& x, const Row& weight, double eps);
Row log_softmax(Row x);
double activation(Activation kind, double x);
double xielu(double square, double linear, double exponential, double x);

// RoPE over the first rotary_dim elements, which pairs the two halves. rope: (2, rotary_dim / 2) cosines, then sines.
Row rotate(Row head, const float* rope, int rotary_dim);

// Attention of one query at `position`. keys and values: (positions so far, head_dim) of its KV head.
struct Softmax {
  double soft_cap = 0;          // c: scores become c · tanh(score / c); 0 = none
  const float* sink = nullptr;  // logit of a key without value
};
Row attention(const Row& query, const Rows& keys, const Rows& values, int position, int window, double scale,
              const Softmax& softmax = {});

struct Layer {
  Row input_norm, mlp_norm;
  Rows q, k, v, o, gate, up, down;  // (out, in)
  Row q_bias, k_bias, v_bias, o_bias, down_bias;
  Row q_norm, k_norm;
};

// A dense decoder that computes one token at a time.
struct Decoder {
  DeviceModel model;  // sizes of the whole model
  Rows embedding;     // (vocab_size, hidden_size)
  std::vector<Layer> layers;
  Row norm;
  Rows lm_head;

  // The KV cache of one sequence.
  struct Cache {
    std::vector<std::vector<Rows>> keys, values;  // [layer][kv head] (tokens, head_dim)
  };
  Cache make_cache() const;
  // Appends the token to the cache. Returns the log-probabilities (vocab_size) of the next token.
  Row step(Cache& cache, int32_t token_id) const;
};

}  // namespace capstan::reference
