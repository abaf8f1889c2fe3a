// Finishes the rows of the QKV projection and stores keys and values in the KV cache.
namespace {

using namespace capstan;

// Both functions: x is readable and writable up to a multiple of 16 and holds zeros from head_dim on.
inline void norm_head(float* x, int head_dim, const HeadNorm& norm, int head, float eps) {
  if (norm.weight == nullptr) return;
  const Vec scale = vec_set(norm.is_of_all_heads ? norm.inverse_rms : inverse_rms(x, head_dim, eps));
  const float* weight = norm.weight + (norm.is_of_all_heads ? head * head_dim : 0);
  for (int i = 0; i < head_dim; i += 16)
    vec_store(x + i, vec_mul(vec_mul(vec_load(x + i), scale), load_part(weight + i, head_dim - i)));
}

// RoPE over the first rotary_dim elements, which pairs the two halves.
inline void rotate(float* x, const float* rope, int rotary_dim) {
  const int half = rotary_dim / 2;
  const float* cosine = rope;
  const float* sine = rope + half;
  int i = 0;
  for (; i + 16 <= half; i += 16) {
    const Vec c = vec_load(cosine + i), s = vec_load(sine + i), a = vec_load(x + i), b = vec_load(x + half + i);
    vec_store(x + i, vec_fma(vec_sub(vec_zero(), b), s, vec_mul(a, c)));
    vec_store(x + half + i, vec_fma(a, s, vec_mul(b, c)));
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    x[i] = __builtin_fmaf(0.0f - b, sine[i], a * cosine[i]);
    x[half + i] = __builtin_fmaf(a, sine[i], b * cosine[i]);
  }
}

inline void norm_and_rotate(const QkvRowArgs& args, const HeadNorm& norm, int head, float* x) {
  const int head_dim = args.cache.layout.head_dim;
  if (!args.rotates_before_norm) norm_head(x, head_dim, norm, head, args.eps);
  rotate(x, args.rope, args.rotary_dim);
  if (args.rotates_before_norm) norm_head(x, head_dim, norm, head, args.eps);
}

inline void copy_head(float* to, const float* from, int head_dim, int padded) {
  int i = 0;
  for (; i + 16 <= head_dim; i += 16)
    vec_store(to + i, vec_load(from + i));
  for (; i < head_dim; ++i)
    to[i] = from[i];
  for (; i < padded; ++i)
    to[i] = 0;
}

inline void to_half_type(DType dtype, uint16_t* to, const float* from, int padded) {
  for (int i = 0; i < padded; i += 16) {
    if (dtype == DType::kBf16)
      vec_store_bf16(to + i, vec_load(from + i));
    else
      vec_store_f16(to + i, vec_load(from + i));
  }
}

// The dimensions that mix_head adds up: the largest power of two that divides the head.
inline int mixed_dims(int head_dim) {
  return head_dim & -head_dim;
}

// Multiplies each `mixed_dims` elements of x by the Walsh-Hadamard matrix, whose entries are 1 and -1. A large value of
// one dimension is then spread over all, so that codes of 8 bits are finer. Twice gives x * mixed_dims.
inline void mix_head(float* x, int head_dim) {
  const int count = mixed_dims(head_dim);
  float other[kMaxHeadDim];
  for (int begin = 0; begin < head_dim; begin += count) {
    float *from = x + begin, *to = other;
    // Each pass adds and subtracts the two halves, and puts the results side by side.
    for (int pass = 1; pass < count; pass *= 2) {
      int i = 0;
#ifdef CAPSTAN_INTERLEAVE
      for (; i + 16 <= count / 2; i += 16) {
        const Vec a = vec_load(from + i), b = vec_load(from + count / 2 + i);
        Vec first, second;
        vec_interleave(vec_add(a, b), vec_sub(a, b), first, second);
        vec_store(to + 2 * i, first);
        vec_store(to + 2 * i + 16, second);
      }
#endif
      for (; i < count / 2; ++i) {
        const float a = from[i], b = from[count / 2 + i];
        to[2 * i] = a + b;
        to[2 * i + 1] = a - b;
      }
      float* const swapped = from;
      from = to;
      to = swapped;
    }
    if (from != x + begin) __builtin_memcpy(x + begin, from, sizeof(float) * static_cast<size_t>(count));
  }
}

// value = code * scale, code = value * inverse.
struct CodeScale {
  float scale;  // NaN when a value is NaN or Inf
  float inverse;
};

// x is readable up to a multiple of 16.
inline CodeScale find_code_scale(const float* x, int64_t count, float largest_code) {
  Vec largest = vec_zero(), check = vec_zero();
  for (int64_t i = 0; i < count; i += 16) {
    const Vec v = load_part(x + i, count - i);
    largest = vec_max(largest, vec_abs(v));
    check = vec_fma(v, vec_zero(), check);
  }
  const float magnitude = vec_reduce_max(largest), bad = vec_reduce_add(check);
  if (!(magnitude > kSmallestMagnitude)) return {bad, 0};
  return {magnitude / largest_code + bad, largest_code / magnitude};
}

// x (padded) = codes * the returned scale. `padded` is a multiple of 16.
inline float quantize_head(const float* x, int padded, int8_t* codes) {
  const CodeScale scale = find_code_scale(x, padded, 127);
  for (int i = 0; i < padded; i += 16)
    vec_store_int8(codes + i, vec_round(vec_mul(vec_load(x + i), vec_set(scale.inverse))));
  return scale.scale;
}

// As store_kv, and mixes k and v. `group` is the first slot of the slot group, counted over blocks and heads.
inline void store_kv_codes(const KvCache& cache, int64_t group, int64_t lane, float* k, float* v) {
  const KvLayout& layout = cache.layout;
  mix_head(k, layout.head_dim);
  mix_head(v, layout.head_dim);
  const int padded = (layout.head_dim + 15) & ~15;
  int8_t codes[kMaxHeadDim];
  char* const k_to = static_cast<char*>(cache.k) + group * slot_bytes(DType::kInt8, layout.k_dim);
  const float k_scale = quantize_head(k, padded, codes);
  __builtin_memcpy(k_to + layout.k_dim * kSlotGroup + lane * 4, &k_scale, 4);
  for (int d = 0; d < layout.k_dim; d += 4) {
    const int8_t four[4] = {codes[d], codes[d + 2], codes[d + 1], codes[d + 3]};
    __builtin_memcpy(k_to + d * kSlotGroup + lane * 4, four, 4);
  }
  char* const v_to = static_cast<char*>(cache.v) + group * slot_bytes(DType::kInt8, layout.v_dim);
  const float v_scale = quantize_head(v, padded, codes);
  __builtin_memcpy(v_to + layout.v_dim * kSlotGroup + lane * 4, &v_scale, 4);
  // NOTE: the other slots may belong to other threads, so each store has one byte.
  const int64_t place = lane % 4 == 0 || lane % 4 == 3 ? lane % 4 : 3 - lane % 4;
  char* const to = v_to + lane / 4 * layout.v_dim * 4 + place;
  for (int d = 0; d < layout.v_dim; ++d)
    to[d * 4] = static_cast<char>(codes[d]);
}

// Stores k and v (head_dim, zero padded to a multiple of 16) in `slot` of one KV head. May change them.
inline void store_kv(const KvCache& cache, int64_t slot, int kv_head, float* k, float* v) {
  const KvLayout& layout = cache.layout;
  const int64_t block = slot / layout.block_size;
  const int64_t offset = slot % layout.block_size;
  const int64_t head_slot = (block * layout.num_kv_heads + kv_head) * layout.block_size;  // first of block and head
  const int64_t group = head_slot + offset - offset % kSlotGroup;
  const int64_t lane = offset % kSlotGroup;
  const int padded = (layout.head_dim + 15) & ~15;
  if (layout.dtype == DType::kInt8) return store_kv_codes(cache, group, lane, k, v);
  if (layout.dtype == DType::kF32) {
    float* k_to = static_cast<float*>(cache.k) + group * layout.k_dim + lane;
    for (int d = 0; d < layout.k_dim; ++d)
      k_to[d * kSlotGroup] = k[d];
    float* v_to = static_cast<float*>(cache.v) + (head_slot + offset) * layout.v_dim;
    for (int d = 0; d < layout.v_dim; d += 16)
      vec_store(v_to + d, vec_load(v + d));
    return;
  }
  uint16_t half[kMaxHeadDim];
  to_half_type(layout.dtype, half, k, padded);
  uint16_t* k_to = static_cast<uint16_t*>(cache.k) + group * layout.k_dim;
  uint16_t* v_to = static_cast<uint16_t*>(cache.v);
  if (layout.dtype == DType::kF16) {
    for (int d = 0; d < layout.k_dim; ++d)
      k_to[d * kSlotGroup + lane] = half[d];
    to_half_type(layout.dtype, v_to + (head_slot + offset) * layout.v_dim, v, padded);
    return;
  }
  for (int d = 0; d < layout.k_dim; d += 2)
    __builtin_memcpy(k_to + d * kSlotGroup + lane * 2, half + d, 4);
  to_half_type(layout.dtype, half, v, padded);
  v_to += (head_slot + offset - offset % 2) * layout.v_dim + offset % 2;
  // NOTE: the other slot of the pair may belong to another thread, so each store has two bytes.
  for (int d = 0; d < layout.v_dim; ++d)
    v_to[d * 2] = half[d];
}

void qkv_row(const QkvRowArgs& args) {
  const int head_dim = args.cache.layout.head_dim;
  const int num_kv_heads = args.cache.layout.num_kv_heads;
  const int padded = (head_dim + 15) & ~15;
  float head[kMaxHeadDim], value[kMaxHeadDim];
  for (int h = 0; h < args.num_heads; ++h) {
    float* q = args.qkv + h * head_dim;
    copy_head(head, q, head_dim, padded);
    norm_and_rotate(args, args.q_norm, h, head);
    for (int i = 0; i < head_dim; ++i)
      q[i] = head[i] * args.q_scale;
  }
  if (!args.stores_kv) return;
  const float* k = args.qkv + args.num_heads * head_dim;
  const float* v = k + num_kv_heads * head_dim;
  for (int h = 0; h < num_kv_heads; ++h) {
    copy_head(head, k + h * head_dim, head_dim, padded);
    norm_and_rotate(args, args.k_norm, h, head);
    copy_head(value, v + h * head_dim, head_dim, padded);
    if (args.has_v_norm) {
      const Vec scale = vec_set(inverse_rms(value, head_dim, args.eps));
      for (int i = 0; i < head_dim; i += 16)
        vec_store(value + i, vec_mul(vec_load(value + i), scale));
    }
    store_kv(args.cache, args.slot, h, head, value);
  }
}

}  // namespace
