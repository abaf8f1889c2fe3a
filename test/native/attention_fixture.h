#pragma once
// One sequence in the KV cache of the attention kernels.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "native/backend/cpu/isa.h"
#include "native/backend/cpu/memory.h"
#include "native/base/number.h"
#include "test/native/checkpoint.h"
#include "test/native/reference.h"
#include "test/native/testing.h"

namespace capstan::testing {

struct AttentionCase {
  int num_heads = 4, num_kv_heads = 2, head_dim = 64;
  int context = 100, block_size = 16, window = 0;
  DType dtype = DType::kF32;
  bool has_bf16_products = false;
  float soft_cap = 0;
  bool has_sinks = false;
  bool is_causal = true;

  int num_keys() const { return is_causal ? 0 : context; }
  int first_key(int position) const { return first_visible_key(position, window); }
  int end_key(int position) const { return end_visible_key(position, window, num_keys()); }
};

// The number types of the cache, and for bf16 both types of products.
inline const std::vector<std::pair<DType, bool>>& number_types() {
  static const std::vector<std::pair<DType, bool>> all = {
      {DType::kF32, false}, {DType::kF16, false}, {DType::kBf16, false}, {DType::kBf16, true}, {DType::kInt8, false}};
  return all;
}

inline std::string name_of(const AttentionCase& shape, CpuIsa isa) {
  return std::string(cpu_isa_name(isa)) + " " + dtype_name(shape.dtype) +
         (shape.has_bf16_products ? " products, heads " : " heads ") + show(shape.num_heads) + "/" +
         show(shape.num_kv_heads) + " of " + show(shape.head_dim) + ", context " + show(shape.context) + ", window " +
         show(shape.window) + (shape.is_causal ? "" : " on both sides") + ", blocks of " + show(shape.block_size);
}

// One sequence with random q, k and v. qkv_row writes its slots of the cache; all other slots hold NaN.
struct AttentionProblem {
  AttentionCase shape;
  const CpuKernels& kernels;
  std::vector<int32_t> table;
  HugeBuffer k_memory, v_memory;
  KvCache cache;
  int64_t stride;
  std::vector<float> qkv;                     // (context, stride); q scaled
  std::vector<reference::Rows> keys, values;  // [kv head] (context, head_dim), rounded as in the cache
  reference::Rows queries;                    // (context * num_heads, head_dim)
  std::vector<float> sinks;                   // (num_heads)

  AttentionProblem(const AttentionCase& what, CpuIsa isa) : shape(what), kernels(cpu_kernels(isa)) {
    const int num_blocks = (shape.context + shape.block_size - 1) / shape.block_size;
    for (int i = 0; i < num_blocks; ++i)
      table.push_back(2 * (num_blocks - 1 - i) + 1);  // the even blocks belong to other sequences
    cache.layout = {shape.dtype,
                    shape.block_size,
                    shape.num_kv_heads,
                    shape.head_dim,
                    shape.dtype == DType::kInt8 ? (shape.head_dim + 3) / 4 * 4 : (shape.head_dim + 1) / 2 * 2,
                    (shape.head_dim + 15) / 16 * 16};
    const size_t slots = static_cast<size_t>(2 * num_blocks) * shape.block_size * shape.num_kv_heads;
    k_memory = HugeBuffer(slots * slot_bytes(shape.dtype, cache.layout.k_dim), "keys");
    v_memory = HugeBuffer(slots * slot_bytes(shape.dtype, cache.layout.v_dim), "values");
    std::memset(k_memory.as<char>(), 0xff, k_memory.bytes());
    std::memset(v_memory.as<char>(), 0xff, v_memory.bytes());
    cache.k = k_memory.as<void>();
    cache.v = v_memory.as<void>();
    const int q_size = shape.num_heads * shape.head_dim, kv_size = shape.num_kv_heads * shape.head_dim;
    stride = q_size + 2 * kv_size;
    qkv = random_values(11, shape.context * stride + 16, 1.0f);
    sinks = random_values(12, shape.num_heads, 3.0f);
    keys.resize(static_cast<size_t>(shape.num_kv_heads));
    values.resize(keys.size());
    for (int position = 0; position < shape.context; ++position) {
      float* row = qkv.data() + position * stride;
      for (int h = 0; h < shape.num_heads; ++h)
        queries.emplace_back(row + h * shape.head_dim, row + (h + 1) * shape.head_dim);
      for (int h = 0; h < shape.num_kv_heads; ++h) {
        keys[h].push_back(stored(row + q_size + h * shape.head_dim));
        values[h].push_back(stored(row + q_size + kv_size + h * shape.head_dim));
      }
      QkvRowArgs args;
      args.qkv = row;
      args.num_heads = shape.num_heads;
      args.q_scale = scale() * kLog2E;
      args.cache = cache;
      args.slot = int64_t{table[position / shape.block_size]} * shape.block_size + position % shape.block_size;
      kernels.qkv_row(args);
    }
  }

  float scale() const { return 1 / std::sqrt(static_cast<float>(shape.head_dim)); }

  // x, each 2^n dimensions multiplied by the Walsh-Hadamard matrix. 2^n is the largest such divisor of the head.
  template <class T>
  reference::Row mixed(const T* x) const {
    const int count = shape.head_dim & -shape.head_dim;
    reference::Row row;
    for (int d = 0; d < shape.head_dim; ++d) {
      double sum = 0;
      for (int i = 0; i < count; ++i)
        sum += x[d / count * count + i] * (std::popcount(static_cast<unsigned>(d % count & i)) % 2 == 0 ? 1 : -1);
      row.push_back(sum);
    }
    return row;
  }

  // The values that codes of 8 bits stand for.
  reference::Row decoded(const float* from) const {
    reference::Row codes = mixed(from);
    double largest = 0;
    for (const double value : codes)
      largest = std::max(largest, std::abs(value));
    const double scale = largest / 127;
    for (double& value : codes)
      value = std::nearbyint(value / scale) * scale;
    reference::Row row = mixed(codes.data());
    for (double& value : row)
      value /= shape.head_dim & -shape.head_dim;
    return row;
  }

  reference::Row stored(const float* from) const {
    if (shape.dtype == DType::kInt8) return decoded(from);
    reference::Row row;
    for (int i = 0; i < shape.head_dim; ++i) {
      float value = from[i];
      if (shape.dtype == DType::kBf16) value = bf16_to_float(float_to_bf16(value));
      if (shape.dtype == DType::kF16) value = f16_to_float(float_to_f16(value));
      row.push_back(value);
    }
    return row;
  }

  // How attention is cut into calls. chunks = 0: all chunks of a row in one call.
  struct Calls {
    int heads = 1, chunks = 0;
  };

  // Returns (count, num_heads * head_dim): the attention of positions [first, first + count).
  std::vector<float> attend(int first, int count, const Calls& calls) const {
    std::vector<float> rows(qkv.begin() + first * stride, qkv.begin() + (first + count) * stride);
    const int64_t num_rows = int64_t{count} * calls.heads;
    std::vector<float> scratch(
        static_cast<size_t>(attention_scratch_floats(num_rows, cache.layout.k_dim, cache.layout.v_dim)));
    const int heads_per_kv = shape.num_heads / shape.num_kv_heads;
    const int first_chunk = shape.first_key(first) / kKvChunk;
    const int end_chunk = (shape.end_key(first + count - 1) - 1) / kKvChunk + 1;
    const int64_t state_floats = chunk_state_floats(num_rows, cache.layout.v_dim);
    std::vector<float> states(static_cast<size_t>((end_chunk - first_chunk) * state_floats), std::nanf(""));
    for (int head = 0; head < shape.num_heads; head += calls.heads) {
      AttentionArgs args;
      args.q = rows.data() + head * shape.head_dim;
      args.q_stride = stride;
      args.num_rows = count;
      args.num_heads = calls.heads;
      args.first_position = first;
      args.window = shape.window;
      args.num_keys = shape.num_keys();
      args.has_bf16_products = shape.has_bf16_products;
      args.soft_cap = shape.soft_cap * kLog2E;
      if (shape.has_sinks) args.sinks = sinks.data() + head;
      args.kv_head = head / heads_per_kv;
      args.block_table = table.data();
      args.cache = cache;
      args.scratch = scratch.data();
      args.first_chunk = first_chunk;
      args.end_chunk = end_chunk;
      if (calls.chunks == 0) {
        kernels.attention(args);
        continue;
      }
      AttentionArgs part = args;
      for (int chunk = end_chunk; chunk > first_chunk; chunk -= calls.chunks) {  // in any order
        part.first_chunk = std::max(first_chunk, chunk - calls.chunks);
        part.end_chunk = chunk;
        part.states = states.data() + (part.first_chunk - first_chunk) * state_floats;
        kernels.attention(part);
      }
      args.states = states.data();
      kernels.combine_chunks(args);
    }
    std::vector<float> out;
    for (int i = 0; i < count; ++i)
      out.insert(out.end(), rows.begin() + i * stride, rows.begin() + i * stride + shape.num_heads * shape.head_dim);
    return out;
  }
};

// The worst and the mean difference to the reference. Products of bf16 round q and the weights to 8 bits. Over codes,
// q has 15 bits, and the weights of a tile have 15 bits together.
inline std::pair<double, double> bounds_of(const AttentionCase& shape) {
  if (shape.has_bf16_products) return {0.02, 2e-3};
  return shape.dtype == DType::kInt8 ? std::pair{2e-3, 2e-4} : std::pair{5e-6, 1e-6};
}

}  // namespace capstan::testing
